# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The NVML backend: GPU by GPU and call by call, so that whatever fails leaves the rest standing.

Runs in a child process (see worker.py), because a call into a hung driver can't be interrupted, and because the C library may
print or crash.
"""

from __future__ import annotations

import ctypes
from typing import Callable, Dict, FrozenSet, Optional, Sequence, Tuple, TypeVar

from . import raw
from .nvml_abi import LOADING, Nvml, NvmlError
from .nvml_processes import read_lists

T = TypeVar("T")

# So many MIG devices are looked for where the driver does not say how many there can be: no GPU has more.
_MIG_PLACES = 7
# Codes that stand for the whole GPU, whichever call met them.
_WHOLE_GPU = (raw.GPU_IS_LOST, raw.RESET_REQUIRED)


class Skips:
    """Calls that hung or crashed before and are not made again: (function, GPU index), None standing for any."""

    def __init__(self, entries: Sequence[Tuple[Optional[str], Optional[int], int]] = ()) -> None:
        self._entries = tuple(entries)

    def code(self, function: str, index: Optional[int]) -> int:
        """The code to answer with instead of calling; SUCCESS when the call may be made."""
        for name, gpu, code in self._entries:
            if (name is None or name == function) and (gpu is None or gpu == index):
                return code
        return raw.SUCCESS


class NvmlCollector:
    """Reads the driver through NVML. Stays initialised between readings, so that the next one costs little.

    ``beat`` is called with (function, GPU index) before each call into the library.
    """

    def __init__(self, beat: Callable[[str, Optional[int]], None]) -> None:
        self._beat = beat
        self._nvml: Optional[Nvml] = None
        self._handles: Dict[int, ctypes.c_void_p] = {}
        self._identities: Dict[int, raw.RawGpu] = {}
        self._versions: Optional[Tuple[Optional[str], Optional[str], Dict[str, int]]] = None
        self._index: Optional[int] = None
        self._skips = Skips()

    def read(self, only: Optional[FrozenSet[int]], processes: bool, depth: int, skips: Skips) -> raw.RawReading:
        """One reading. ``only`` limits it to these indices, ``processes`` adds the lists; ``depth`` is raw.IDENTITY (which GPUs
        and MIG devices there are), raw.MEMORY or raw.FULL."""
        self._skips = skips
        self._index = None
        reading = raw.RawReading(backend="nvml")
        try:
            nvml = self._connect()
            if depth == raw.FULL and self._versions is None:
                unread: Dict[str, int] = {}
                versions = self._try(unread, "driver_version", nvml.driver_version), self._try(unread, "cuda_version", nvml.cuda_version)
                self._versions = versions + (unread,)
            if self._versions is not None:
                reading.driver_version, reading.cuda_version, reading.unread = self._versions
            reading.count = nvml.count()
        except NvmlError as exc:
            self._nvml = None
            reason = "driver_hung" if exc.code == raw.HUNG else raw.INIT_REASONS.get(exc.code, "error")
            reading.failure = raw.Failure(reason, "NVML: %s" % exc, absent=exc.call == LOADING)
            return reading
        for index in range(reading.count):
            if only is None or index in only:
                self._index = index
                reading.gpus.append(self._gpu(nvml, index, processes, depth))
        return reading

    def _connect(self) -> Nvml:
        if self._nvml is None:
            nvml = Nvml.load(self._before)
            nvml.init()
            self._nvml = nvml
            self._handles.clear()
        return self._nvml

    def _before(self, function: str) -> None:
        code = self._skips.code(function, self._index)
        if code != raw.SUCCESS:
            raise NvmlError(code, function)
        self._beat(function, self._index)

    def _gpu(self, nvml: Nvml, index: int, processes: bool, depth: int) -> raw.RawGpu:
        gpu = raw.RawGpu(index)
        try:
            handle = self._handle(nvml, index)
            self._identify(nvml, handle, gpu)
            self._mig(nvml, handle, gpu)
            if depth >= raw.MEMORY:
                self._memory(nvml, handle, gpu)
                gpu.recovery_action = self._optional({}, "recovery_action", lambda: nvml.recovery_action(handle))
            if depth == raw.FULL:
                gpu.utilization_percent = self._optional(gpu.unread, "utilization_percent", lambda: nvml.utilization(handle))
                gpu.compute_mode = self._optional(gpu.unread, "compute_mode", lambda: nvml.compute_mode(handle))
            if processes:
                self._processes(nvml, handle, gpu)
        except NvmlError as exc:
            gpu.code = exc.code
            gpu.detail = exc.call
            self._handles.pop(index, None)  # a GPU that comes back after a reset has a new handle
            self._identities.pop(index, None)
        return gpu

    def _handle(self, nvml: Nvml, index: int) -> ctypes.c_void_p:
        if index not in self._handles:
            self._handles[index] = nvml.handle(index)
        return self._handles[index]

    def _identify(self, nvml: Nvml, handle: ctypes.c_void_p, gpu: raw.RawGpu) -> None:
        known = self._identities.get(gpu.index)
        if known is None:
            known = raw.RawGpu(gpu.index)
            known.pci_bus_id = self._try(known.unread, "pci_bus_id", lambda: nvml.pci_bus_id(handle))
            known.uuid = self._try(known.unread, "uuid", lambda: nvml.uuid(handle))
            known.name = self._try(known.unread, "name", lambda: nvml.name(handle))
            known.minor = self._try({}, "minor", lambda: nvml.minor(handle))
            if known.uuid is not None and known.name is not None:
                self._identities[gpu.index] = known
        gpu.pci_bus_id, gpu.uuid, gpu.name, gpu.minor = known.pci_bus_id, known.uuid, known.name, known.minor
        gpu.unread.update(known.unread)

    def _memory(self, nvml: Nvml, handle: ctypes.c_void_p, gpu: raw.RawGpu) -> None:
        try:
            gpu.memory = nvml.memory(handle)
        except NvmlError as exc:
            if exc.code in _WHOLE_GPU:
                raise
            gpu.memory_code = exc.code
            gpu.detail = exc.call

    def _processes(self, nvml: Nvml, handle: ctypes.c_void_p, gpu: raw.RawGpu) -> None:
        total = gpu.memory.total if gpu.memory is not None and gpu.memory.total > 0 else None
        lists = read_lists(nvml, handle, total)
        if lists.code in _WHOLE_GPU:
            raise NvmlError(lists.code, "nvmlDeviceGetComputeRunningProcesses")
        gpu.processes_code = lists.code
        gpu.bad_processes = lists.bad
        gpu.processes = lists.processes if lists.compute else None

    def _mig(self, nvml: Nvml, handle: ctypes.c_void_p, gpu: raw.RawGpu) -> None:
        """Whether it is divided, and into what. What can't be told is no "no": the memory of such a GPU is not one server's to have."""
        try:
            gpu.mig_enabled = nvml.mig_enabled(handle)
        except NvmlError as exc:
            gpu.mig_code = self._unless_absent(exc)
        if not gpu.mig_enabled and gpu.mig_code == raw.SUCCESS:
            return
        places = _MIG_PLACES
        try:
            places = nvml.mig_places(handle)
        except NvmlError as exc:
            code = self._unless_absent(exc)
            if code == raw.SUCCESS:
                places = 0
            elif gpu.mig_enabled:
                gpu.mig_code = code
        if not places and not gpu.mig_enabled:
            gpu.mig_code = raw.SUCCESS  # one that can't be divided is not
        for place in range(places):
            try:
                instance = nvml.mig_handle(handle, place)
            except NvmlError as exc:
                if exc.code not in (raw.NOT_FOUND, raw.INVALID_ARGUMENT):  # those: an empty place
                    gpu.mig_code = self._unless_absent(exc) or gpu.mig_code
                continue
            gpu.mig_devices.append(self._mig_device(nvml, instance, place))
        if gpu.mig_devices and not gpu.mig_enabled:
            gpu.mig_enabled, gpu.mig_code = True, raw.SUCCESS

    @staticmethod
    def _unless_absent(error: NvmlError) -> int:
        """The error's code; SUCCESS where it says that there is no such thing. Raises it when the whole GPU is gone."""
        if error.code in _WHOLE_GPU:
            raise error
        return raw.SUCCESS if error.code in (raw.NOT_SUPPORTED, raw.FUNCTION_NOT_FOUND) else error.code

    def _mig_device(self, nvml: Nvml, instance: ctypes.c_void_p, place: int) -> raw.RawMig:
        device = raw.RawMig(place)
        try:
            device.memory = nvml.memory(instance)
        except NvmlError as exc:
            device.code = exc.code
        device.uuid = self._try(device.unread, "uuid", lambda: nvml.uuid(instance))
        device.name = self._try(device.unread, "name", lambda: nvml.name(instance))
        device.gpu_instance_id = self._try(device.unread, "gpu_instance_id", lambda: nvml.gpu_instance_id(instance))
        device.compute_instance_id = self._try(device.unread, "compute_instance_id", lambda: nvml.compute_instance_id(instance))
        return device

    def _optional(self, unread: Dict[str, int], name: str, call: Callable[[], T]) -> Optional[T]:
        """A value that may be missing, except where its error says that the whole GPU is gone."""
        value = self._try(unread, name, call)
        if unread.get(name) in _WHOLE_GPU:
            raise NvmlError(unread[name], name)
        return value

    @staticmethod
    def _try(unread: Dict[str, int], name: str, call: Callable[[], T]) -> Optional[T]:
        """A value, or None, and then why in ``unread``."""
        try:
            return call()
        except NvmlError as exc:
            unread[name] = exc.code
            return None
