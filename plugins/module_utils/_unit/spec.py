# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The declared service as plain data, and its defaults."""

from __future__ import annotations

import math
import posixpath
from dataclasses import dataclass, field
from typing import Any, Mapping, Optional, Tuple

from .slug import slug as make_slug

# vLLM 0.33: `vllm/config/cache.py`.
DEFAULT_UTILIZATION = 0.92
# vLLM's own defaults: no drain, and five seconds in which workers may clean up.
DEFAULT_SHUTDOWN_TIMEOUT_S = 0.0
DEFAULT_WORKER_TIMEOUT_S = 5.0
# Between "the workers had their time" and "the server is gone" vLLM waits four seconds itself; the rest is ours.
_STOP_MARGIN_S = 4.0 + 11.0
# Fifteen seconds are too short for NCCL's own clean-up on a busy machine; a minute costs nothing when all goes well.
DEFAULT_STOP_TIMEOUT_S = 60.0
# What one load may take at most before three of them would no longer fit the start limit's interval.
LOAD_ALLOWANCE_S = 1800.0
RESTART_S = 5.0


@dataclass(frozen=True)
class GuardSpec:
    """The memory guard before the server. ``timeout`` and ``settle`` in seconds."""

    enabled: bool = True
    timeout: float = 300.0
    margin_mib: int = 0
    settle: float = 1.0
    path: str = "/usr/local/lib/gpufleet/gpu-guard.pyz"
    python: str = "/usr/bin/python3"


@dataclass(frozen=True)
class ServiceSpec:
    """One vLLM service as it should be. GPUs are indices in PCI bus order.

    ``gpu_uuids`` is only needed for MIG instances, which have no index that CUDA understands. ``env`` and
    ``secrets`` are the user's; what the unit sets by itself stands in ``_unit/environment.py``. ``home`` empty
    means ``/var/lib/vllm/<slug>``.
    """

    name: str
    model: str
    served_name: str
    gpus: Tuple[int, ...]
    port: int = 8000
    host: str = "0.0.0.0"
    gpu_uuids: Tuple[str, ...] = ()
    args: Mapping[str, Any] = field(default_factory=dict)
    env: Mapping[str, str] = field(default_factory=dict)
    secrets: Mapping[str, str] = field(default_factory=dict)
    executable: str = "/opt/vllm/bin/vllm"
    user: str = "vllm"
    group: str = "vllm"
    unit_options: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    guard: GuardSpec = field(default_factory=GuardSpec)
    stop_timeout: float = DEFAULT_STOP_TIMEOUT_S
    shutdown_timeout: Optional[float] = None
    home: str = ""

    @property
    def slug(self) -> str:
        """The name in the form that file and unit names take."""
        return make_slug(self.name)

    @property
    def unit(self) -> str:
        """``vllm-<slug>.service``."""
        return "vllm-%s.service" % self.slug

    @property
    def home_path(self) -> str:
        """The directory that belongs to this service alone: HOME and every cache."""
        return self.home or "/var/lib/vllm/%s" % self.slug

    @property
    def unit_path(self) -> str:
        """Where the unit file stands."""
        return "/etc/systemd/system/%s" % self.unit

    @property
    def drop_in_path(self) -> str:
        """Where ``unit_options`` go."""
        return "%s.d/50-options.conf" % self.unit_path

    @property
    def config_path(self) -> str:
        """Where vLLM's ``--config`` stands."""
        return "/etc/vllm/%s.yaml" % self.slug

    @property
    def env_path(self) -> str:
        """Where the secrets stand, readable by root alone."""
        return "/etc/vllm/%s.env" % self.slug

    @property
    def local_model(self) -> bool:
        """Whether the model is a directory of the host, not a repository's name."""
        return posixpath.isabs(self.model)

    @property
    def utilization(self) -> float:
        """``gpu_memory_utilization`` as the server will use it; NaN-free, 0 < u <= 1 is vLLM's to check."""
        value = float(self.args.get("gpu_memory_utilization", DEFAULT_UTILIZATION))
        return value if math.isfinite(value) else DEFAULT_UTILIZATION

    @property
    def drain_s(self) -> float:
        """Seconds the server drains on SIGTERM (``--shutdown-timeout``)."""
        if self.shutdown_timeout is not None:
            return float(self.shutdown_timeout)
        return float(self.args.get("shutdown_timeout", DEFAULT_SHUTDOWN_TIMEOUT_S))

    @property
    def worker_timeout_s(self) -> float:
        """Seconds the workers have to clean up (``VLLM_WORKER_SHUTDOWN_TIMEOUT_SECONDS``)."""
        return float(self.env.get("VLLM_WORKER_SHUTDOWN_TIMEOUT_SECONDS", DEFAULT_WORKER_TIMEOUT_S))

    @property
    def timeout_stop_s(self) -> int:
        """The unit's ``TimeoutStopSec``: never shorter than the server's own way down."""
        return math.ceil(max(self.stop_timeout, self.drain_s + self.worker_timeout_s + _STOP_MARGIN_S))

    @property
    def timeout_start_s(self) -> int:
        """The unit's ``TimeoutStartSec``: the guard's time counts against it."""
        return math.ceil((self.guard.timeout if self.guard.enabled else 0.0) + 60.0)

    @property
    def start_limit_interval_s(self) -> int:
        """The unit's ``StartLimitIntervalSec``: longer than three whole starts, or the limit is never hit."""
        return math.ceil(3 * (self.timeout_start_s + LOAD_ALLOWANCE_S + RESTART_S))
