# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Shells: whether somebody sits at one, or it runs what it was given."""

from __future__ import annotations

import re
from typing import Sequence

from .names import PYTHON, base, program_of
from .types import ProcessInfo

_SHELL = re.compile(r"(?:r?ba|a|da|z|r?k|mk|pdk|lk|ok|ya|c|tc|fi|xon|o|pw)?sh[\d.-]*$|nu$|elvish$|pwsh-preview$")
# Options that make a shell wait for somebody whatever it runs, and those that the next word belongs to.
_STAYS = re.compile(r"--interactive$|-[a-zA-Z]*i")
_VALUES = ("-o", "+o", "-O", "+O", "--init-file", "--rcfile", "--init-command", "--config", "--env-config", "--rc", "--execute")
_OWN_VALUES = {"fish": ("-C",), "nu": ("-e",)}
# PowerShell's options are words.
_PWSH_VALUES = ("-workingdirectory", "-wd", "-executionpolicy", "-ep", "-ex", "-configurationname", "-settingsfile", "-custompipename")
_COMMAND = re.compile(r"-[a-zA-Z]*c|--command")


def of_a_person(info: ProcessInfo) -> bool:
    """Whether somebody may sit at it: it has a controlling terminal, or it is a shell that waits for input."""
    return info.terminal != 0 or is_interactive_shell(info)


def is_interactive_shell(info: ProcessInfo) -> bool:
    """Whether it is a shell at which somebody sits, rather than one that runs a script or a command."""
    argv = list(info.argv)
    if argv and base(argv[0]) == "busybox":
        argv.pop(0)  # busybox ash
    elif argv and PYTHON.match(base(argv[0])):
        argv = argv[argv.index(program_of(info)[0]):] if program_of(info) and program_of(info)[0] in argv else []  # xonsh
    if not argv:
        return False
    name = base(argv[0])
    if not _SHELL.match(name) and not name.startswith("-"):
        return False
    # "-bash", "-su": a login shell, which may run a command all the same
    return _waits_pwsh(argv[1:]) if name.startswith("pwsh") else _waits(name.lstrip("-"), argv[1:])


def _waits(name: str, options: Sequence[str]) -> bool:
    """Whether neither a script nor a command follows, or the shell was told to stay."""
    words = iter(options)
    for word in words:
        if _STAYS.match(word):
            return True
        if word in _VALUES or word in _OWN_VALUES.get(name, ()) or re.match(r"[-+][a-zA-Z]+o$", word):
            next(words, None)
        elif _COMMAND.match(word) or not word.startswith(("-", "+")):
            return False
    return True


def _waits_pwsh(options: Sequence[str]) -> bool:
    words = iter(options)
    for word in map(str.lower, words):
        if word.startswith("-noe"):
            return True
        if word in _PWSH_VALUES:
            next(words, None)
        elif not word.startswith("-") or word.startswith(("-c", "-f", "-e")):
            return False
    return True
