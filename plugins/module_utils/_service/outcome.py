# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a run has done so far: what it reports, and what it can undo."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Dict, List, Optional

from .._core.files import FileChange
from .._server.ready import ReadyState
from .._unit.found import ManagedService


@dataclass
class Outcome:
    """What happened, while it happens; the module's result is made from it.

    ``timings`` are seconds by phase; ``downtime`` is None while nothing is known to serve again.
    """

    timings: Dict[str, Optional[float]] = field(default_factory=dict)
    replaced: List[Dict[str, Any]] = field(default_factory=list)
    ready: Optional[ReadyState] = None
    rolled_back: bool = False
    diagnosis: Optional[Dict[str, Any]] = None
    warnings: List[str] = field(default_factory=list)
    ended_processes: List[Dict[str, Any]] = field(default_factory=list)
    touched: bool = False

    def replace(self, unit: str, name: str, result: str, seconds: float) -> None:
        """A service that had to make room was stopped. One that an earlier attempt has stopped is told once."""
        if all(entry["unit"] != unit for entry in self.replaced):
            self.replaced.append({"unit": unit, "name": name, "result": result, "seconds": round(seconds, 3)})


@dataclass(frozen=True)
class Stopped:
    """A service that was stopped. ``served`` is False for one that was on its way up or down, or crashing."""

    service: ManagedService
    served: bool


@dataclass
class Undo:
    """What has been, or is just about to be, changed and can be put back, in the order in which it was changed.

    ``down_since`` is a time of the monotonic clock and ``down_at`` the same one of the wall clock: from then on nothing served.
    """

    changes: List[FileChange] = field(default_factory=list)
    unit_text: bool = False
    stopped: List[Stopped] = field(default_factory=list)
    disabled: List[str] = field(default_factory=list)
    enabled: List[str] = field(default_factory=list)
    started: Optional[str] = None
    down_since: Optional[float] = None
    down_at: Optional[float] = None

    @property
    def empty(self) -> bool:
        """Whether there is nothing to put back."""
        return not (self.changes or self.stopped or self.disabled or self.started)

    def will_stop(self, service: ManagedService, served: bool) -> None:
        """Remember a service that is about to be stopped. What it was at the first time counts."""
        if all(known.service.unit != service.unit for known in self.stopped):
            self.stopped.append(Stopped(service, served))
