# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Who runs from an environment right now.

vLLM's children retitle themselves, so that their command line names no path; what they have mapped (torch's libraries) does.
"""

from __future__ import annotations

import os
from typing import List, NamedTuple, Optional, Sequence


class User(NamedTuple):
    """A process that runs from an environment. ``unit`` is its systemd unit where it has one."""

    pid: int
    name: str
    unit: Optional[str]

    def __str__(self) -> str:
        return "%s (pid %d%s)" % (self.name, self.pid, ", " + self.unit if self.unit else "")


def users_of(directories: Sequence[str], root: str = "/proc") -> List[User]:
    """The processes whose program, arguments or mapped files lie under one of these directories, by pid."""
    prefixes = sorted({directory.rstrip("/") + "/" for directory in directories})
    found = []
    for name in _names(root):
        if name.isdigit() and int(name) != os.getpid() and _uses("%s/%s" % (root, name), prefixes):
            found.append(User(int(name), _comm("%s/%s" % (root, name)), _unit("%s/%s" % (root, name))))
    return sorted(found)


def _uses(base: str, prefixes: Sequence[str]) -> bool:
    try:
        program = os.readlink(base + "/exe")
    except OSError:
        program = ""  # a kernel thread, or gone
    arguments = _read(base + "/cmdline").split("\0")[:2]
    if any(text.startswith(prefix) for text in [program] + arguments for prefix in prefixes):
        return True
    maps = _read(base + "/maps")
    return any(" " + prefix in maps for prefix in prefixes)


def _comm(base: str) -> str:
    return _read(base + "/comm").strip() or "?"


def _unit(base: str) -> Optional[str]:
    for line in _read(base + "/cgroup").splitlines():
        for part in reversed(line.split("/")):
            if part.endswith(".service"):
                return part
    return None


def _read(path: str) -> str:
    try:
        with open(path, encoding="utf-8", errors="replace") as handle:
            return handle.read()
    except OSError:
        return ""


def _names(directory: str) -> List[str]:
    try:
        return os.listdir(directory)
    except OSError:
        return []
