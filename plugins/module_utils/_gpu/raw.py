# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a backend read, before it is judged: both backends fill these, and one assembly makes the snapshot of them.

Memory is in bytes here, as NVML gives it. Whatever could not be read is None, with the NVML code or a text that says why.
"""

from __future__ import annotations

from typing import Dict, List, NamedTuple, Optional, Sequence, Tuple

# NVML's return codes that mean something of their own here.
SUCCESS = 0
INVALID_ARGUMENT = 2
NOT_SUPPORTED = 3
NO_PERMISSION = 4
NOT_FOUND = 6
INSUFFICIENT_SIZE = 7
DRIVER_NOT_LOADED = 9
LIBRARY_NOT_FOUND = 12
FUNCTION_NOT_FOUND = 13
GPU_IS_LOST = 15
RESET_REQUIRED = 16
LIB_RM_VERSION_MISMATCH = 18
ARGUMENT_VERSION_MISMATCH = 25
NO_GPUS = 28
UNKNOWN = 999
# Not NVML's: what the reading itself met.
HUNG = -1
CRASHED = -2
BAD_ANSWER = -3

# How much of each GPU is read: who it is; its memory and state too; everything.
IDENTITY, MEMORY, FULL = 0, 1, 2

CODE_TEXTS: Dict[int, str] = {
    1: "NVML is not initialised",
    INVALID_ARGUMENT: "invalid argument",
    NOT_SUPPORTED: "not supported",
    NO_PERMISSION: "insufficient permissions",
    NOT_FOUND: "not found",
    DRIVER_NOT_LOADED: "driver not loaded",
    10: "time-out inside the driver",
    11: "interrupt request issue",
    LIBRARY_NOT_FOUND: "NVML library not found",
    FUNCTION_NOT_FOUND: "the driver's library lacks this function",
    14: "corrupted infoROM",
    GPU_IS_LOST: "GPU is lost (fallen off the bus or otherwise inaccessible)",
    RESET_REQUIRED: "GPU requires reset",
    17: "GPU access blocked by the operating system",
    LIB_RM_VERSION_MISMATCH: "driver/library version mismatch",
    19: "in use by another client",
    20: "insufficient memory",
    21: "no data",
    ARGUMENT_VERSION_MISMATCH: "argument version mismatch",
    27: "not ready",
    NO_GPUS: "no GPUs were found",
    29: "invalid state",
    UNKNOWN: "unknown error",
    HUNG: "driver_hung: the driver did not answer in time",
    CRASHED: "the driver's library crashed",
    BAD_ANSWER: "the driver's answer makes no sense",
}

# What a failed nvmlInit means, in the contract's words; every other code is "error".
INIT_REASONS: Dict[int, str] = {
    DRIVER_NOT_LOADED: "no_driver",
    LIBRARY_NOT_FOUND: "library_missing",
    LIB_RM_VERSION_MISMATCH: "driver_library_mismatch",
    NO_PERMISSION: "permission",
}


def code_text(code: int) -> str:
    """A return code in words."""
    return CODE_TEXTS.get(code, "NVML error %d" % code)


class RawMemory(NamedTuple):
    """Bytes. ``reserved`` None: the driver counts its reserve as used."""

    total: int
    used: int
    free: int
    reserved: Optional[int] = None


class RawProcess(NamedTuple):
    """One entry of one list. ``kind`` is C, G or M; the instance ids are those of MIG, None elsewhere."""

    pid: int
    kind: str
    used: Optional[int]
    gpu_instance_id: Optional[int] = None
    compute_instance_id: Optional[int] = None


class _Plain:
    """What a dataclass would give these classes. One of their size writes and compiles its methods anew in every process, which costs
    a short look at an idle host more than anything that is done with them."""

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and vars(other) == vars(self)

    def __repr__(self) -> str:
        return "%s(%s)" % (type(self).__name__, ", ".join("%s=%r" % each for each in vars(self).items()))


class RawMig(_Plain):
    """One MIG device. ``unread`` as for a GPU."""

    def __init__(
        self,
        index: int,
        uuid: Optional[str] = None,
        name: Optional[str] = None,
        gpu_instance_id: Optional[int] = None,
        compute_instance_id: Optional[int] = None,
        code: int = SUCCESS,
        memory: Optional[RawMemory] = None,
        unread: Optional[Dict[str, int]] = None,
    ) -> None:
        self.index = index
        self.uuid = uuid
        self.name = name
        self.gpu_instance_id = gpu_instance_id
        self.compute_instance_id = compute_instance_id
        self.code = code
        self.memory = memory
        self.unread: Dict[str, int] = dict(unread or {})


class RawGpu(_Plain):
    """One GPU. ``code`` is the first error that stands for the whole GPU; ``memory_code`` that of its memory alone.

    ``mig_code`` is why it is not known whether it is divided, or (where it is) into what. ``processes`` None: its lists could not be
    read. ``unread`` says of other values that are None why they are: what it is called -> the code.
    """

    def __init__(
        self,
        index: int,
        uuid: Optional[str] = None,
        pci_bus_id: Optional[str] = None,
        name: Optional[str] = None,
        minor: Optional[int] = None,
        code: int = SUCCESS,
        detail: Optional[str] = None,
        memory: Optional[RawMemory] = None,
        memory_code: int = SUCCESS,
        utilization_percent: Optional[int] = None,
        compute_mode: Optional[str] = None,
        recovery_action: Optional[str] = None,
        mig_enabled: bool = False,
        mig_code: int = SUCCESS,
        mig_devices: Sequence[RawMig] = (),
        processes: Optional[List[RawProcess]] = None,
        processes_code: int = SUCCESS,
        bad_processes: int = 0,
        unread: Optional[Dict[str, int]] = None,
    ) -> None:
        self.index = index
        self.uuid = uuid
        self.pci_bus_id = pci_bus_id
        self.name = name
        self.minor = minor
        self.code = code
        self.detail = detail
        self.memory = memory
        self.memory_code = memory_code
        self.utilization_percent = utilization_percent
        self.compute_mode = compute_mode
        self.recovery_action = recovery_action
        self.mig_enabled = mig_enabled
        self.mig_code = mig_code
        self.mig_devices = list(mig_devices)
        self.processes = processes
        self.processes_code = processes_code
        self.bad_processes = bad_processes
        self.unread: Dict[str, int] = dict(unread or {})


class Failure(NamedTuple):
    """Why nothing could be read; ``reason`` as in the contract. ``absent``: what would read the driver is not installed."""

    reason: str
    detail: str
    absent: bool = False


class RawReading(_Plain):
    """Everything one backend read in one go. ``unread`` as for a GPU."""

    def __init__(
        self,
        backend: Optional[str] = None,
        failure: Optional[Failure] = None,
        driver_version: Optional[str] = None,
        cuda_version: Optional[str] = None,
        count: Optional[int] = None,
        gpus: Sequence[RawGpu] = (),
        notes: Tuple[str, ...] = (),
        unread: Optional[Dict[str, int]] = None,
    ) -> None:
        self.backend = backend
        self.failure = failure
        self.driver_version = driver_version
        self.cuda_version = cuda_version
        self.count = count
        self.gpus = list(gpus)
        self.notes = notes
        self.unread: Dict[str, int] = dict(unread or {})
