# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A zipapp's files beside it in memory, with the bytecode that Python makes of them: a zip file is compiled anew at each start.

This very text is the beginning of such a zipapp's ``__main__.py``, so it needs nothing of what lies around it, and loads
little. The directory is in /run: what is made there is of use until the host goes down, and nothing depends on it.
"""

from __future__ import annotations

import os
import stat
from typing import Optional

# What was unpacked of another program is kept for those that run it, which read their files as they come to need them.
_KEPT_S = 3600.0


def unpacked(program: str, directory: str) -> Optional[str]:
    """Where the files of this very ``program`` lie, None where they don't. Nobody may have put them there who may not write the program."""
    try:
        seen = os.stat(program)
        place = place_of(seen, directory)
        for path in (directory, place):
            found = os.lstat(path)
            if not stat.S_ISDIR(found.st_mode) or found.st_uid not in (0, seen.st_uid) or found.st_mode & 0o022:
                return None
    except OSError:
        return None
    return place


def unpack(program: str, directory: str) -> None:
    """Have them lie there, and those of other programs no more, but for the last one and what is younger than an hour. Raises OSError."""
    import compileall
    import errno
    import shutil
    import tempfile
    import time
    import zipfile

    place = place_of(os.stat(program), directory)
    before = os.umask(0o022)
    os.makedirs(directory, mode=0o755, exist_ok=True)
    temporary = tempfile.mkdtemp(dir=directory)
    try:
        try:
            with zipfile.ZipFile(program) as archive:
                archive.extractall(temporary)
        except zipfile.BadZipFile as exc:
            raise OSError(errno.EINVAL, str(exc)) from exc
        compileall.compile_dir(temporary, quiet=1, stripdir=temporary, prependdir=place)
        os.chmod(temporary, 0o755)
        if not os.path.isdir(place):
            os.rename(temporary, place)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
        others = []
        for name in os.listdir(directory):
            path = os.path.join(directory, name)
            try:
                if path != place:
                    others.append((os.lstat(path).st_ctime, path))
            except FileNotFoundError:
                pass  # another one that does the same
        for made, path in sorted(others)[:-1]:
            if time.time() - made > _KEPT_S:
                shutil.rmtree(path, ignore_errors=True)
        os.umask(before)


def place_of(seen: os.stat_result, directory: str) -> str:
    """Where the files of the program with this status lie, if they do."""
    # A program is replaced by a rename, so that another one is another file.
    return os.path.join(directory, "%d-%d-%d" % (seen.st_ino, seen.st_size, seen.st_mtime_ns))
