# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a process is called, and by whom: names, the program that runs, what an interpreter was given to run."""

from __future__ import annotations

import re
from typing import List

from .types import ProcessInfo

PYTHON = re.compile(r"(?:pypy|python|pt_main_thread)[\d.]*.*$")
# Where a system keeps the programs that its packages bring; what lies elsewhere (a home, a scratch disk) is somebody's own.
_SYSTEM_PLACES = ("/usr/", "/bin/", "/sbin/", "/lib/", "/lib64/", "/opt/", "/snap/", "/nix/", "/gnu/", "/run/", "/var/lib/")
# Programs that only run what they are given: theirs is no word on who that is.
_INTERPRETER = re.compile(r"(?:pypy|python|pt_main_thread|perl|ruby|node|java|lua|bash|dash|zsh|ksh|busybox|gjs)[\d.]*(?:-[\w.]+)?$|sh$")


def names_of(info: ProcessInfo) -> List[str]:
    """The short names a process goes by."""
    names = [info.comm]
    if info.exe:
        names.append(base(info.exe))
    if info.argv:
        # "sshd: root@pts/0" and "nginx: worker" are titles whose first word is the name
        names.append(base(info.argv[0].split(" ")[0]).rstrip(":"))
    return names


def installed_names(info: ProcessInfo) -> List[str]:
    """Its names as far as they are a program's that the system installed; all of them where the program can't be seen."""
    if not info.exe:
        return names_of(info)
    if not info.exe.startswith(_SYSTEM_PLACES):
        return []
    if not _INTERPRETER.match(base(info.exe)):
        return names_of(info)
    return [base(word) for word in info.argv[1:4] if word.startswith(_SYSTEM_PLACES)]


def is_python(info: ProcessInfo) -> bool:
    """Whether a Python interpreter runs in it."""
    return any(PYTHON.match(name) for name in names_of(info))


def program_of(info: ProcessInfo) -> List[str]:
    """What a Python interpreter runs: the script's path, or ``-m module``; empty for everything else."""
    argv = list(info.argv)
    if not argv or not PYTHON.match(base(argv[0])):
        return []
    position = 1
    while position < len(argv):
        word = argv[position]
        if word == "-m":
            return ["-m " + argv[position + 1]] if position + 1 < len(argv) else []
        if word == "-c":
            return []
        if word in ("-W", "-X"):
            position += 1
        elif not word.startswith("-"):
            return [word]
        position += 1
    return []


def base(path: str) -> str:
    name = path.rsplit("/", 1)[-1]
    return name[: -len(" (deleted)")] if name.endswith(" (deleted)") else name
