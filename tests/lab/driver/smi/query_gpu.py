# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""--query-gpu: its fields, their names, units and readings."""
# Runs on hosts, in one file with its package: standard library alone, Python 3.9.

from __future__ import annotations

import time
from typing import Callable, Dict, List

from . import values
from .driver import MIB, Gpu
from .table import Field, by_name

Read = Callable[[Gpu], str]


def timestamp() -> str:
    """Now, in nvidia-smi's form."""
    now = time.time()
    return time.strftime("%Y/%m/%d %H:%M:%S", time.localtime(now)) + ".%03d" % (now % 1 * 1000)


def _memory(part: str) -> Read:
    return lambda gpu: str(gpu.memory()[part])


def _word(call: str, position: int = 0) -> Read:
    return lambda gpu: gpu.get(call)[position]


def _named(table: Dict[str, str], call: str) -> Read:
    return lambda gpu: table.get(gpu.one(call), "Unknown")


def _mode(call: str, position: int = 0) -> Read:
    return lambda gpu: values.enabled(gpu.get(call)[position])


def _watts(call: str) -> Read:
    return lambda gpu: "%.2f" % (int(gpu.one(call)) / 1000)


def _hex(position: int, digits: int) -> Read:
    return lambda gpu: "0x%0*X" % (digits, int(gpu.get("nvmlDeviceGetPciInfo_v3")[position]))


def _field_value(number: int, table: Dict[str, str]) -> Read:
    return lambda gpu: table.get(values.field(gpu, number), "Unknown")


def _bar1(position: int) -> Read:
    return lambda gpu: str(int(gpu.get("nvmlDeviceGetBAR1MemoryInfo")[position]) // MIB)


_YES_NO = {"0": "No", "1": "Yes"}

FIELDS: List[Field] = [
    Field("timestamp", "", lambda gpu: timestamp(), "When the query was made."),
    Field("driver_version", "", lambda gpu: gpu.driver.driver_version, "The version of the installed driver."),
    Field("count", "", lambda gpu: gpu.driver.call("nvmlDeviceGetCount_v2")[0], "The number of GPUs in the system."),
    Field("name gpu_name", "", values.product_name, "The product name of the GPU."),
    Field("serial gpu_serial", "", _word("nvmlDeviceGetSerial"), "The serial number on the board."),
    Field("uuid gpu_uuid", "", _word("nvmlDeviceGetUUID"), "The unique identifier of the GPU."),
    Field("pci.bus_id gpu_bus_id", "", lambda gpu: gpu.bus_id, "PCI bus id as domain:bus:device.function, in hex."),
    Field("pci.domain", "", _hex(1, 4), "PCI domain number, in hex."),
    Field("pci.bus", "", _hex(2, 2), "PCI bus number, in hex."),
    Field("pci.device", "", _hex(3, 2), "PCI device number, in hex."),
    Field("pci.device_id", "", _hex(4, 8), "PCI vendor and device id, in hex."),
    Field("pci.sub_device_id", "", _hex(5, 8), "PCI subsystem id, in hex."),
    Field("vbios_version", "", _word("nvmlDeviceGetVbiosVersion"), "The version of the GPU's BIOS."),
    Field("index", "", lambda gpu: str(gpu.index), "Zero based index of the GPU; it can change at each boot."),
    Field("display_active", "", _mode("nvmlDeviceGetDisplayActive"), "Whether a display is initialised on the GPU."),
    Field("persistence_mode", "", _mode("nvmlDeviceGetPersistenceMode"), "Whether the driver stays loaded."),
    Field("mig.mode.current", "", _mode("nvmlDeviceGetMigMode"), "The MIG mode in force."),
    Field("mig.mode.pending", "", _mode("nvmlDeviceGetMigMode", 1), "The MIG mode after the next reset."),
    Field("fan.speed", "%", _word("nvmlDeviceGetFanSpeed"), "The fan's speed, percent of its maximum."),
    Field("pstate", "", lambda gpu: "P" + gpu.one("nvmlDeviceGetPerformanceState"), "The performance state."),
    Field("memory.total", "MiB", _memory("total"), "Total memory of the GPU."),
    Field("memory.reserved", "MiB", _memory("reserved"), "Memory reserved by the driver and firmware."),
    Field("memory.used", "MiB", _memory("used"), "Memory allocated by active contexts."),
    Field("memory.free", "MiB", _memory("free"), "Free memory."),
    Field("compute_mode", "", _named(values.COMPUTE_MODES, "nvmlDeviceGetComputeMode"), "Who may open contexts."),
    Field("compute_cap", "", lambda gpu: ".".join(gpu.get("nvmlDeviceGetCudaComputeCapability")), "CUDA capability."),
    Field("utilization.gpu", "%", _word("nvmlDeviceGetUtilizationRates"), "Time during which kernels ran."),
    Field("utilization.memory", "%", _word("nvmlDeviceGetUtilizationRates", 1), "Time during which memory was used."),
    Field("ecc.mode.current", "", _mode("nvmlDeviceGetEccMode"), "The ECC mode in force."),
    Field("ecc.mode.pending", "", _mode("nvmlDeviceGetEccMode", 1), "The ECC mode after the next reboot."),
    Field("retired_pages.pending", "", _named(_YES_NO, "nvmlDeviceGetRetiredPagesPendingStatus"), "Pages to retire."),
    Field("temperature.gpu", "", _word("nvmlDeviceGetTemperature"), "Core temperature, degrees C."),
    Field("power.draw", "W", _watts("nvmlDeviceGetPowerUsage"), "The last measured power draw of the board."),
    Field("power.limit", "W", _watts("nvmlDeviceGetPowerManagementLimit"), "The software power limit."),
    Field("enforced.power.limit", "W", _watts("nvmlDeviceGetEnforcedPowerLimit"), "The power limit in force."),
    Field("clocks.current.sm clocks.sm", "MHz", _word("nvmlDeviceGetSmClock"), "The SMs' frequency."),
    Field("clocks.current.memory clocks.mem", "MHz", _word("nvmlDeviceGetMemClock"), "The memory's frequency."),
    Field("gpu_recovery_action", "", _field_value(230, values.RECOVERY), "What would make the GPU usable again."),
    Field("reset_status.reset_required", "", _field_value(226, _YES_NO), "Whether the GPU needs a reset."),
]

BY_NAME = by_name(FIELDS)
