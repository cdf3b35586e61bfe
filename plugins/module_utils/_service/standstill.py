# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""When waiting for memory helps nobody: what is missing is held by processes that live on, and that are not ours to end."""

from __future__ import annotations

from typing import AbstractSet, Dict, FrozenSet, List, Optional, Sequence, Tuple

from .._core.errors import GpuFleetError
from .._gpu.reader import GpuReader
from .._gpu.types import GpuProcess, Snapshot
from .._reclaim.proof import TOLERANCE_MIB, held_mib
from .memory import Limit
from .ports import Ports
from .request import FREE_MAX_USED_MIB

# For so long it has to be the same processes, holding as much: who is about to end gets his time.
_STEADY_S = 5.0
# Looking at processes costs more than reading the memory. Most memory is back before the first look.
_FIRST_LOOK_S = 1.0
_LOOK_S = 1.0

# A process for good: its pid, and its start in clock ticks.
_Identity = Tuple[int, Optional[int]]


class Standstill:
    """Asked while memory is missing; ``found`` says who holds it once that has been the same for long enough, None before."""

    def __init__(self, reader: GpuReader, limits: Sequence[Limit], leaving: AbstractSet[str], ports: Ports) -> None:
        """``leaving`` are units that were stopped: what is left of them is on its way out, however long that takes."""
        self._reader = reader
        self._limits: Dict[int, Limit] = {limit.gpu: limit for limit in limits}
        # Who of a divided card's processes is on the instance that is meant is not known.
        self._blind = any(limit.mig for limit in limits)
        self._leaving = leaving
        self._ports = ports
        self._next_look = ports.clock.monotonic() + _FIRST_LOOK_S
        self._since: Optional[float] = None
        self._who: FrozenSet[_Identity] = frozenset()
        self._most = 0
        self.found: Optional[str] = None

    def give_up(self, _seen: Snapshot) -> Optional[str]:
        """Why waiting makes no sense any more, None while it may; looks who is there once a second."""
        now = self._ports.clock.monotonic()
        if self._blind or now < self._next_look:
            return None
        self._next_look = now + _LOOK_S
        holders = self._holders(self._reader.snapshot([str(index) for index in self._limits], processes=True))
        who = frozenset((each.pid, each.start_ticks) for each in holders)
        held = sum(each.used_mib or 0 for each in holders)
        if not holders:
            self._since = None
            return None
        if self._since is None or who != self._who or held < self._most - TOLERANCE_MIB:
            self._since, self._who, self._most = now, who, held
        self._most = max(self._most, held)
        if now - self._since < _STEADY_S:
            return None
        names = sorted({"pid %d (%s)" % (each.pid, each.name) for each in holders})
        seen = "%s lives on, and has held it for %d s" if len(names) == 1 else "%s live on, and have held it for %d s"
        self.found = seen % (", ".join(names), now - self._since)
        return self.found

    def _holders(self, snapshot: Snapshot) -> List[GpuProcess]:
        """Those because of whom waiting does not help; [] while it may."""
        over = [gpu for gpu in snapshot.gpus if gpu.index in self._limits and (held_mib(gpu) or 0) > self._limits[gpu.index].free_mib]
        if not snapshot.available or not over or any(held_mib(gpu) is None or not gpu.processes_reliable for gpu in snapshot.gpus):
            return []
        ending = self._ending({each.unit for gpu in over for each in gpu.processes if each.unit and not each.user_unit})
        staying = {gpu.index: [each for each in gpu.processes if _stays(each, ending)] for gpu in over}
        sizes = {index: sum(each.used_mib or 0 for each in found) for index, found in staying.items()}
        blocked = [gpu for gpu in over if sizes[gpu.index] > self._limits[gpu.index].fits_mib]
        if not blocked and all((held_mib(gpu) or 0) - sizes[gpu.index] <= FREE_MAX_USED_MIB for gpu in over):
            blocked = over  # there may be room enough, and all that is to come back has
        return [each for gpu in blocked for each in staying[gpu.index]]

    def _ending(self, units: AbstractSet[str]) -> AbstractSet[str]:
        """Those of these units whose processes are on their way out: we have stopped them, or somebody else, and it may take its time."""
        others = sorted(units - self._leaving)
        try:
            statuses = self._ports.systemd.statuses(others) if others else {}
        except GpuFleetError:
            return units  # nobody can say
        return self._leaving | {unit for unit, status in statuses.items() if status.stopping or status.inactive}


def _stays(process: GpuProcess, ending: AbstractSet[str]) -> bool:
    """Whether it lives, is known, belongs to somebody, and says how much it holds."""
    known = process.state == "running" and process.name and process.used_mib and not process.orphan
    return bool(known) and (process.user_unit or process.unit not in ending)
