# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What is to be done about it: what to stop, whom to signal, whom to leave alone, and why."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Dict, Optional, Tuple

from .seen import Holder, UnitView, View


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
