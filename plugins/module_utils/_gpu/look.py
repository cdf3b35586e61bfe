# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Looking at the processes of a reading: who they are, and whether anybody answers for them."""

from __future__ import annotations

import os
import re
from typing import Callable, Dict, FrozenSet, Mapping, Optional, Sequence, Set, Tuple

from .._core.errors import GpuFleetError
from .._process.inspect import Inspection
from .._process.procfs import ancestors
from .._process.rules import serverless, vllm_reason
from .._process.sessions import session_state
from .._process.types import CgroupOwner, ProcessInfo
from . import raw
from .attribution import Attribution
from .driver import Driver
from .worker import WorkerGone

# More titles than these that can't be read, and something else is wrong.
_MOST_UNTITLED = 64


def look(
    reading: raw.RawReading,
    holders: Mapping[int, FrozenSet[str]],
    driver: Driver,
    roots: Tuple[str, str],
    unit_state: Callable[[str], str],
    protect: Sequence[str],
) -> Attribution:
    """Everything about the processes of a reading and those that hold a node. ``roots`` are where /proc and /run are."""
    proc, run = roots
    inspection = _inspect({process.pid for gpu in reading.gpus for process in gpu.processes or ()}, holders, driver)
    own = frozenset(ancestors(os.getpid(), proc) + driver.helpers)
    return Attribution(inspection, Belongs(unit_state, inspection, run), protect, own)


def _inspect(pids: Set[int], holders: Mapping[int, FrozenSet[str]], driver: Driver) -> Inspection:
    """Look in the child, again without the title of a process whose title can't be read in time."""
    untitled: Set[int] = set()
    while True:
        try:
            return driver.look(pids, holders, frozenset(untitled))
        except WorkerGone as gone:
            match = re.match(r"/proc/(\d+)$", gone.step)
            if match is None or int(match.group(1)) in untitled or len(untitled) >= _MOST_UNTITLED:
                raise GpuFleetError("Reading the host's processes failed: %s." % gone.detail) from gone
            untitled.add(int(match.group(1)))


class Belongs:
    """Whether somebody answers for a process: an active unit, or a login session."""

    def __init__(self, ask_unit: Callable[[str], str], inspection: Inspection, run_root: str) -> None:
        self._ask_unit = ask_unit
        self._inspection = inspection
        self._run_root = run_root
        self._states: Dict[str, str] = {}

    def __call__(self, info: ProcessInfo, owner: CgroupOwner) -> Optional[bool]:
        """None: its cgroup names neither, or it is not vLLM's, so that nobody needs to be asked."""
        family = self._inspection.family(info.pid)
        if vllm_reason(info, owner, family) is None:
            return None
        if owner.session is not None:
            if session_state(owner.session, self._run_root) == "closing":
                # the user has logged out: a whole server left running on purpose is theirs, workers without one are nobody's
                return not serverless(info, family)
            return owner.scope is None or self._active(owner.scope)
        if owner.unit is None:
            return None
        return self._active("user@%d.service" % (owner.uid or 0) if owner.user_unit else owner.unit)

    def _active(self, unit: str) -> bool:
        if unit not in self._states:
            self._states[unit] = self._ask_unit(unit)
        return self._states[unit] not in ("inactive", "failed")
