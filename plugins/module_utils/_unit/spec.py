# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The declared service as plain data, and its defaults."""

from __future__ import annotations

import math
import posixpath
import re
from dataclasses import dataclass, field
from typing import Any, Dict, Mapping, Optional, Tuple

from .._core.errors import GpuFleetError
from .config import normalise_args
from .quote import exec_command, text_value, variable_name
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

# Variables that are decided elsewhere -> what to do instead.
NOT_IN_ENV = {
    "CUDA_VISIBLE_DEVICES": "Use gpus",
    "NVIDIA_VISIBLE_DEVICES": "Use gpus",
    "CUDA_DEVICE_ORDER": "The unit sets PCI_BUS_ID, so that indices mean what the driver means by them",
    "VLLM_API_KEY": "Put it under secrets: every user of the host can read a unit's environment",
    "HF_TOKEN": "Put it under secrets: every user of the host can read a unit's environment",
    "HUGGING_FACE_HUB_TOKEN": "Put it under secrets: every user of the host can read a unit's environment",
}
NOT_IN_SECRETS = {name: NOT_IN_ENV[name] for name in ("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER")}

_HOST = re.compile(r"^[A-Za-z0-9_.:%-]+\Z")
# It stands in settings of three different syntaxes, none of which it should need an escape in.
_HOME = re.compile(r"^(/[A-Za-z0-9_@+=,-][A-Za-z0-9_.@+=,-]*)+\Z")
# A number alone would be an id to systemd, root's among them, and no account of that name is ever there.
_ACCOUNT = re.compile(r"^(?![0-9]+\Z)[A-Za-z0-9_][A-Za-z0-9_.-]{0,31}\Z")


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

    ``gpu_uuids`` is only needed for MIG instances, which have no index that CUDA understands. ``gpu_ids`` are the UUIDs or PCI ids
    that the GPUs were declared by, one for each of ``gpus`` (an index where it was declared by that), or none. ``env`` and
    ``secrets`` are the user's; what the unit sets by itself stands in ``_unit/environment.py``. ``home`` empty
    means ``/var/lib/vllm/<slug>``. Building one checks and normalises everything: GpuFleetError names the option.
    """

    name: str
    model: str
    served_name: str
    gpus: Tuple[int, ...]
    port: int = 8000
    host: str = "0.0.0.0"
    gpu_uuids: Tuple[str, ...] = ()
    gpu_ids: Tuple[str, ...] = ()
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
    nvidia_modprobe: str = ""  # the path of nvidia-modprobe where the host has it

    def __post_init__(self) -> None:
        set_ = object.__setattr__  # the instance is frozen for everybody else
        make_slug(self.name)
        for key in ("name", "model", "served_name", "host"):
            set_(self, key, text_value(getattr(self, key), key))
        if not self.model or self.model.startswith("-") or self.model != self.model.strip():
            raise GpuFleetError("model: %r is neither a directory nor a repository. Give an absolute path, or OWNER/NAME." % self.model)
        if not self.served_name or self.served_name.startswith("-"):
            raise GpuFleetError(
                "served_name: %r can't be a served model's name: it may not be empty or begin with '-'. Choose another." % self.served_name
            )
        if not _HOST.match(self.host):
            raise GpuFleetError("host: %r is no address to listen on. Give one of this host, a name of it, 0.0.0.0 or ::." % self.host)
        exec_command(self.executable, "executable")
        if self.nvidia_modprobe:
            exec_command(self.nvidia_modprobe, "nvidia_modprobe")
        if not 1 <= self.port <= 65535:
            raise GpuFleetError("port: %d is outside 1 to 65535. Choose a free one between." % self.port)
        for key in ("user", "group"):
            if not _ACCOUNT.match(getattr(self, key)):
                wanted = "Give one that useradd takes, such as vllm; a number is none."
                raise GpuFleetError("%s: %r is no name of an account. %s" % (key, getattr(self, key), wanted))
        if self.home and not _HOME.match(self.home):
            raise GpuFleetError("home: %r is not an absolute path of letters, digits and any of '_.@+=,-'." % self.home)
        set_(self, "gpus", tuple(int(gpu) for gpu in self.gpus))
        if len(set(self.gpus)) != len(self.gpus) or any(gpu < 0 for gpu in self.gpus):
            raise GpuFleetError("gpus: %s names a GPU twice or below 0. Name each once, from 0 on." % (list(self.gpus),))
        set_(self, "gpu_uuids", tuple(self.gpu_uuids))
        set_(self, "gpu_ids", tuple(self.gpu_ids))
        if self.gpu_ids and len(self.gpu_ids) != len(self.gpus):
            raise GpuFleetError("gpus: %d are chosen, and %d named." % (len(self.gpus), len(self.gpu_ids)))
        set_(self, "args", normalise_args(self.args))
        set_(self, "env", _variables(self.env, "env", NOT_IN_ENV))
        set_(self, "secrets", _variables(self.secrets, "secrets", NOT_IN_SECRETS))
        both = sorted(set(self.env) & set(self.secrets))
        if both:
            raise GpuFleetError("env: %s is given under secrets as well. Keep it there." % ", ".join(both))
        for key in ("gpu_memory_utilization", "shutdown_timeout"):
            if not isinstance(self.args.get(key, 0), (int, float)):
                raise GpuFleetError("args.%s: %r is no number. Give one." % (key, self.args[key]))
        try:
            float(self.env.get("VLLM_WORKER_SHUTDOWN_TIMEOUT_SECONDS", 0))
        except ValueError as exc:
            raise GpuFleetError("env.VLLM_WORKER_SHUTDOWN_TIMEOUT_SECONDS: a number of seconds is needed. Give one, such as '5'.") from exc

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
        """``gpu_memory_utilization`` as the server will use it; that it is above 0 and at most 1 is vLLM's to check."""
        return float(self.args.get("gpu_memory_utilization", DEFAULT_UTILIZATION))

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

    @property
    def tls(self) -> bool:
        """Whether the server speaks HTTPS."""
        return bool(self.args.get("ssl_certfile"))

    @property
    def visible_devices(self) -> str:
        """``CUDA_VISIBLE_DEVICES``: indices, which every version of vLLM reads; UUIDs for MIG, which has no index."""
        if any(uuid.startswith("MIG-") for uuid in self.gpu_uuids):
            return ",".join(self.gpu_uuids)
        return ",".join(str(gpu) for gpu in self.gpus)


def _variables(given: Mapping[str, Any], key: str, refused: Mapping[str, str]) -> Dict[str, str]:
    """Environment variables as text, sorted; GpuFleetError for names and values that can't be."""
    if not isinstance(given, Mapping):
        raise GpuFleetError("%s: a dictionary of environment variables is needed. Write it as {NAME: 'value'}." % key)
    found = {}
    for name in sorted(given, key=str):
        where = "%s.%s" % (key, name)
        variable_name(name, key)
        if name in refused:
            raise GpuFleetError("%s can't be set there. %s." % (where, refused[name]))
        try:
            found[name] = text_value(given[name], where)
        except GpuFleetError:
            if key == "secrets" and not isinstance(given[name], str):
                # The message of text_value shows the value, which must not happen to a secret.
                raise GpuFleetError("%s: the value is no text. Write it as a string in quotes." % where) from None
            raise
    return found
