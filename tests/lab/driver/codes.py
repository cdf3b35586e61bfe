# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The NVML return codes, with the texts that the library and nvidia-smi print for them."""
# Part of the nvidia-smi program too: standard library, Python 3.9.

from __future__ import annotations

SUCCESS = 0
UNINITIALIZED = 1
INVALID_ARGUMENT = 2
NOT_SUPPORTED = 3
NO_PERMISSION = 4
ALREADY_INITIALIZED = 5
NOT_FOUND = 6
INSUFFICIENT_SIZE = 7
INSUFFICIENT_POWER = 8
DRIVER_NOT_LOADED = 9
TIMEOUT = 10
IRQ_ISSUE = 11
LIBRARY_NOT_FOUND = 12
FUNCTION_NOT_FOUND = 13
CORRUPTED_INFOROM = 14
GPU_IS_LOST = 15
RESET_REQUIRED = 16
OPERATING_SYSTEM = 17
LIB_RM_VERSION_MISMATCH = 18
IN_USE = 19
MEMORY = 20
NO_DATA = 21
VGPU_ECC_NOT_SUPPORTED = 22
INSUFFICIENT_RESOURCES = 23
FREQ_NOT_SUPPORTED = 24
ARGUMENT_VERSION_MISMATCH = 25
DEPRECATED = 26
NOT_READY = 27
GPU_NOT_FOUND = 28
INVALID_STATE = 29
RESET_TYPE_NOT_SUPPORTED = 30
UNKNOWN = 999

TEXTS = {
    SUCCESS: "Success",
    UNINITIALIZED: "Uninitialized",
    INVALID_ARGUMENT: "Invalid Argument",
    NOT_SUPPORTED: "Not Supported",
    NO_PERMISSION: "Insufficient Permissions",
    ALREADY_INITIALIZED: "Already Initialized",
    NOT_FOUND: "Not Found",
    INSUFFICIENT_SIZE: "Insufficient Size",
    INSUFFICIENT_POWER: "Insufficient External Power",
    DRIVER_NOT_LOADED: "Driver Not Loaded",
    TIMEOUT: "Timeout",
    IRQ_ISSUE: "Interrupt Request Issue",
    LIBRARY_NOT_FOUND: "NVML Shared Library Not Found",
    FUNCTION_NOT_FOUND: "Function Not Found",
    CORRUPTED_INFOROM: "Corrupted infoROM",
    GPU_IS_LOST: "GPU is lost",
    RESET_REQUIRED: "GPU requires reset",
    OPERATING_SYSTEM: "GPU access blocked by the operating system",
    LIB_RM_VERSION_MISMATCH: "Driver/library version mismatch",
    IN_USE: "In use by another client",
    MEMORY: "Insufficient Memory",
    NO_DATA: "No data",
    VGPU_ECC_NOT_SUPPORTED: "The requested vgpu operation is not available on target device, because ECC is enabled",
    INSUFFICIENT_RESOURCES: "Insufficient Resources",
    FREQ_NOT_SUPPORTED: "Frequency not supported",
    ARGUMENT_VERSION_MISMATCH: "Argument version mismatch",
    DEPRECATED: "Requested functionality has been deprecated",
    NOT_READY: "Not Ready",
    GPU_NOT_FOUND: "No GPUs were found",
    INVALID_STATE: "Invalid State",
    RESET_TYPE_NOT_SUPPORTED: "Reset type not supported",
    UNKNOWN: "Unknown Error",
}


def text_of(code: int) -> str:
    """The driver's own wording for a return code; "Unknown Error" for one it does not know, as NVML does."""
    return TEXTS.get(code, TEXTS[UNKNOWN])
