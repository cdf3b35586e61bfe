# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""--query-compute-apps: the processes with a compute context."""
# Runs on hosts, in one file with its package: standard library alone, Python 3.9.

from __future__ import annotations

from typing import List, Tuple

from .. import codes
from .driver import MIB, Gpu, NvmlError, Process
from .query_gpu import timestamp
from .table import Field, by_name


def _used(_gpu: Gpu, process: Process) -> str:
    if process.used is None:
        raise NvmlError(codes.NOT_SUPPORTED)
    return str(process.used // MIB)


def _name(gpu: Gpu, process: Process) -> str:
    return gpu.process_name(process.pid)


FIELDS: List[Field] = [
    Field("timestamp", "", lambda gpu, process: timestamp(), "When the query was made."),
    Field("gpu_name", "", lambda gpu, process: gpu.one("nvmlDeviceGetName"), "The product name of the GPU."),
    Field("gpu_bus_id", "", lambda gpu, process: gpu.bus_id, "PCI bus id as domain:bus:device.function, in hex."),
    Field("gpu_serial", "", lambda gpu, process: gpu.one("nvmlDeviceGetSerial"), "The serial number on the board."),
    Field("gpu_uuid", "", lambda gpu, process: gpu.uuid, "The unique identifier of the GPU."),
    Field("pid", "", lambda gpu, process: str(process.pid), "Process id of the compute application."),
    Field("process_name name", "", _name, "Process name."),
    Field("used_gpu_memory used_memory", "MiB", _used, "Memory that the context uses on the device."),
]

BY_NAME = by_name(FIELDS)


def subjects(gpus: List[Gpu]) -> List[Tuple[Gpu, Process]]:
    """Each process that computes, with its GPU. Raises NvmlError when a GPU's list can't be read."""
    return [(gpu, process) for gpu in gpus for process in gpu.listed("Compute")]
