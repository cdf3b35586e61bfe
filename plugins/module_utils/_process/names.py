# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a process is called, and by whom: names, the program that runs, what an interpreter was given to run."""

from __future__ import annotations

import re
from typing import List, Optional

from .types import ProcessInfo

PYTHON = re.compile(r"(?:pypy|python|pt_main_thread)[\d.]*.*$")
# Where a system keeps the programs that its packages bring; what lies elsewhere (a home, a scratch disk) is somebody's own.
_SYSTEM_PLACES = ("/usr/", "/bin/", "/sbin/", "/lib/", "/lib64/", "/opt/", "/snap/", "/nix/", "/gnu/", "/run/", "/var/lib/")
# Programs that only run what they are given: theirs is no word on who that is.
_INTERPRETER = re.compile(r"(?:pypy|python|pt_main_thread|perl|ruby|node|java|lua|bash|dash|zsh|ksh|busybox|gjs)[\d.]*(?:-[\w.]+)?$|sh$")
# Their options that a command follows in place of a script, and those whose value is the next word.
_SHELLS_COMMAND = re.compile(r"-[a-zA-Z]*c|--command")
_COMMAND = re.compile(r"-[eEp]$|--eval|--print")
_WITH_VALUE = ("-o", "+o", "-O", "+O", "-cp", "-classpath", "--class-path", "-r", "--require")


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
    script = _script(info.exe, info)
    return [base(script)] if script is not None and script.startswith(_SYSTEM_PLACES) else []


def _script(exe: str, info: ProcessInfo) -> Optional[str]:
    """The file that an interpreter was told to run, None where it was told a module or a command.

    What follows it is the program's own business: a model may be called like a window manager.
    """
    if PYTHON.match(base(exe)):
        return next((word for word in program_of(info) if not word.startswith("-m ")), None)
    commands = _SHELLS_COMMAND if base(exe).endswith("sh") else _COMMAND
    words = iter(info.argv[1:])
    for word in words:
        if commands.match(word):
            return None
        if word in _WITH_VALUE:
            next(words, None)
        elif not word.startswith(("-", "+")):
            return word
    return None


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
