# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Making room on a service's GPUs before it starts, with the driver's word for it.

Only what nobody owns any more is ended here; whoever else holds memory is named, not touched.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Dict, List, Tuple

from .._core.errors import GpuFleetError
from .._gpu.reader import GpuReader
from .._gpu.types import Gpu
from .._reclaim.proof import prove_free
from .._reclaim.run import ReclaimPorts, ReclaimRequest, reclaim
from .memory import Need, holders_text
from .ports import Ports
from .request import FREE_MAX_USED_MIB

_SETTLE_S = 1.0
# The driver gives memory back seconds after the last process is gone, and not on all GPUs at once.
_FREE_TIMEOUT_S = 120.0


@dataclass(frozen=True)
class Freed:
    """What it took. ``ended`` are the processes that were signalled, as gpu_reclaim reports them."""

    warnings: Tuple[str, ...] = ()
    ended: Tuple[Dict[str, Any], ...] = ()


def make_free(gpus: Tuple[int, ...], need: Need, shared: Tuple[int, ...], ports: Ports, reader: GpuReader) -> Freed:
    """End orphans on ``gpus`` and wait until the driver confirms that their memory is back and stable.

    GPUs in ``shared`` are used by other services too: there it is enough that ``need`` fits. Raises GpuFleetError,
    naming every holder, when not even ``need`` can be met.
    """
    limits = {}
    for gpu in reader.snapshot([str(index) for index in gpus], processes=False).gpus:
        fits = need.max_used_mib(gpu)
        limits[gpu.index] = fits if gpu.index in shared else min(FREE_MAX_USED_MIB, fits)
    ended = _end_orphans(gpus, limits, ports)
    proof = prove_free(reader, list(gpus), limits, _SETTLE_S, _FREE_TIMEOUT_S, ports.clock)
    if proof.freed:
        return Freed(ended=ended)
    fits = {gpu.index: need.max_used_mib(gpu) for gpu in proof.gpus}
    enough = prove_free(reader, list(gpus), fits, _SETTLE_S, 5.0, ports.clock)
    snapshot = reader.snapshot([str(index) for index in gpus], processes=True)
    if enough.freed:
        left = holders_text(snapshot.gpus, limits)
        return Freed(warnings=("There is room enough for the service, but not all memory came back: %s" % left,), ended=ended)
    raise GpuFleetError(
        "The memory that the service needs did not come free within %d s: %s" % (_FREE_TIMEOUT_S, holders_text(snapshot.gpus, fits)),
        ended_processes=list(ended),
    )


def _end_orphans(gpus: Tuple[int, ...], limits: Dict[int, int], ports: Ports) -> Tuple[Dict[str, Any], ...]:
    raise GpuFleetError("not wired yet")


def _dirty(gpus: Tuple[Gpu, ...], limits: Dict[int, int]) -> List[int]:
    return [gpu.index for gpu in gpus if gpu.used_mib is None or gpu.used_mib > limits.get(gpu.index, 0)]
