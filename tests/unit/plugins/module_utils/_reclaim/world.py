# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A small world for the tests of a reclaim: readings, holders, units that obey or don't, a clock that only moves in sleep()."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, Callable, Dict, List, Mapping, Optional, Sequence, Tuple

from ansible_collections.gpufleet.vllm.plugins.module_utils._core.clock import Clock
from ansible_collections.gpufleet.vllm.plugins.module_utils._core.errors import GpuFleetError
from ansible_collections.gpufleet.vllm.plugins.module_utils._gpu.reader import GpuReader
from ansible_collections.gpufleet.vllm.plugins.module_utils._gpu.select import resolve
from ansible_collections.gpufleet.vllm.plugins.module_utils._gpu.types import Gpu, GpuProcess, Snapshot
from ansible_collections.gpufleet.vllm.plugins.module_utils._process.types import ProcessInfo
from ansible_collections.gpufleet.vllm.plugins.module_utils._reclaim.seen import Holder, Start, UnitKey, UnitView, View
from ansible_collections.gpufleet.vllm.plugins.module_utils._systemd.show import UnitStatus

TOTAL_MIB = 97887
NOW = 1_800_000_000.0


class FakeClock(Clock):
    """Time passes only in sleep()."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now

    def time(self) -> float:
        return NOW + self.now

    def sleep(self, seconds: float) -> None:
        self.now += max(seconds, 0.0005)


def gpu(index: int, used: Optional[int] = 0, processes: Sequence[GpuProcess] = (), **more: Any) -> Gpu:
    """One GPU of the default kind."""
    free = None if used is None else TOTAL_MIB - used
    values: Dict[str, Any] = {"total_mib": TOTAL_MIB, "used_mib": used, "free_mib": free, "processes": tuple(processes)}
    values.update(more)
    return Gpu(index, "GPU-%04d-aaaa" % index, "00000000:%02X:00.0" % (index + 1), "NVIDIA RTX PRO 6000", **values)


def snapshot(*gpus: Gpu, **more: Any) -> Snapshot:
    """A reading that succeeded."""
    return Snapshot(True, backend="nvml", count=len(gpus), gpus=tuple(gpus), **more)


@dataclass
class ScriptedReader(GpuReader):
    """Answers with what a function of the time says. ``asked`` counts the readings."""

    answer: Callable[[], Snapshot]
    asked: int = 0
    closed: int = 0

    def snapshot(self, gpus: Optional[Sequence[str]] = None, processes: bool = True) -> Snapshot:
        self.asked += 1
        found = self.answer()
        if not gpus or not found.available:
            return found
        return replace(found, gpus=tuple(resolve(gpus, found.gpus)))

    def close(self) -> None:
        self.closed += 1


def info(pid: int, comm: str = "python3", uid: int = 1000, ppid: int = 1, state: str = "S", **more: Any) -> ProcessInfo:
    """A process as /proc would show it."""
    return ProcessInfo(pid, ppid, comm, state, pid * 10, NOW - 3600, uid, "user%d" % uid, comm, (comm,), "/usr/bin/" + comm, **more)


def holder(pid: int, gpus: Sequence[int] = (0,), used: Optional[int] = 90000, **more: Any) -> Holder:
    """A running, proven process that nothing protects."""
    values: Dict[str, Any] = {
        "pid": pid,
        "gpus": frozenset(gpus),
        "used_mib": dict.fromkeys(gpus, used),
        "state": "running",
        "name": "python3",
        "user": "user1000",
        "unit": None,
        "container": None,
        "vllm": False,
        "orphan": False,
        "protected_by": None,
        "proven": True,
        "start_time": NOW - 3600,
        "info": info(pid),
    }
    values.update(more)
    return Holder(**values)


def orphan(pid: int, gpus: Sequence[int] = (0,), **more: Any) -> Holder:
    """A vLLM worker that belongs to nobody any more."""
    return holder(pid, gpus, **dict({"name": "VLLM::Worker_TP", "vllm": True, "orphan": True}, **more))


def unit(name: str, inactive: bool = False, uid: Optional[int] = None, **more: Any) -> UnitView:
    """A unit that may be stopped."""
    return UnitView(name, uid, more.pop("exists", True), inactive, **more)


def view(
    holders: Sequence[Holder],
    units: Sequence[UnitView] = (),
    selected: Sequence[int] = (0,),
    starts: Sequence[Start] = (),
    **more: Any,
) -> View:
    """A look at a host; each GPU's use is the sum of what its holders have."""
    gpus = []
    for index in range(max([index for each in holders for index in each.gpus] + list(selected)) + 1):
        used = sum(each.used_mib.get(index) or 0 for each in holders)
        gpus.append(gpu(index, used))
    of_units: Mapping[UnitKey, UnitView] = {each.key: each for each in units}
    return View(snapshot(*gpus, **more), tuple(selected), tuple(holders), of_units, NOW, tuple(starts))


@dataclass
class Behaviour:
    """What a unit does when it is stopped: ends ``after`` seconds (None: never by itself), dies of KILL or not."""

    after: Optional[float] = 0.2
    killable: bool = True
    leaves: Tuple[int, ...] = ()  # processes that outlive it in its cgroup


@dataclass
class FakeSystemd:
    """A manager of units that takes their behaviours. ``log`` is everything that was asked, in order."""

    clock: Clock
    units: Dict[str, UnitStatus] = field(default_factory=dict)
    behaviours: Dict[str, Behaviour] = field(default_factory=dict)
    members: Dict[str, List[int]] = field(default_factory=dict)
    log: List[Tuple[str, str]] = field(default_factory=list)
    why_not: Optional[str] = None
    broken: Optional[str] = None
    on_stopped: Callable[[str], None] = lambda unit: None
    along: Dict[str, List[str]] = field(default_factory=dict)
    triggers: Dict[str, List[str]] = field(default_factory=dict)
    _asked: Dict[str, float] = field(default_factory=dict)

    def available(self) -> Optional[str]:
        return self.why_not

    def status(self, name: str) -> UnitStatus:
        return self.statuses([name])[name]

    def statuses(self, names: Sequence[str]) -> Dict[str, UnitStatus]:
        if self.broken is not None:
            raise GpuFleetError(self.broken)
        for name in names:
            asked = self._asked.get(name)
            after = self.behaviours.get(name, Behaviour()).after
            if asked is not None and after is not None and self.clock.monotonic() - asked >= after:
                self._down(name)
        missing = UnitStatus("", "not-found", "inactive", "dead")
        return {name: self.units.get(name, replace(missing, unit=name)) for name in names}

    def stop(self, name: str, no_block: bool = True, timeout: float = 30.0) -> None:
        assert no_block, "a blocking stop can't be bounded"
        self.log.append(("stop", name))
        self.units[name] = replace(self.units[name], active_state="deactivating", sub_state="stop-sigterm", job=7)
        self._asked[name] = self.clock.monotonic()

    def kill(self, name: str, signal: str = "SIGKILL", whom: str = "all") -> None:
        self.log.append(("kill", name))
        assert (signal, whom) == ("SIGKILL", "all")
        if self.behaviours.get(name, Behaviour()).killable:
            self._down(name)

    def cgroup_pids(self, name: str, status: Optional[UnitStatus] = None) -> List[int]:
        return list(self.members.get(name, []))

    def stopped_with(self, name: str) -> List[str]:
        return list(self.along.get(name, []))

    def triggers_of(self, name: str) -> List[str]:
        return list(self.triggers.get(name, []))

    def _down(self, name: str) -> None:
        if self.units[name].active_state == "inactive":
            return
        self.units[name] = replace(self.units[name], active_state="inactive", sub_state="dead", main_pid=0, job=0)
        self.members[name] = list(self.behaviours.get(name, Behaviour()).leaves)
        self._asked.pop(name, None)
        self.on_stopped(name)


def active(name: str, main_pid: int = 100, **more: Any) -> UnitStatus:
    """A unit that runs."""
    return UnitStatus(name, "loaded", "active", "running", main_pid=main_pid, **more)
