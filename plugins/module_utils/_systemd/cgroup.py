# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The processes of a unit, read from its cgroup in every form in which hosts mount cgroups."""

from __future__ import annotations

import os
from typing import List, Optional, Set

# v2 alone; systemd's own hierarchy beside v1 controllers; the v2 tree that the hybrid form mounts next to them.
_MOUNTS = ("sys/fs/cgroup", "sys/fs/cgroup/systemd", "sys/fs/cgroup/unified")


def cgroup_pids(unit: str, control_group: str, unit_slice: str, root: str = "/", uid: Optional[int] = None) -> List[int]:
    """Pids in the unit's cgroup and all below it, sorted; [] where there is no such cgroup.

    ``control_group`` and ``unit_slice`` are systemd's properties. A unit that is inactive has no ``ControlGroup``
    any more, while processes that nobody could kill may still be in it, so the place where it would be is looked
    at instead: in its slice, below its own manager (``uid`` is None for the system's). A unit that its manager does not know has
    no slice either, and no place: what another manager runs under the same name is not its.
    """
    path = control_group or _place(unit, unit_slice, uid)
    pids: Set[int] = set()
    for mount in _MOUNTS if path else ():
        for directory, _below, files in os.walk(os.path.join(root, mount, path.strip("/"))):
            if "cgroup.procs" in files:
                pids |= _read(os.path.join(directory, "cgroup.procs"))
    return sorted(pids)


def _place(unit: str, unit_slice: str, uid: Optional[int]) -> str:
    """Where a manager puts a unit of this slice; empty where the slice is not known."""
    if not unit_slice:
        return ""
    names = [] if uid is None else ["user.slice", "user-%d.slice" % uid, "user@%d.service" % uid]
    if unit_slice != "-.slice":
        words = unit_slice[: -len(".slice")].split("-")
        # a-b.slice lies in a.slice
        names += ["%s.slice" % "-".join(words[: count + 1]) for count in range(len(words))]
    return "/" + "/".join(names + [unit])


def _read(path: str) -> Set[int]:
    try:
        with open(path, encoding="ascii") as handle:
            return {int(line) for line in handle if line.strip().isdigit()} - {0}
    except OSError:
        # ENOENT: the cgroup went away while we walked. EOPNOTSUPP: a threaded cgroup lists its processes above.
        return set()
