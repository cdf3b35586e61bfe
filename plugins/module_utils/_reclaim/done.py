# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What was done, in the shape that the module returns."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, Dict, Optional, Tuple

from .._process.procfs import user_name
from .planned import Skip
from .seen import Holder, UnitKey


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
