# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Unpacking a zipapp to where ``unpacked.py`` finds it."""

from __future__ import annotations

import compileall
import errno
import marshal
import os
import re
import shutil
import tempfile
import time
import zipfile
from importlib.util import cache_from_source

from .unpacked import place_of

# Before the code in a file of bytecode.
_HEADER_BYTES = 16
# What is made here: places, and what becomes one.
_OURS = re.compile(r"\d+-\d+-\d+\Z|tmp")
# What was unpacked of another program is kept for those that run it, which read their files as they come to need them.
_KEPT_S = 3600.0


def unpack(program: str, directory: str) -> None:
    """Have them lie there, and those of other programs no more, but for the last one and what is younger than an hour. Raises OSError.

    On a full file system Python writes half a file of bytecode and says nothing: nothing lies there that is not whole.
    """
    place = place_of(os.stat(program), directory)
    before = os.umask(0o022)
    try:
        os.makedirs(directory, mode=0o755, exist_ok=True)
        if os.path.islink(directory):
            raise OSError(errno.ENOTDIR, "it is a link, and what it leads to is somebody else's", directory)
        temporary = tempfile.mkdtemp(dir=directory)
        try:
            try:
                with zipfile.ZipFile(program) as archive:
                    archive.extractall(temporary)
            except zipfile.BadZipFile as exc:
                raise OSError(errno.EINVAL, str(exc)) from exc
            compileall.compile_dir(temporary, quiet=2, stripdir=temporary, prependdir=place)
            if not _whole(temporary):
                raise OSError(errno.ENOSPC, "it could not be compiled, or not all of it was written", directory)
            os.chmod(temporary, 0o755)
            if not os.path.isdir(place):
                os.rename(temporary, place)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)
            _sweep(directory, place)
    finally:
        os.umask(before)


def _whole(directory: str) -> bool:
    """Whether each source in it is there compiled, and can be loaded."""
    for path, _directories, names in os.walk(directory):
        for name in names:
            if name.endswith(".py"):
                try:
                    with open(cache_from_source(os.path.join(path, name)), "rb") as handle:
                        marshal.loads(handle.read()[_HEADER_BYTES:])
                except (OSError, EOFError, TypeError, ValueError):
                    return False
    return True


def _sweep(directory: str, place: str) -> None:
    others = []
    for name in os.listdir(directory):
        path = os.path.join(directory, name)
        try:
            if path != place and _OURS.match(name):
                others.append((os.lstat(path).st_ctime, path))
        except FileNotFoundError:
            pass  # another one that does the same
    for made, path in sorted(others)[:-1]:
        if time.time() - made > _KEPT_S:
            shutil.rmtree(path, ignore_errors=True)
