# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Which GPUs a selection means.

An index is the driver's (PCI bus order): what nvidia-smi shows, and what CUDA counts with CUDA_DEVICE_ORDER=PCI_BUS_ID, not with
its own default, which puts the fastest first.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import List, Sequence, Union

from .._core.errors import GpuFleetError
from .host import natural, normal_pci
from .types import Gpu


def resolve(selection: Sequence[Union[str, int]], gpus: Sequence[Gpu]) -> List[Gpu]:
    """The GPUs that a selection names, in its order, each once; an empty one or ``all`` means all.

    Each word is an index, a UUID or a unique beginning of one, a PCI id (domain of 4 or 8 digits, or none), or the UUID of
    a MIG device, for which the parent narrowed to that device is returned. A UUID or PCI id that fits none, while there are GPUs
    whose own can't be read (lost ones), means each of those, with that doubt as its error. Raises GpuFleetError naming what the
    host has.
    """
    words = [str(word).strip() for word in selection]
    if not words or "all" in [word.lower() for word in words]:
        if len(words) > 1:
            raise GpuFleetError("The GPU selection %s mixes 'all' with single GPUs: give one or the other." % ", ".join(words))
        return list(gpus)
    found: List[Gpu] = []
    for word in words:
        for gpu in _meant(word, gpus):
            if (gpu.index, gpu.uuid) not in [(other.index, other.uuid) for other in found]:
                found.append(gpu)
    return found


def malformed(word: str) -> bool:
    """Whether this can't name a GPU on any host: no index, no PCI id, and no UUID or beginning of one."""
    word = word.strip()
    return not (word.lower() == "all" or word.isdigit() or normal_pci(word) is not None or _like_uuid(word.lower()))


def _like_uuid(lowered: str) -> bool:
    return lowered.startswith(("gpu-", "mig-"))


def _meant(word: str, gpus: Sequence[Gpu]) -> List[Gpu]:
    if word.isdigit():
        matches = [gpu for gpu in gpus if gpu.index == natural(word)]
    elif normal_pci(word) is not None:
        matches = [gpu for gpu in gpus if gpu.pci_bus_id and normal_pci(gpu.pci_bus_id) == normal_pci(word)]
    else:
        matches = _by_uuid(word, gpus)
    if len(matches) == 1:
        return matches
    perhaps = _unnamed(word, gpus) if not matches else []
    if perhaps:
        return [_doubtful(gpu, word) for gpu in perhaps]
    problem = "is not on this host" if not matches else "is ambiguous, it means several GPUs"
    raise GpuFleetError("GPU '%s' %s%s. %s" % (word, problem, _hint(word, gpus), describe(gpus)))


def _hint(word: str, gpus: Sequence[Gpu]) -> str:
    """What was probably meant, where the spelling tells; as the rest of a sentence."""
    if "," in word or re.match(r"\d+\s*-\s*\d+$", word) or len(word.split()) > 1 and word.replace(" ", "").isdigit():
        return "; each GPU is a word of its own in the list, as in ['0', '1']"
    if word.lower() in ("none", "auto", "*", "any"):
        return "; all GPUs are 'all', or an empty list"
    for prefix in ("GPU-", "MIG-"):
        if len(word) > 3 and not _like_uuid(word.lower()) and _by_uuid(prefix + word, gpus):
            return "; a UUID begins with %s, as in '%s%s'" % (prefix, prefix, word)
    return ""


def _unnamed(word: str, gpus: Sequence[Gpu]) -> List[Gpu]:
    """The GPUs that don't say whether they are the one that is meant."""
    if normal_pci(word) is not None:
        return [gpu for gpu in gpus if gpu.pci_bus_id is None]
    if word.lower().startswith("mig-"):
        return [gpu for gpu in gpus if gpu.uuid is None or gpu.parts_unknown]
    return [gpu for gpu in gpus if gpu.uuid is None] if _like_uuid(word.lower()) else []


def _doubtful(gpu: Gpu, word: str) -> Gpu:
    doubt = "it may be '%s', which was asked for, and does not say" % word
    if gpu.state == "ok":
        gpu = replace(gpu, state="error", total_mib=None, used_mib=None, free_mib=None, reserved_mib=None, unattributed_mib=None)
    return replace(gpu, error="; ".join([gpu.error, doubt] if gpu.error else [doubt]))


def _by_uuid(word: str, gpus: Sequence[Gpu]) -> List[Gpu]:
    lowered = word.lower()
    candidates = [gpu for gpu in gpus if gpu.uuid]
    candidates += [gpu.of_mig(device) for gpu in gpus for device in gpu.mig_devices if device.uuid]
    exact = [gpu for gpu in candidates if (gpu.uuid or "").lower() == lowered]
    if exact:
        return exact
    if not _like_uuid(lowered):
        return []
    return [gpu for gpu in candidates if (gpu.uuid or "").lower().startswith(lowered)]


def describe(gpus: Sequence[Gpu]) -> str:
    """What the host has, for a message."""
    if not gpus:
        return "The driver shows no GPU on this host."
    lines = []
    # Eight times the same long name would hide what differs.
    common = gpus[0].name if len(gpus) > 1 and len({gpu.name for gpu in gpus}) == 1 else None
    for gpu in gpus:
        facts = (gpu.uuid, gpu.pci_bus_id, None if common else gpu.name)
        lines.append("%d (%s)" % (gpu.index, ", ".join(text for text in facts if text) or gpu.state))
        lines.extend("%s (MIG device %d of GPU %d)" % (device.uuid, device.index, gpu.index) for device in gpu.mig_devices)
    return "This host has: %s%s." % ("; ".join(lines), "; all of them %s" % common if common else "")
