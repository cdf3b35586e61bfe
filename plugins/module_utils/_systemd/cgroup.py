# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The processes of a unit, read from its cgroup in every form in which hosts mount cgroups."""

from __future__ import annotations

import os
from typing import List, Set

# v2 alone; systemd's own hierarchy beside v1 controllers; the v2 tree that the hybrid form mounts next to them.
_MOUNTS = ("sys/fs/cgroup", "sys/fs/cgroup/systemd", "sys/fs/cgroup/unified")


def cgroup_pids(unit: str, control_group: str, unit_slice: str, root: str = "/") -> List[int]:
    """Pids in the unit's cgroup and all below it, sorted; [] where there is no such cgroup.

    ``control_group`` and ``unit_slice`` are systemd's properties. A unit that is inactive has no ``ControlGroup``
    any more, while processes that nobody could kill may still be in it, so the place where it would be is looked
    at as well.
    """
    paths = {control_group} if control_group else {"/%s/%s" % (unit_slice or "system.slice", unit)}
    pids: Set[int] = set()
    for mount in _MOUNTS:
        for path in paths:
            for directory, _below, files in os.walk(os.path.join(root, mount, path.strip("/"))):
                if "cgroup.procs" in files:
                    pids |= _read(os.path.join(directory, "cgroup.procs"))
    return sorted(pids)


def _read(path: str) -> Set[int]:
    try:
        with open(path, encoding="ascii") as handle:
            return {int(line) for line in handle if line.strip().isdigit()} - {0}
    except OSError:
        # ENOENT: the cgroup went away while we walked. EOPNOTSUPP: a threaded cgroup lists its processes above.
        return set()
