# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A zipapp's files beside it in memory, with the bytecode that Python makes of them: a zip file is compiled anew at each start.

This very text is the beginning of such a zipapp's ``__main__.py``, so it needs nothing of what lies around it, loads little, and is
short (``unpack.py`` makes what is found here). The directory is in /run: what is made there is of use until the host goes down, and
nothing depends on it.
"""

from __future__ import annotations

import importlib
import os
import stat
import sys
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Callable, List, Optional, Sequence

# What Python says of a file that is cut short, holds something else, or is not there.
_DAMAGED = (AttributeError, EOFError, ImportError, OSError, SyntaxError, TypeError, ValueError)


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


def place_of(seen: os.stat_result, directory: str) -> str:
    """Where the files of the program with this status lie, if they do."""
    # A program is replaced by a rename, so that another one is another file.
    return os.path.join(directory, "%d-%d-%d" % (seen.st_ino, seen.st_size, seen.st_mtime_ns))


def load(package: str, main: str, directory: str) -> Callable[[List[str]], int]:
    """The function ``main`` of the module of this name in the program that this process was started as.

    Nothing depends on what is unpacked: what is not there any more, or is damaged, is taken out of the program itself.
    """
    place = unpacked(sys.argv[0], directory)
    if place is not None:
        sys.path.insert(0, place)
        sys.meta_path.append(_Rest(sys.argv[0], package))
        try:
            return _main_of(package, main)
        except _DAMAGED:
            sys.path.remove(place)
            for name in [each for each in sys.modules if each.split(".")[0] == package]:
                del sys.modules[name]
            # Made anew by the next change; whoever runs it now has the program as well.
            import shutil

            shutil.rmtree(place, ignore_errors=True)
    return _main_of(package, main)


def _main_of(package: str, main: str) -> Callable[[List[str]], int]:
    found: Callable[[List[str]], int] = importlib.import_module("%s.%s" % (package, main)).main
    return found


class _Rest:
    """Asked for a module of the program that has not been found where it is unpacked."""

    def __init__(self, program: str, package: str) -> None:
        self._program = program
        self._package = package

    def find_spec(
        self, fullname: str, path: Optional[Sequence[str]] = None, target: Optional[ModuleType] = None
    ) -> Optional[ModuleSpec]:
        """The module in the program."""
        parts = fullname.split(".")
        if parts[0] != self._package:
            return None
        return PathFinder.find_spec(fullname, [os.path.join(self._program, *parts[:-1])])
