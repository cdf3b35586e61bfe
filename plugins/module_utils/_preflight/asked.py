# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What is to run, and what is known of the host that it is to run on."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Mapping, Optional, Tuple

from .._gpu.types import Gpu, Snapshot
from .._memory_plan.arguments import EngineArgs, read_args
from .._model.parallel import Check

# Short forms that the plan understands as well.
SHORT_NAMES = {
    "tensor_parallel_size": "tp",
    "pipeline_parallel_size": "pp",
    "data_parallel_size": "dp",
    "decode_context_parallel_size": "dcp",
    "quantization": "q",
    "speculative_config": "sc",
}
# More ranks than any deployment has.
MOST_RANKS = 1 << 20


@dataclass(frozen=True)
class Places:
    """Where the host's things are. Tests point them at directories of their own."""

    caches: str = "/var/lib/vllm"
    records: str = "/var/lib/gpufleet"
    run: str = "/run/gpufleet"
    shm: str = "/dev/shm"
    journal: Tuple[str, ...] = ("/var/log/journal", "/run/log/journal")
    etc: str = "/etc"
    proc: str = "/proc"
    sys: str = "/sys"
    dev: str = "/dev"
    cuda: str = "/usr/local"


@dataclass(frozen=True)
class Asked:
    """One service as far as the checks need it. ``args`` are in their one form (see ``_unit/config.py``).

    ``hides_home`` and ``hides_tmp`` say that the unit will not see ``/home``, ``/root`` and ``/run/user``, or ``/tmp``.
    ``home`` is the service's own directory for caches.
    """

    model: str
    facts_path: Optional[str] = None
    args: Mapping[str, Any] = field(default_factory=dict)
    env: Mapping[str, str] = field(default_factory=dict)
    executable: str = "/opt/vllm/bin/vllm"
    user: str = "vllm"
    group: str = "vllm"
    home: str = "/var/lib/vllm"
    hides_home: bool = False
    hides_tmp: bool = False

    @property
    def directory(self) -> Optional[str]:
        """The model's directory on this host; None for a repository's name."""
        path = self.facts_path or self.model
        return path if path.startswith("/") else None

    def value(self, name: str) -> Any:
        """What is given for an argument, under its name or its short form; None when nothing is."""
        found = self.args.get(name)
        return self.args.get(SHORT_NAMES[name]) if found is None and name in SHORT_NAMES else found

    def size(self, name: str) -> Optional[int]:
        """A parallel size: 1 when it isn't given, None when what is given is no whole number, or one that no deployment has."""
        value = self.value(name)
        if value is None:
            return 1
        if isinstance(value, bool) or not isinstance(value, (int, str)):
            return None
        try:
            found = int(value)
        except ValueError:
            return None
        return found if abs(found) <= MOST_RANKS else None

    @property
    def engine(self) -> EngineArgs:
        """The arguments as the memory plan reads them: one reading for every check and every figure."""
        return read_args(self.args)

    @property
    def ranks(self) -> int:
        """How many processes hold a GPU; sizes that can't be read count as 1."""
        product = 1
        for name in ("tensor_parallel_size", "pipeline_parallel_size", "data_parallel_size"):
            product *= max(self.size(name) or 1, 1)
        return product

    @property
    def expert_parallel(self) -> bool:
        """Whether routed experts stay whole."""
        return self.engine.enable_expert_parallel

    @property
    def encoder_data_parallel(self) -> bool:
        """Whether encoders beside the language model stay whole."""
        return self.engine.encoder_data_parallel


@dataclass(frozen=True)
class Seen:
    """What was seen of the GPUs. ``elsewhere`` means that they belong to a machine that is not this one.

    ``vllm_version`` is what was said to run there.
    """

    snapshot: Optional[Snapshot]
    gpus: Tuple[Gpu, ...] = ()
    elsewhere: bool = False
    vllm_version: Optional[str] = None


def warn(check: str, detail: str, fix: Optional[str] = None) -> Check:
    """A check that finds something which need not stop a start."""
    return Check(check, "warn", detail, fix)


def fail(check: str, detail: str, fix: Optional[str] = None) -> Check:
    """A check that says it cannot work."""
    return Check(check, "fail", detail, fix)


def skip(check: str, detail: str, fix: Optional[str] = None) -> Check:
    """A check that can't be made, and why."""
    return Check(check, "skip", detail, fix)


def passed(check: str, detail: str) -> Check:
    """A check that finds nothing."""
    return Check(check, "pass", detail, None)
