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


@dataclass(frozen=True)
class Stopped:
    """A service that was stopped. ``served`` is False for one that was on its way up or down, or crashing."""

    service: ManagedService
    served: bool


@dataclass
class Undo:
    """What has been changed so far and can be put back, in the order in which it was changed."""

    changes: List[FileChange] = field(default_factory=list)
    unit_text: bool = False
    stopped: List[Stopped] = field(default_factory=list)
    disabled: List[str] = field(default_factory=list)
    started: Optional[str] = None
