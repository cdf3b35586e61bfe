# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Shells: whether somebody sits at one, or it runs what it was given."""

from __future__ import annotations

import re

from .names import PYTHON, base, program_of
from .types import ProcessInfo

_SHELL = re.compile(r"(?:r?ba|a|da|z|r?k|mk|pdk|lk|ok|ya|c|tc|fi|xon|o|pw)?sh[\d.-]*$|nu$|elvish$|pwsh-preview$")
# Options of shells: those that only make sense where somebody sits there, and those that the next word belongs to.
_SHELL_FILES = ("--init-file", "--rcfile", "--init-command", "-C", "-NoExit")
_SHELL_VALUES = ("-o", "+o", "-O", "+O", "--config", "--env-config", "--rc", "-WorkingDirectory")


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
    if argv[0].startswith("-"):
        return True  # a login shell, whatever it is called: -su
    if not _SHELL.match(base(argv[0])):
        return False
    words = iter(argv[1:])
    for word in words:
        if word in ("-i", "-l", "--login", "--interactive") or word in _SHELL_FILES:
            return True
        if word in _SHELL_VALUES:
            next(words, None)
        elif not word.startswith(("-", "+")) or word.startswith("--command") or re.match(r"-[a-zA-Z]*c", word):
            return bool(re.match(r"-[a-zA-Z]*i", word))
    return True
