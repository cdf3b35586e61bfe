# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""From what a backend read to what it means: the same for both backends, and without any input or output."""

from __future__ import annotations

import re
from typing import Callable, Dict, List, Optional, Sequence, Tuple

from . import raw
from .host import MemInfo
from .lists import ABSURD, merge
from .types import Gpu, GpuProcess, MigDevice, Snapshot, memory_sums

# Says who is on a GPU.
OnGpu = Callable[[raw.RawGpu], Tuple[GpuProcess, ...]]

MIB = 1 << 20
# GPUs that share the host's memory and have none of their own. On any other GPU "not supported" stays an error.
_INTEGRATED = re.compile(r"\b(GB10|Thor|Orin|Xavier|Tegra)\b", re.IGNORECASE)

_STATES = {raw.GPU_IS_LOST: "lost", raw.RESET_REQUIRED: "reset_required"}
# What the driver recommends -> (state, what to say).
_RECOVERY: Dict[str, Tuple[str, str]] = {
    "reset": ("reset_required", "the driver asks for a reset of this GPU"),
    "drain and reset": ("reset_required", "the driver asks for this GPU to be drained and reset"),
    "bus reset": ("reset_required", "the driver asks for a bus reset of this GPU"),
    "reboot": ("error", "the driver asks for a reboot of the host"),
}


def assemble(
    reading: raw.RawReading,
    pci: Optional[Sequence[str]] = None,
    memory: Optional[MemInfo] = None,
    processes: Optional[OnGpu] = None,
    others: Sequence[str] = (),
) -> Snapshot:
    """The snapshot that a reading amounts to. ``pci`` are the GPUs on the bus, ``memory`` the host's own, ``processes`` says who is on
    a GPU (see attribution.py), ``others`` are addresses of GPUs that the driver shows and that were not read."""
    pci_count = None if pci is None else len(pci)
    if reading.count is not None and pci_count is not None and pci_count < reading.count:
        pci_count = None  # these GPUs are not on the bus that we see (WSL, a container)
    if reading.failure is not None:
        return Snapshot(
            available=False,
            reason=reading.failure.reason,
            reason_detail="; ".join((reading.failure.detail,) + reading.notes),
            backend=reading.backend,
            driver_version=reading.driver_version,
            cuda_version=reading.cuda_version,
            count=0 if reading.failure.reason == "no_driver" else None,
            pci_count=pci_count,
            processes_reliable=False,
        )
    gpus = tuple(_gpu(each, memory, () if processes is None else processes(each)) for each in reading.gpus)
    total, used, free = memory_sums(gpus)
    hung = [each for each in reading.gpus if raw.HUNG in (each.code, each.memory_code)]
    if reading.gpus and total is None and len(hung) == len(reading.gpus):
        return Snapshot(
            available=False,
            reason="driver_hung",
            reason_detail="; ".join(reading.notes) or raw.code_text(raw.HUNG),
            backend=reading.backend,
            driver_version=reading.driver_version,
            cuda_version=reading.cuda_version,
            count=reading.count,
            pci_count=pci_count,
            processes_reliable=False,
            gpus=gpus,
        )
    return Snapshot(
        available=True,
        reason_detail="; ".join((*reading.notes, *_missing(reading, pci, others), *_unread(reading, reading.unread))) or None,
        backend=reading.backend,
        driver_version=reading.driver_version,
        cuda_version=reading.cuda_version,
        count=reading.count,
        pci_count=pci_count,
        total_mib=total,
        used_mib=used,
        free_mib=free,
        processes_reliable=all(_reliable(each) for each in reading.gpus),
        gpus=gpus,
    )


def _missing(reading: raw.RawReading, pci: Optional[Sequence[str]], others: Sequence[str]) -> Tuple[str, ...]:
    if reading.count is None or pci is None or len(pci) <= reading.count:
        return ()
    shown = {gpu.pci_bus_id for gpu in reading.gpus}.union(others)
    hidden = [address for address in pci if address not in shown]
    which = " (missing: %s)" % ", ".join(hidden) if len(hidden) == len(pci) - reading.count else ""
    return ("the driver shows %d of %d GPUs on the PCI bus%s" % (reading.count, len(pci), which),)


def _unread(found: object, unread: Dict[str, int]) -> List[str]:
    """Why values are unknown, those with one reason together. What became known in another way needs none."""
    names: Dict[str, List[str]] = {}
    for name, code in sorted(unread.items()):
        if getattr(found, name) is None:
            # an older library or nvidia-smi does not even have the question
            names.setdefault(raw.code_text(raw.NOT_SUPPORTED if code == raw.FUNCTION_NOT_FOUND else code), []).append(name)
    return ["%s: %s" % (", ".join(alike), why) for why, alike in names.items()]


def _reliable(each: raw.RawGpu) -> bool:
    if each.code != raw.SUCCESS:
        return True  # nothing is claimed about this GPU's processes; its state says so
    return each.bad_processes == 0 and each.processes_code == raw.SUCCESS


def _gpu(each: raw.RawGpu, host: Optional[MemInfo], processes: Tuple[GpuProcess, ...]) -> Gpu:
    state, errors = "ok", []
    if each.code != raw.SUCCESS:
        state, errors = _STATES.get(each.code, "error"), [raw.code_text(each.code)]
    memory_type, memory, memory_error = _memory(each, host)
    if state == "ok" and memory_error is not None:
        errors.append(memory_error)
        if memory_type == "discrete":
            state = "error"
    if state == "ok" and each.recovery_action is not None:
        state, said = _RECOVERY.get(each.recovery_action.lower(), ("ok", ""))
        errors.extend([said] if said else [])
    if state == "ok" and each.mig_enabled and each.mig_code != raw.SUCCESS:
        state = "error"
        errors.append("MIG devices: %s" % raw.code_text(each.mig_code))
    if each.processes_code not in (raw.SUCCESS, each.code):
        errors.append("process list: %s" % raw.code_text(each.processes_code))
    if each.bad_processes:
        errors.append("process list: %d entries make no sense" % each.bad_processes)
    utilization = each.utilization_percent
    if utilization is not None and not 0 <= utilization <= 100:
        utilization = None
        errors.append("utilization_percent: %s" % raw.code_text(raw.BAD_ANSWER))
    if each.code == raw.SUCCESS:
        errors.extend(_unread(each, each.unread))
    used = None if memory is None else memory.used
    return Gpu(
        index=each.index,
        uuid=each.uuid,
        pci_bus_id=each.pci_bus_id,
        name=each.name,
        state=state,
        error="; ".join(errors) or None,
        memory_type=memory_type,
        total_mib=_mib(None if memory is None else memory.total),
        used_mib=_mib(used),
        free_mib=_mib(None if memory is None else memory.free),
        reserved_mib=_mib(None if memory is None else memory.reserved),
        unattributed_mib=_unattributed(each, memory) if memory_type != "unified" else None,
        utilization_percent=utilization,
        compute_mode=each.compute_mode,
        mig_devices=tuple(_mig(device) for device in each.mig_devices),
        processes=processes,
        minor=each.minor,
        parts_unknown=each.mig_code != raw.SUCCESS,
        unanswered=raw.HUNG in (each.code, each.memory_code, each.mig_code, each.processes_code),
        processes_reliable=_reliable(each),
    )


def _memory(each: raw.RawGpu, host: Optional[MemInfo]) -> Tuple[str, Optional[raw.RawMemory], Optional[str]]:
    """(memory type, memory or None, why it is None)."""
    memory = each.memory if each.memory is not None and _sane(each.memory) else None
    if _INTEGRATED.search(each.name or ""):
        own = memory is not None and host is not None and abs(memory.total // MIB - host.total_mib) > host.total_mib // 8
        if own:
            return "unified", memory, None  # it says what it may use, and that is not simply the host's
        if host is None:
            return "unified", memory, None if memory is not None else "the host's memory can't be read"
        return "unified", raw.RawMemory(
            host.total_mib * MIB, (host.total_mib - host.available_mib) * MIB, host.available_mib * MIB
        ), None
    memory_type = "mig" if each.mig_enabled else "discrete"
    if not each.mig_enabled and each.mig_code != raw.SUCCESS and each.code == raw.SUCCESS:
        # where it is divided, a server gets a part, and the numbers of the whole mean nothing to it
        return memory_type, None, "whether it is divided into MIG devices: %s" % raw.code_text(each.mig_code)
    if memory is not None or each.code != raw.SUCCESS:
        return memory_type, memory, None
    code = each.memory_code if each.memory_code != raw.SUCCESS else raw.BAD_ANSWER
    if memory_type == "mig":
        return memory_type, None, "memory of the whole GPU: %s; see mig_devices" % raw.code_text(code)
    return memory_type, None, "memory: %s" % raw.code_text(code)


def _sane(memory: raw.RawMemory) -> bool:
    values = (memory.total, memory.used, memory.free, memory.reserved or 0)
    # used and free are read an instant apart from each other in some drivers: leave 1/64 for that
    return (
        memory.total > 0
        and all(0 <= value < ABSURD for value in values)
        and max(memory.used, memory.free) <= memory.total
        and memory.used + memory.free <= memory.total + memory.total // 64
    )


def _mig(device: raw.RawMig) -> MigDevice:
    memory = device.memory if device.memory is not None and _sane(device.memory) else None
    code = device.code if device.code != raw.SUCCESS else raw.BAD_ANSWER
    errors = ([] if memory is not None else ["memory: %s" % raw.code_text(code)]) + _unread(device, device.unread)
    return MigDevice(
        index=device.index,
        uuid=device.uuid,
        name=device.name,
        gpu_instance_id=device.gpu_instance_id,
        compute_instance_id=device.compute_instance_id,
        state="ok" if memory is not None else _STATES.get(code, "error"),
        error="; ".join(errors) or None,
        total_mib=_mib(None if memory is None else memory.total),
        used_mib=_mib(None if memory is None else memory.used),
        free_mib=_mib(None if memory is None else memory.free),
        reserved_mib=_mib(None if memory is None else memory.reserved),
    )


def _mib(size: Optional[int]) -> Optional[int]:
    return None if size is None else size // MIB


def _unattributed(each: raw.RawGpu, memory: Optional[raw.RawMemory]) -> Optional[int]:
    if memory is None or each.processes is None or not _reliable(each):
        return None
    listed = [used for _pid, _type, used in merge(each.processes)]
    if None in listed:
        return None
    return max(0, memory.used - sum(used or 0 for used in listed)) // MIB
