# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The plain data of a reclaim: who holds, which unit answers for it, what was done, what is left."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, Dict, FrozenSet, Mapping, Optional, Tuple

from .._gpu.types import Gpu, Snapshot
from .._process.procfs import user_name
from .._process.types import ProcessInfo

# (unit, uid of the user manager it belongs to, or None for the system's)
UnitKey = Tuple[str, Optional[int]]


@dataclass(frozen=True)
class Holder:
    """One process with everything it holds on this host's GPUs.

    ``gpus`` are driver indices. ``used_mib`` maps those on which the driver lists it to MiB, None where the driver does not say
    how much; on the others it only has the device node open. ``state`` is running, zombie, gone or not_visible. ``protected_by``
    is None for a process that may be signalled. A container is told apart from that in ``container``; ``stop_command`` is how
    it is stopped, ``runtime`` what runs it. ``kept_by`` says which scheduler or runtime answers for it without a container of its own.
    ``info`` is the process as /proc shows it, None where it shows none.
    """

    pid: int
    gpus: FrozenSet[int]
    used_mib: Mapping[int, Optional[int]]
    state: str
    name: str
    user: Optional[str]
    unit: Optional[UnitKey]
    container: Optional[str]
    vllm: bool
    orphan: bool
    protected_by: Optional[str]
    proven: bool
    start_time: Optional[float]
    info: Optional[ProcessInfo]
    stop_command: Optional[str] = None
    runtime: Optional[str] = None
    kept_by: Optional[str] = None

    @property
    def identity(self) -> Tuple[int, int]:
        """What names this process for good: pid and start in clock ticks."""
        return self.pid, -1 if self.info is None else self.info.start_ticks


@dataclass(frozen=True)
class UnitView:
    """One unit as a plan needs it.

    ``inactive`` means that nothing runs and nothing is about to. ``protected_by`` says why it must not be stopped, None when
    it may. ``main_pid`` is 0 when there is none. ``user`` names the owner of a user unit. ``takes_along`` are the running units
    that systemd would stop with it. ``supervisor`` names the process of a scope that would start its GPU processes again.
    ``helpers`` are processes that are protected by themselves and end with their unit where that is named. ``unit`` is what
    systemd calls it; ``aliases`` are other names by which it was asked for.

    Of a unit that the request names: ``rising`` means that systemd is about to start it (or to start it again), ``loads`` that its
    vLLM server has just begun and serves nobody yet, ``elsewhere`` which GPUs processes of its own hold that left its cgroup, and
    ``opens_driver`` that a process of it has the driver open, though the driver lists none.
    """

    unit: str
    uid: Optional[int]
    exists: bool
    inactive: bool
    main_pid: int = 0
    protected_by: Optional[str] = None
    host_unit: Optional[str] = None
    user: Optional[str] = None
    takes_along: Tuple[str, ...] = ()
    supervisor: Optional[str] = None
    helpers: FrozenSet[int] = frozenset()
    aliases: FrozenSet[str] = frozenset()
    rising: bool = False
    loads: bool = False
    elsewhere: FrozenSet[int] = frozenset()
    opens_driver: bool = False

    @property
    def key(self) -> UnitKey:
        """What it is found by."""
        return self.unit, self.uid

    @property
    def label(self) -> str:
        """The name for people."""
        return self.unit if self.uid is None else "%s of user %s" % (self.unit, self.user or self.uid)


@dataclass(frozen=True)
class Start:
    """A unit whose server loads its model on these GPUs, since ``since`` (seconds since the epoch)."""

    unit: UnitKey
    gpus: FrozenSet[int]
    since: float


@dataclass(frozen=True)
class View:
    """One look at a host: the GPUs asked for, all holders, the units that matter. ``now`` is seconds since the epoch.

    ``units`` finds a unit by each of the names by which it was asked for, so that one unit may stand there more than once.
    ``claims`` are the GPUs of units that do not serve yet, for which their guard waits or has let them start.
    ``unknown_users`` are those of ``users`` that have neither an account nor a process here.
    """

    snapshot: Snapshot
    selected: Tuple[int, ...]
    holders: Tuple[Holder, ...]
    units: Mapping[UnitKey, UnitView]
    now: float
    starts: Tuple[Start, ...] = ()
    unknown_users: Tuple[str, ...] = ()
    claims: Mapping[UnitKey, FrozenSet[int]] = field(default_factory=dict)

    def unit_of(self, holder: Holder) -> Optional[UnitView]:
        """The unit that answers for a process, by whatever name its cgroup has it; None where it has none."""
        return None if holder.unit is None else self.units.get(holder.unit)

    def members(self, unit: UnitView) -> Tuple[Holder, ...]:
        """The running processes on GPUs for which a unit answers."""
        return tuple(holder for holder in self.holders if holder.state == "running" and self.unit_of(holder) == unit)

    @property
    def gpus(self) -> Tuple[Gpu, ...]:
        """The GPUs asked for."""
        return tuple(gpu for gpu in self.snapshot.gpus if gpu.index in self.selected)

    @property
    def processes_reliable(self) -> bool:
        """Whether the driver's lists may be acted on: not when one makes no sense, nor when a GPU asked for does not answer."""
        bad = [gpu for gpu in self.snapshot.gpus if not gpu.processes_reliable]
        elsewhere = all(gpu.unanswered and gpu.index not in self.selected for gpu in bad)
        return self.snapshot.processes_reliable or (bool(bad) and elsewhere)

    @property
    def unanswered(self) -> Tuple[Gpu, ...]:
        """The GPUs that were not asked for and do not answer: what is on them is not known."""
        return tuple(gpu for gpu in self.snapshot.gpus if gpu.unanswered and gpu.index not in self.selected)


@dataclass(frozen=True)
class UnitStop:
    """A unit to stop: ``members`` are the GPU processes it answers for, ``gpus`` what they hold, also of GPUs not selected."""

    unit: UnitView
    gpus: Tuple[int, ...]
    members: Tuple[Holder, ...]
    reason: str

    @classmethod
    def of(cls, view: View, unit: UnitView, reason: str) -> UnitStop:
        """The stop of a unit with all that it has on GPUs."""
        members = tuple(sorted(view.members(unit), key=lambda each: each.pid))
        return cls(unit, tuple(sorted({index for member in members for index in member.gpus})), members, reason)

    @property
    def pids(self) -> Tuple[int, ...]:
        """The pids of its members."""
        return tuple(member.pid for member in self.members)


@dataclass(frozen=True)
class Signal:
    """A process to end."""

    holder: Holder
    reason: str


@dataclass(frozen=True)
class Skip:
    """Something that is left alone, and why. ``pid`` is None for a unit without a process.

    ``rightful`` means that it may go on holding its memory: somebody's running process that this run was not asked to end.
    """

    pid: Optional[int]
    name: str
    reason: str
    rightful: bool = False

    def to_result(self) -> Dict[str, Any]:
        """The entry for ``left_alone``."""
        return {"pid": self.pid, "name": self.name, "reason": self.reason}


@dataclass(frozen=True)
class Plan:
    """What a run would do, in order: units first, then processes. ``skips`` are the holders that it leaves alone."""

    stops: Tuple[UnitStop, ...] = ()
    signals: Tuple[Signal, ...] = ()
    skips: Tuple[Skip, ...] = ()

    @property
    def empty(self) -> bool:
        """Whether there is nothing to do."""
        return not self.stops and not self.signals


@dataclass(frozen=True)
class StoppedUnit:
    """How one unit was stopped.

    ``result`` is ``stopped`` (it ended by itself when asked), ``killed`` (it had to be killed as a whole), ``swept`` (processes
    that outlived the unit were ended one by one), ``inactive`` (nothing ran) or ``failed`` (it still runs, or ``survivors``
    do, as ``detail`` says). ``would_stop`` is check mode's. ``uid`` names the user manager of a user unit. ``restarted``: it runs
    because somebody starts it again each time it is stopped. ``members`` are the GPU processes that end with it, on whatever GPU.
    """

    unit: str
    result: str
    seconds: float
    survivors: Tuple[int, ...] = ()
    uid: Optional[int] = None
    detail: Optional[str] = None
    restarted: bool = False
    members: Tuple[Holder, ...] = ()

    @property
    def changed(self) -> bool:
        """Whether anything was done to it."""
        return self.result != "inactive"

    @property
    def ok(self) -> bool:
        """Whether nothing of it runs any more."""
        return self.result != "failed"

    def to_result(self) -> Dict[str, Any]:
        """The entry for ``stopped_units``."""
        user = None if self.uid is None else user_name(self.uid)
        return {
            "unit": self.unit,
            "user": user,
            "result": self.result,
            "seconds": round(self.seconds, 3),
            "processes": [{"pid": each.pid, "name": each.name, "gpus": sorted(each.gpus)} for each in self.members],
        }


@dataclass(frozen=True)
class Signalled:
    """What became of a process that was to be ended.

    ``outcome`` is ``terminated`` (it ended after TERM), ``killed``, ``survived`` (not even KILL ended it), ``gone`` (it had
    ended before), ``refused`` (its identity could not be proven: nothing was sent), or ``would_signal`` in check mode.
    """

    holder: Holder
    signals: Tuple[str, ...]
    outcome: str
    detail: Optional[str] = None

    def ended_late(self) -> Signalled:
        """The same process after it did end of its KILL."""
        return replace(self, outcome="killed", detail=None)

    def to_result(self) -> Dict[str, Any]:
        """The entry for ``signalled``."""
        holder = self.holder
        return {
            "pid": holder.pid,
            "name": holder.name,
            "user": holder.user,
            "unit": None if holder.unit is None else holder.unit[0],
            "gpus": sorted(holder.gpus),
            "signals": list(self.signals),
            "outcome": self.outcome,
        }


@dataclass(frozen=True)
class Unkillable:
    """A process that can't be ended from here. ``advice`` is what a person can do."""

    pid: int
    name: str
    state: str
    wchan: Optional[str]
    advice: str
    needs_reboot: bool

    def to_result(self) -> Dict[str, Any]:
        """The entry for ``unkillable``."""
        return {"pid": self.pid, "name": self.name, "state": self.state, "wchan": self.wchan, "advice": self.advice}


@dataclass
class Timings:
    """Where the time went, in seconds."""

    total: float = 0.0
    stop: float = 0.0
    signal: float = 0.0
    settle: float = 0.0

    def to_result(self) -> Dict[str, float]:
        """The contract's ``timings``."""
        return {name: round(value, 3) for name, value in vars(self).items()}


@dataclass(frozen=True)
class GpuReset:
    """One GPU that was to be reset: ``done``, or why not. ``planned`` is check mode's: a run would reset it."""

    gpu: int
    done: bool
    detail: Optional[str] = None
    planned: bool = False

    def to_result(self) -> Dict[str, Any]:
        """The entry for ``resets``."""
        return {"gpu": self.gpu, "done": self.done, "detail": self.detail}


@dataclass(frozen=True)
class ShmEntry:
    """A file in shared memory. ``inode`` and ``mtime`` (ns) tell whether a second look saw the same file."""

    path: str
    mib: int
    inode: int
    mtime: int
    uid: int
    pattern: str

    def to_result(self) -> Dict[str, Any]:
        """The entry for ``shm_removed``."""
        return {"path": self.path, "mib": self.mib}


@dataclass
class Done:
    """What a run has done so far; it grows rung by rung, and a failure carries it whole.

    Keys name a unit, or a process by pid and start ticks. ``attempts`` counts the stops of a unit: one that somebody starts
    again is stopped again, but not for ever.
    """

    stopped: Dict[UnitKey, StoppedUnit] = field(default_factory=dict)
    attempts: Dict[UnitKey, int] = field(default_factory=dict)
    signalled: Dict[Tuple[int, int], Signalled] = field(default_factory=dict)
    refused: Dict[Tuple[int, int], Skip] = field(default_factory=dict)
    timings: Timings = field(default_factory=Timings)
    resets: Tuple[GpuReset, ...] = ()
    shm_removed: Tuple[ShmEntry, ...] = ()

    def record_stop(self, stopped: StoppedUnit) -> None:
        """Keep how a unit was stopped; of several stops of one unit the last result stands, with the time of all."""
        key = (stopped.unit, stopped.uid)
        before = self.stopped.get(key)
        self.attempts[key] = self.attempts.get(key, 0) + 1
        if before is not None:
            known = {each.identity for each in before.members}
            members = before.members + tuple(each for each in stopped.members if each.identity not in known)
            stopped = replace(stopped, seconds=before.seconds + stopped.seconds, members=members)
        if stopped.changed or before is None:
            self.stopped[key] = stopped

    @property
    def changed(self) -> bool:
        """Whether anything was stopped, signalled, reset or removed."""
        return bool(
            any(each.changed for each in self.stopped.values())
            or self.signalled
            or any(each.done for each in self.resets)
            or self.shm_removed
        )
