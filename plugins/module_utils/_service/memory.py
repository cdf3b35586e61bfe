# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""How much memory a service's start needs on each GPU, and who stands in the way."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import AbstractSet, FrozenSet, Iterable, List, Mapping, Optional

from .._gpu.types import Gpu, GpuProcess, Snapshot
from .request import FREE_MAX_USED_MIB


@dataclass(frozen=True)
class Need:
    """What vLLM asks for at start on every device: ``ceil(total * utilization)`` free (vLLM, ``request_memory``)."""

    utilization: float
    margin_mib: int = 0

    def mib(self, gpu: Gpu) -> Optional[int]:
        """MiB that must be free on this GPU; None where its size is unknown."""
        if gpu.total_mib is None:
            return None
        return math.ceil(gpu.total_mib * self.utilization) + self.margin_mib

    def max_used_mib(self, gpu: Gpu) -> int:
        """MiB that may still be used on this GPU when the service starts; 0 where nothing is known."""
        needed = self.mib(gpu)
        if needed is None or gpu.total_mib is None:
            return 0
        return max(0, gpu.total_mib - (gpu.reserved_mib or 0) - needed)


@dataclass(frozen=True)
class Limit:
    """How much may still be used on one GPU. ``free_mib`` counts as free, ``fits_mib`` still leaves the service room.

    ``mig`` is the UUID of the MIG instance that is meant, None for a whole GPU. ``staying`` is whether anybody is on it who does not
    leave, whatever he holds of it, or nobody can say: his memory may move at any time.
    """

    gpu: int
    free_mib: int
    fits_mib: int
    mig: Optional[str] = None
    staying: bool = True


def free_limits(
    gpus: Iterable[Gpu], need: Need, leaving_units: FrozenSet[str], leaving_pids: FrozenSet[int]
) -> List[Limit]:
    """What counts as free on each GPU: an idle one, plus what those hold who stay and may stay."""
    limits = []
    for gpu in gpus:
        staying = stayers(gpu, leaving_units, leaving_pids)
        anybody = bool(staying) or not gpu.processes_reliable
        fits = need.max_used_mib(gpu)
        if gpu.memory_type == "mig":  # the processes are the whole card's, and those of other instances stay where they are
            limits.append(Limit(gpu.index, min(fits, FREE_MAX_USED_MIB), fits, gpu.uuid, anybody))
            continue
        held = sum(process.used_mib or 0 for process in staying)
        limits.append(Limit(gpu.index, min(fits, FREE_MAX_USED_MIB + held), fits, None, anybody))
    return limits


def stayers(gpu: Gpu, leaving_units: AbstractSet[str], leaving_pids: AbstractSet[int] = frozenset()) -> List[GpuProcess]:
    """Who is on this GPU and does not leave. Of a MIG instance also who is on the card, where the driver does not say on which part."""
    return [each for each in gpu.processes if each.unit not in leaving_units and each.pid not in leaving_pids and each.state != "gone"]


@dataclass(frozen=True)
class Shortage:
    """One GPU on which the service would not find its memory. ``certain`` is false when the driver may yet return it."""

    gpu: Gpu
    needed_mib: int
    possible_mib: int
    certain: bool
    holders: List[GpuProcess]


def shortages(gpus: Iterable[Gpu], need: Need, freed_units: FrozenSet[str], freed_pids: FrozenSet[int]) -> List[Shortage]:
    """The GPUs that stay too full even after ``freed_units`` and ``freed_pids`` are gone."""
    found = []
    for gpu in gpus:
        needed = need.mib(gpu)
        if needed is None or gpu.total_mib is None or gpu.used_mib is None or gpu.free_mib is None:
            continue
        strangers = [p for p in gpu.processes if p.unit not in freed_units and p.pid not in freed_pids and p.state != "gone"]
        ours = [p for p in gpu.processes if p not in strangers]
        held = sum(p.used_mib or 0 for p in strangers)
        size = gpu.total_mib - (gpu.reserved_mib or 0)
        if gpu.memory_type == "mig":
            if size < needed:
                found.append(Shortage(gpu, needed, size, True, []))
            elif gpu.free_mib < needed and not ours:  # who of the card's processes is on this instance is not known
                found.append(Shortage(gpu, needed, gpu.free_mib, False, strangers))
        elif size - held < needed:
            found.append(Shortage(gpu, needed, max(0, size - held), True, strangers))
        elif gpu.free_mib + sum(p.used_mib or 0 for p in ours) < needed and not any(p.used_mib is None for p in ours):
            found.append(Shortage(gpu, needed, gpu.free_mib + sum(p.used_mib or 0 for p in ours), False, strangers))
    return found


def as_now(gpus: Iterable[Gpu], snapshot: Snapshot) -> List[Gpu]:
    """The same GPUs, and the same instances of them, in a later reading; without those that are not there any more."""
    found = []
    for gpu in gpus:
        card = snapshot.gpu(gpu.index)
        if card is None or gpu.memory_type != "mig":
            found += [card] if card is not None else []
            continue
        found += [card.of_mig(device) for device in card.mig_devices if device.uuid == gpu.uuid]
    return found


def holder_text(process: GpuProcess) -> str:
    """One holder as a person has to see it: who, what, where, how much."""
    parts = ["pid %d" % process.pid, process.name or "?", "user %s" % (process.user or "?")]
    if process.unit:
        parts.append(process.unit)
    if process.container:
        parts.append("container %s" % process.container[:12])
    size = "an unknown amount" if process.used_mib is None else "{:,} MiB".format(process.used_mib)
    return "%s holds %s" % (", ".join(parts), size)


def holders_text(gpus: Iterable[Gpu], limits: Mapping[int, int]) -> str:
    """Every GPU over its limit, with everybody who holds memory there."""
    texts = []
    for gpu in gpus:
        if gpu.used_mib is not None and gpu.used_mib <= limits.get(gpu.index, 0):
            continue
        used = "unknown" if gpu.used_mib is None else "{:,} MiB used".format(gpu.used_mib)
        holders = "; ".join(holder_text(p) for p in gpu.processes) or "no process that the driver or /proc shows"
        name = gpu.uuid if gpu.memory_type == "mig" and gpu.uuid else "GPU %d" % gpu.index
        texts.append("%s (%s): %s" % (name, used, holders))
    return ". ".join(texts) or "no GPU is over its limit any more"
