# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The driver's library as Python calls: only what is read here, with the layouts that NVML's header gives.

The library is called directly. Importing the ``pynvml`` package costs 60 to 90 ms (a thousand ctypes classes), packages of that
name differ in what they return, and none of them measures the layout of the process list, which drivers changed
without a new symbol. Whether ``pynvml`` is installed only decides whether `auto` takes this road.
"""

from __future__ import annotations

import ctypes
from typing import Any, Callable, List, Optional, Tuple

from . import raw
from .host import normal_pci

_LIBRARIES = (
    "libnvidia-ml.so.1",
    "/usr/lib/wsl/lib/libnvidia-ml.so.1",
    "/run/opengl-driver/lib/libnvidia-ml.so.1",
)
# What stands for a call where the library itself could not be loaded.
LOADING = "loading libnvidia-ml.so.1"
_MEMORY_V2 = 0x02000028  # version 2 in the top byte, the structure's size below
_RECOVERY_ACTION_FIELD = 230
# More than these no host has: a count beyond them is not one.
_MOST_GPUS, _MOST_MIG_DEVICES = 1024, 64
_COMPUTE_MODES = ("Default", "Exclusive_Thread", "Prohibited", "Exclusive_Process")
_RECOVERY_ACTIONS = ("None", "Reset", "Reboot", "Drain P2P", "Drain and Reset", "Recover IMEX Domain", "Bus Reset", "Reboot")


class NvmlError(Exception):
    """A call that did not succeed: NVML's return code and the call's name."""

    def __init__(self, code: int, call: str) -> None:
        super().__init__("%s: %s" % (call, raw.code_text(code)))
        self.code = code
        self.call = call


class _Memory(ctypes.Structure):
    _fields_ = [("total", ctypes.c_ulonglong), ("free", ctypes.c_ulonglong), ("used", ctypes.c_ulonglong)]


class _MemoryV2(ctypes.Structure):
    _fields_ = [
        ("version", ctypes.c_uint),
        ("total", ctypes.c_ulonglong),
        ("reserved", ctypes.c_ulonglong),
        ("free", ctypes.c_ulonglong),
        ("used", ctypes.c_ulonglong),
    ]


class _PciInfo(ctypes.Structure):
    _fields_ = [
        ("legacy", ctypes.c_char * 16),
        ("domain", ctypes.c_uint),
        ("bus", ctypes.c_uint),
        ("device", ctypes.c_uint),
        ("device_id", ctypes.c_uint),
        ("subsystem_id", ctypes.c_uint),
        ("bus_id", ctypes.c_char * 32),
    ]


class _Utilization(ctypes.Structure):
    _fields_ = [("gpu", ctypes.c_uint), ("memory", ctypes.c_uint)]


class _FieldValue(ctypes.Structure):
    _fields_ = [
        ("field", ctypes.c_uint),
        ("scope", ctypes.c_uint),
        ("timestamp", ctypes.c_longlong),
        ("latency", ctypes.c_longlong),
        ("type", ctypes.c_uint),
        ("code", ctypes.c_uint),
        ("value", ctypes.c_ulonglong),
    ]


class Nvml:
    """The loaded library. Every method raises NvmlError; handles are opaque and never null.

    ``before`` is told the name of each call right before it is made, so that a call that never returns can be named.
    """

    def __init__(self, library: Any, before: Callable[[str], None]) -> None:
        self._library = library
        self._before = before

    @classmethod
    def load(cls, before: Callable[[str], None]) -> Nvml:
        """Load the library. Raises NvmlError(LIBRARY_NOT_FOUND)."""
        for name in _LIBRARIES:
            try:
                return cls(ctypes.CDLL(name), before)
            except OSError:
                continue
        raise NvmlError(raw.LIBRARY_NOT_FOUND, LOADING)

    def has(self, name: str) -> bool:
        """Whether the library exports a function."""
        return hasattr(self._library, name)

    def code(self, name: str, *arguments: Any) -> int:
        """Make one call and return its code; FUNCTION_NOT_FOUND where the library lacks it."""
        function = getattr(self._library, name, None)
        if function is None:
            return raw.FUNCTION_NOT_FOUND
        self._before(name)
        return int(function(*arguments))

    def check(self, name: str, *arguments: Any) -> None:
        """Make one call and raise unless it succeeds."""
        code = self.code(name, *arguments)
        if code != raw.SUCCESS:
            raise NvmlError(code, name)

    def init(self) -> None:
        """Connect to the driver."""
        self.check("nvmlInit_v2" if self.has("nvmlInit_v2") else "nvmlInit")

    def driver_version(self) -> str:
        """For example ``580.95.05``."""
        return self._string("nvmlSystemGetDriverVersion", 80)

    def cuda_version(self) -> str:
        """The newest CUDA that the driver can run, for example ``13.0``."""
        number = ctypes.c_int()
        name = "nvmlSystemGetCudaDriverVersion_v2"
        self.check(name if self.has(name) else "nvmlSystemGetCudaDriverVersion", ctypes.byref(number))
        if number.value < 1000:
            raise NvmlError(raw.BAD_ANSWER, name)
        return "%d.%d" % (number.value // 1000, number.value % 1000 // 10)

    def count(self) -> int:
        """How many GPUs the driver shows."""
        name = "nvmlDeviceGetCount_v2" if self.has("nvmlDeviceGetCount_v2") else "nvmlDeviceGetCount"
        number = ctypes.c_uint()
        self.check(name, ctypes.byref(number))
        if number.value > _MOST_GPUS:
            raise NvmlError(raw.BAD_ANSWER, name)
        return number.value

    def handle(self, index: int) -> ctypes.c_void_p:
        """The GPU with this index."""
        name = "nvmlDeviceGetHandleByIndex_v2" if self.has("nvmlDeviceGetHandleByIndex_v2") else "nvmlDeviceGetHandleByIndex"
        return self._handle(name, ctypes.c_uint(index))

    def mig_handle(self, parent: ctypes.c_void_p, index: int) -> ctypes.c_void_p:
        """The MIG device with this index within its parent; NOT_FOUND for an empty place."""
        handle = ctypes.c_void_p()
        self.check("nvmlDeviceGetMigDeviceHandleByIndex", parent, ctypes.c_uint(index), ctypes.byref(handle))
        return _not_null(handle, "nvmlDeviceGetMigDeviceHandleByIndex")

    def name(self, handle: ctypes.c_void_p) -> str:
        """The product's name."""
        return self._string("nvmlDeviceGetName", 96, handle)

    def uuid(self, handle: ctypes.c_void_p) -> str:
        """``GPU-...`` or ``MIG-...``."""
        return self._string("nvmlDeviceGetUUID", 96, handle)

    def pci_bus_id(self, handle: ctypes.c_void_p) -> str:
        """In the driver's newer form, for example ``00000000:1B:00.0``; old ones write four digits in front."""
        info = _PciInfo()
        for name in ("nvmlDeviceGetPciInfo_v3", "nvmlDeviceGetPciInfo_v2"):
            if self.has(name):
                self.check(name, handle, ctypes.byref(info))
                address = normal_pci(_decode(info.bus_id or info.legacy))
                if address is None:
                    raise NvmlError(raw.BAD_ANSWER, name)
                return address
        raise NvmlError(raw.FUNCTION_NOT_FOUND, "nvmlDeviceGetPciInfo_v3")

    def minor(self, handle: ctypes.c_void_p) -> int:
        """The N of /dev/nvidiaN."""
        return self._number("nvmlDeviceGetMinorNumber", handle)

    def memory(self, handle: ctypes.c_void_p) -> raw.RawMemory:
        """Memory by version 2, which tells the driver's reserve apart; by version 1 where there is no other."""
        second = _MemoryV2(version=_MEMORY_V2)
        code = self.code("nvmlDeviceGetMemoryInfo_v2", handle, ctypes.byref(second))
        if code == raw.SUCCESS:
            return raw.RawMemory(second.total, second.used, second.free, second.reserved)
        if code not in (raw.FUNCTION_NOT_FOUND, raw.NOT_SUPPORTED, raw.ARGUMENT_VERSION_MISMATCH, raw.INVALID_ARGUMENT):
            raise NvmlError(code, "nvmlDeviceGetMemoryInfo_v2")
        first = _Memory()
        self.check("nvmlDeviceGetMemoryInfo", handle, ctypes.byref(first))
        return raw.RawMemory(first.total, first.used, first.free)

    def utilization(self, handle: ctypes.c_void_p) -> int:
        """Percent of the last sample period during which a kernel ran."""
        rates = _Utilization()
        self.check("nvmlDeviceGetUtilizationRates", handle, ctypes.byref(rates))
        return int(rates.gpu)

    def compute_mode(self, handle: ctypes.c_void_p) -> str:
        """As nvidia-smi writes it: Default, Exclusive_Process, Prohibited."""
        number = self._number("nvmlDeviceGetComputeMode", handle)
        return _COMPUTE_MODES[number] if number < len(_COMPUTE_MODES) else str(number)

    def mig_enabled(self, handle: ctypes.c_void_p) -> bool:
        """Whether the GPU is divided now."""
        current, pending = ctypes.c_uint(), ctypes.c_uint()
        self.check("nvmlDeviceGetMigMode", handle, ctypes.byref(current), ctypes.byref(pending))
        return current.value == 1

    def mig_places(self, handle: ctypes.c_void_p) -> int:
        """How many MIG devices the GPU can have at most."""
        return min(self._number("nvmlDeviceGetMaxMigDeviceCount", handle), _MOST_MIG_DEVICES)

    def gpu_instance_id(self, handle: ctypes.c_void_p) -> int:
        """The GPU instance of a MIG device."""
        return self._number("nvmlDeviceGetGpuInstanceId", handle)

    def compute_instance_id(self, handle: ctypes.c_void_p) -> int:
        """The compute instance of a MIG device."""
        return self._number("nvmlDeviceGetComputeInstanceId", handle)

    def recovery_action(self, handle: ctypes.c_void_p) -> str:
        """What the driver wants done about the GPU: ``None``, ``Reset``, ``Reboot`` ..."""
        value = _FieldValue(field=_RECOVERY_ACTION_FIELD)
        self.check("nvmlDeviceGetFieldValues", handle, ctypes.c_int(1), ctypes.byref(value))
        if value.code != raw.SUCCESS:
            raise NvmlError(int(value.code), "nvmlDeviceGetFieldValues")
        number = int(value.value) & 0xFFFFFFFF
        return _RECOVERY_ACTIONS[number] if number < len(_RECOVERY_ACTIONS) else str(number)

    def _string(self, name: str, size: int, *before: Any) -> str:
        buffer = ctypes.create_string_buffer(size)
        self.check(name, *before, buffer, ctypes.c_uint(size))
        if not buffer.value:
            raise NvmlError(raw.BAD_ANSWER, name)
        return _decode(buffer.value)

    def _number(self, name: str, handle: ctypes.c_void_p) -> int:
        number = ctypes.c_uint()
        self.check(name, handle, ctypes.byref(number))
        return number.value

    def _handle(self, name: str, *before: Any) -> ctypes.c_void_p:
        handle = ctypes.c_void_p()
        self.check(name, *before, ctypes.byref(handle))
        return _not_null(handle, name)


def _not_null(handle: ctypes.c_void_p, call: str) -> ctypes.c_void_p:
    # some drivers answer "success" with a null handle for a GPU that fell off the bus; passing it on crashes the library
    if not handle:
        raise NvmlError(raw.UNKNOWN, call)
    return handle


def _decode(text: bytes) -> str:
    return text.decode("utf-8", "replace")


def function_of_list(nvml: Nvml, kind: str) -> Optional[str]:
    """The newest function that lists the processes of a kind (Compute, Graphics, MPSCompute); None where there is none."""
    for suffix in ("_v3", "_v2", ""):
        name = "nvmlDeviceGet%sRunningProcesses%s" % (kind, suffix)
        if nvml.has(name):
            return name
    return None


def call_list(nvml: Nvml, name: str, handle: ctypes.c_void_p, buffer: Any, room: int) -> Tuple[int, int]:
    """One call of a list function: (return code, count that the driver put back)."""
    count = ctypes.c_uint(room)
    code = nvml.code(name, handle, ctypes.byref(count), buffer)
    return code, count.value


LISTS: List[Tuple[str, str]] = [("Compute", "C"), ("Graphics", "G"), ("MPSCompute", "M")]
