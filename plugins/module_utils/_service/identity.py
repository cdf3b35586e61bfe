# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Which GPUs a declaration holds fast to, whatever index they have.

An index means whatever GPU has it; a UUID means one card, a PCI id whatever is in one slot. When a card leaves the host, those
behind it move up by one at the next boot: whoever named a card or a slot must not get its neighbour then.
"""

from __future__ import annotations

from typing import Dict, Sequence, Tuple

from .._core.errors import GpuFleetError
from .._gpu.host import normal_pci
from .._gpu.select import resolve
from .._gpu.types import Gpu


def gpu_ids(selection: Sequence[str], gpus: Sequence[Gpu]) -> Tuple[str, ...]:
    """The GPUs of a declaration in the order of their indices, each as it was named; empty when all were named by index.

    ``gpus`` are those that ``selection`` means. A UUID or its beginning becomes the whole UUID and a PCI id takes the driver's form,
    so that the same declaration always gives the same words. A GPU that is named twice counts by its UUID, else by its PCI id.
    """
    words = [word for word in map(str.strip, selection) if not (word.isdigit() or word.lower() == "all")]
    slots: Dict[int, str] = {}
    cards: Dict[int, str] = {}
    for word in words:
        for gpu in resolve([word], gpus):
            slot = normal_pci(word)
            if slot is not None:
                slots[gpu.index] = slot
            elif gpu.uuid is not None:
                cards[gpu.index] = gpu.uuid
    named = {**slots, **cards}
    return tuple(named.get(gpu.index, str(gpu.index)) for gpu in sorted(gpus, key=lambda gpu: gpu.index)) if named else ()


def mig_uuids(gpus: Sequence[Gpu]) -> Tuple[str, ...]:
    """The MIG instances among the chosen GPUs; GpuFleetError when whole GPUs are chosen beside them."""
    instances = tuple(gpu.uuid for gpu in gpus if gpu.memory_type == "mig" and gpu.uuid is not None)
    whole = [str(gpu.index) for gpu in gpus if gpu.memory_type != "mig"]
    if instances and whole:
        raise GpuFleetError(
            "gpus names MIG instances (%s) beside whole GPUs (%s). CUDA shows a process either the one or the other: give the "
            "service one kind." % (", ".join(instances), ", ".join(whole))
        )
    return instances
