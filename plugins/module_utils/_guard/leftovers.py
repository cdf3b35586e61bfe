# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Processes of an earlier run that are still in the unit's cgroup, where the guard itself runs too."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, List, Sequence

if TYPE_CHECKING:
    from .._process.types import ProcessInfo


def leftovers(unit: str, root: str = "/proc", cgroup_root: str = "/sys/fs/cgroup") -> List[ProcessInfo]:
    """What lives in the unit's cgroup besides the guard; empty when the guard was not started by that unit."""
    inside = members(_own_cgroup(root), unit, cgroup_root)
    if not inside or inside == [os.getpid()]:
        return []
    from .._process.procfs import ancestors, parent_of, read_process  # only now: a start should cost little

    own = set(ancestors(os.getpid(), root))
    found: List[ProcessInfo] = []
    for pid in inside:
        if pid > 0 and pid not in own and parent_of(pid, root) != os.getpid():
            info = read_process(pid, root)
            if info is not None and not info.zombie:
                found.append(info)
    return found


def _own_cgroup(root: str) -> str:
    try:
        with open(root + "/self/cgroup", encoding="utf-8", errors="replace") as handle:
            return handle.read()
    except OSError:
        return ""


def members(text: str, unit: str, cgroup_root: str) -> List[int]:
    """The pids in the unit's cgroup and below it, in whichever hierarchy systemd manages."""
    pids: List[int] = []
    for line in text.splitlines():
        number, controllers, path = (line.split(":", 2) + ["", ""])[:3]
        if controllers == "name=systemd":
            places: Sequence[str] = (cgroup_root + "/systemd",)
        elif number == "0" and not controllers:
            places = (cgroup_root, cgroup_root + "/unified")
        else:
            continue
        parts = path.split("/")
        if unit not in parts:
            continue
        path_of_unit = "/".join(parts[: parts.index(unit) + 1])
        for place in places:
            for directory, _directories, files in os.walk(place + path_of_unit):
                if "cgroup.procs" in files:
                    pids += _pids(directory + "/cgroup.procs")
    return sorted(set(pids))


def _pids(path: str) -> List[int]:
    try:
        with open(path, encoding="ascii") as handle:
            return [int(word) for word in handle.read().split()]
    except OSError:
        return []  # the cgroup went away, or is of a type that holds no processes
