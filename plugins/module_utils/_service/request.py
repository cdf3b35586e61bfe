# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What is asked of one service on one host."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Mapping, Optional, Tuple

from .._unit.spec import GuardSpec

STATES = ("started", "stopped", "restarted", "present", "absent")

# What a GPU may still show as used and yet count as free: the driver's own reserve and an idle context's remains.
FREE_MAX_USED_MIB = 1024


@dataclass(frozen=True)
class Request:
    """The parameters of ``vllm_service``, checked and typed. Durations are seconds."""

    name: str
    state: str = "started"
    enabled: Optional[bool] = None
    model: Optional[str] = None
    served_name: Optional[str] = None
    gpus: Tuple[str, ...] = ()
    host: str = "0.0.0.0"
    port: int = 8000
    args: Mapping[str, Any] = field(default_factory=dict)
    env: Mapping[str, str] = field(default_factory=dict)
    secrets: Mapping[str, str] = field(default_factory=dict)
    executable: str = "/opt/vllm/bin/vllm"
    user: str = "vllm"
    group: str = "vllm"
    unit_options: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    guard: GuardSpec = GuardSpec()
    replace: str = "none"  # "none", "conflicting", or "listed" with replace_units
    replace_units: Tuple[str, ...] = ()
    drain_timeout: float = 0.0
    stop_timeout: float = 60.0
    ready_timeout: float = 1800.0
    steady_time: float = 0.0
    smoke: bool = True
    rollback: bool = True
    overlap: str = "auto"  # "auto" or "never"
    warm_cache: bool = True
    preflight: str = "enforce"
    model_facts_path: Optional[str] = None

    @property
    def declares_files(self) -> bool:
        """Whether this state needs the unit's files (and therefore ``model`` and the GPUs)."""
        return self.state in ("started", "restarted", "present")

    @property
    def wants_running(self) -> bool:
        """Whether the service has to serve at the end."""
        return self.state in ("started", "restarted")
