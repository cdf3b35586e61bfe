# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a reading of the driver says. Sizes are MiB; whatever is unknown is None, never 0."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Dict, Iterable, Optional, Tuple

from .lists import Part, total


@dataclass(frozen=True)
class GpuProcess:
    """One process on one GPU.

    ``type`` is C (compute), G (graphics), M (a client of MPS), joined with ``+`` when the driver lists it under several, and
    None for a process that holds the GPU's device node open although no list shows it. ``state`` is ``running``, ``zombie``,
    ``gone`` (the driver still lists it, the process is no more) or ``not_visible`` (the driver's number means nothing here,
    or means another process). ``unit`` belongs to the user manager of ``uid`` when ``user_unit`` is true. ``proven`` means that
    the process was seen to hold a GPU device node open. ``parts`` says where on the GPU a listed process has its memory (see lists.py).
    ``kept_by`` is the scheduler or runtime that answers for it without a cgroup of its own.
    The fields from ``start_ticks`` on serve proof and are not exported.
    """

    pid: int
    type: Optional[str]
    used_mib: Optional[int]
    name: Optional[str] = None
    cmdline: Optional[str] = None
    user: Optional[str] = None
    start_time: Optional[float] = None
    unit: Optional[str] = None
    container: Optional[str] = None
    state: str = "running"
    vllm: bool = False
    orphan: bool = False
    protected: bool = False
    protected_by: Optional[str] = None
    start_ticks: Optional[int] = None
    uid: Optional[int] = None
    ppid: Optional[int] = None
    exe: Optional[str] = None
    user_unit: bool = False
    proven: bool = False
    parts: Tuple[Part, ...] = ()
    kept_by: Optional[str] = None

    def on_mig(self, device: MigDevice) -> Optional[GpuProcess]:
        """This process as far as it is on one MIG instance: whole where nobody knows on which, None where it is on others alone."""
        if not self.on_known_instances or device.gpu_instance_id is None:
            return self
        # a compute instance that is not said may be any of its GPU instance's
        mine = tuple(part for part in self.parts if part[0] == device.gpu_instance_id and (
            part[1] is None or device.compute_instance_id is None or part[1] == device.compute_instance_id))
        used = total(mine)
        return replace(self, parts=mine, used_mib=None if used is None else used >> 20) if mine else None

    @property
    def on_known_instances(self) -> bool:
        """Whether the driver says on which MIG instances it is."""
        return bool(self.parts) and all(instance is not None for instance, _compute, _used in self.parts)

    def to_dict(self) -> Dict[str, Any]:
        """The process as the contract has it."""
        return {
            "pid": self.pid,
            "type": self.type,
            "used_mib": self.used_mib,
            "name": self.name,
            "cmdline": self.cmdline,
            "user": self.user,
            "start_time": self.start_time,
            "unit": self.unit,
            "container": self.container,
            "state": self.state,
            "vllm": self.vllm,
            "orphan": self.orphan,
            "protected": self.protected,
            "protected_by": self.protected_by,
        }


@dataclass(frozen=True)
class MigDevice:
    """One MIG instance of a GPU, with its own memory. ``index`` counts within the parent."""

    index: int
    uuid: Optional[str]
    name: Optional[str]
    gpu_instance_id: Optional[int]
    compute_instance_id: Optional[int]
    state: str = "ok"
    error: Optional[str] = None
    total_mib: Optional[int] = None
    used_mib: Optional[int] = None
    free_mib: Optional[int] = None
    reserved_mib: Optional[int] = None

    def to_dict(self) -> Dict[str, Any]:
        """The instance as it stands in ``mig_devices``."""
        return {
            "index": self.index,
            "uuid": self.uuid,
            "name": self.name,
            "gpu_instance_id": self.gpu_instance_id,
            "compute_instance_id": self.compute_instance_id,
            "state": self.state,
            "error": self.error,
            "total_mib": self.total_mib,
            "used_mib": self.used_mib,
            "free_mib": self.free_mib,
            "reserved_mib": self.reserved_mib,
        }


@dataclass(frozen=True)
class Gpu:
    """One GPU. ``state`` is ``ok``, ``lost``, ``reset_required`` or ``error``; ``error`` says why, or what could not be read.

    ``memory_type`` is ``discrete``, ``unified`` (memory shared with the host: GB10, Grace) or ``mig`` (the memory belongs to
    the instances in ``mig_devices``). ``used_mib`` leaves out ``reserved_mib`` where the driver tells them apart.
    ``minor`` is the N of /dev/nvidiaN where known; it need not equal ``index``. ``parts_unknown`` means that MIG devices may be
    missing in ``mig_devices``, ``unanswered`` that a call about this GPU hung. ``processes_reliable`` is the snapshot's for this GPU
    alone. None of these is exported.
    """

    index: int
    uuid: Optional[str]
    pci_bus_id: Optional[str]
    name: Optional[str]
    state: str = "ok"
    error: Optional[str] = None
    memory_type: str = "discrete"
    total_mib: Optional[int] = None
    used_mib: Optional[int] = None
    free_mib: Optional[int] = None
    reserved_mib: Optional[int] = None
    unattributed_mib: Optional[int] = None
    utilization_percent: Optional[int] = None
    compute_mode: Optional[str] = None
    mig_devices: Tuple[MigDevice, ...] = ()
    processes: Tuple[GpuProcess, ...] = ()
    minor: Optional[int] = None
    parts_unknown: bool = False
    unanswered: bool = False
    processes_reliable: bool = True

    @property
    def divided(self) -> bool:
        """Whether this is the whole of a GPU that is divided into MIG devices, rather than one of them."""
        return self.memory_type == "mig" and not any(device.uuid is not None and device.uuid == self.uuid for device in self.mig_devices)

    def to_dict(self) -> Dict[str, Any]:
        """The GPU as the contract has it."""
        return {
            "index": self.index,
            "uuid": self.uuid,
            "pci_bus_id": self.pci_bus_id,
            "name": self.name,
            "state": self.state,
            "error": self.error,
            "memory_type": self.memory_type,
            "total_mib": self.total_mib,
            "used_mib": self.used_mib,
            "free_mib": self.free_mib,
            "reserved_mib": self.reserved_mib,
            "unattributed_mib": self.unattributed_mib,
            "utilization_percent": self.utilization_percent,
            "compute_mode": self.compute_mode,
            "mig_devices": [device.to_dict() for device in self.mig_devices],
            "processes": [process.to_dict() for process in self.processes],
        }

    def of_mig(self, device: MigDevice) -> Gpu:
        """This GPU narrowed to one of its MIG instances: the instance's UUID, memory and processes, the parent's index and node."""
        processes = tuple(each for each in (process.on_mig(device) for process in self.processes) if each is not None)
        anywhere = [each.pid for each in processes if device.gpu_instance_id is None or not each.on_known_instances]
        doubt = "may be on another MIG instance: pid %s" % ", ".join(map(str, anywhere)) if anywhere else None
        return replace(
            self,
            uuid=device.uuid,
            name=device.name or self.name,
            state=device.state if self.state == "ok" else self.state,
            error="; ".join(text for text in (device.error or self.error, doubt) if text) or None,
            memory_type="mig",
            total_mib=device.total_mib,
            used_mib=device.used_mib,
            free_mib=device.free_mib,
            reserved_mib=device.reserved_mib,
            unattributed_mib=None,
            mig_devices=(device,),
            processes=processes,
        )


@dataclass(frozen=True)
class Snapshot:
    """One reading of one host.

    ``available`` False means that nothing could be read; ``reason`` is then ``no_driver``, ``library_missing``,
    ``driver_library_mismatch``, ``driver_hung``, ``permission`` or ``error``, and no GPU may be taken for free.
    ``total_mib``, ``used_mib`` and ``free_mib`` are sums over the readable GPUs of this reading, None where there is none.
    """

    available: bool
    reason: Optional[str] = None
    reason_detail: Optional[str] = None
    backend: Optional[str] = None
    driver_version: Optional[str] = None
    cuda_version: Optional[str] = None
    count: Optional[int] = None
    pci_count: Optional[int] = None
    total_mib: Optional[int] = None
    used_mib: Optional[int] = None
    free_mib: Optional[int] = None
    processes_reliable: bool = True
    gpus: Tuple[Gpu, ...] = ()

    def gpu(self, index: int) -> Optional[Gpu]:
        """The GPU with this driver index, or None when this reading does not hold it."""
        for gpu in self.gpus:
            if gpu.index == index:
                return gpu
        return None

    def to_dict(self) -> Dict[str, Any]:
        """The reading as the contract's ``gpu_memory``."""
        return {
            "available": self.available,
            "reason": self.reason,
            "reason_detail": self.reason_detail,
            "backend": self.backend,
            "driver_version": self.driver_version,
            "cuda_version": self.cuda_version,
            "count": self.count,
            "pci_count": self.pci_count,
            "total_mib": self.total_mib,
            "used_mib": self.used_mib,
            "free_mib": self.free_mib,
            "processes_reliable": self.processes_reliable,
            "gpus": [gpu.to_dict() for gpu in self.gpus],
        }


def memory_sums(gpus: Iterable[Gpu]) -> Tuple[Optional[int], Optional[int], Optional[int]]:
    """Total, used and free MiB over the GPUs whose memory is known; all None where there is none."""
    known = [(gpu.total_mib, gpu.used_mib, gpu.free_mib) for gpu in gpus]
    readable = [(total, used, free) for total, used, free in known if total is not None and used is not None and free is not None]
    if not readable:
        return None, None, None
    return sum(each[0] for each in readable), sum(each[1] for each in readable), sum(each[2] for each in readable)
