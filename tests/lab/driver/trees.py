# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a host shows of its GPUs beside the driver's calls: the PCI bus in /sys and the driver in /proc."""

from __future__ import annotations

import os
from pathlib import Path

from .scenario import Gpu, Scenario


def write_pci_tree(directory: Path, scenario: Scenario) -> None:
    """Entries of /sys/bus/pci/devices, one directory per GPU, also of those that the driver does not show."""
    for gpu in scenario.gpus:
        here = directory / str(gpu.pci_bus_id)
        here.mkdir(parents=True, exist_ok=True)
        vendor, device = gpu.pci_device_id & 0xFFFF, gpu.pci_device_id >> 16
        subsystem_vendor, subsystem = gpu.pci_subsystem_id & 0xFFFF, gpu.pci_subsystem_id >> 16
        controller = 0x030000 if gpu.display_active else 0x030200  # VGA-compatible, or 3D controller
        for name, text in {
            "vendor": f"0x{vendor:04x}",
            "device": f"0x{device:04x}",
            "class": f"0x{controller:06x}",
            "subsystem_vendor": f"0x{subsystem_vendor:04x}",
            "subsystem_device": f"0x{subsystem:04x}",
            "revision": "0xa1",
            "enable": "1",
            "numa_node": "0",
        }.items():
            (here / name).write_text(text + "\n", encoding="ascii")
        _link_driver(here, bound=gpu.visible and scenario.init_code != 9)


def _link_driver(device: Path, *, bound: bool) -> None:
    """The link that names the driver which has the device, if one has it."""
    link = device / "driver"
    if link.is_symlink():
        link.unlink()
    if bound:
        os.symlink("../../../bus/pci/drivers/nvidia", link)


def write_proc_tree(directory: Path, scenario: Scenario) -> None:
    """The files of /proc/driver/nvidia: the loaded module's version and one directory per GPU."""
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "version").write_text(_version(scenario), encoding="ascii")
    (directory / "params").write_text(_PARAMS, encoding="ascii")
    gpus = directory / "gpus"
    gpus.mkdir(exist_ok=True)
    for gpu in scenario.gpus:
        here = gpus / str(gpu.pci_bus_id)
        if gpu.visible:
            here.mkdir(exist_ok=True)
            (here / "information").write_bytes(_information(gpu, scenario))


def _version(scenario: Scenario) -> str:
    return (
        f"NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  {scenario.kernel_version}  Release Build  "
        "(dvs-builder@U22-I3-AE18-23-3)  Tue Sep 23 09:55:41 UTC 2025\n"
        "GCC version:  gcc version 12.2.0 (Debian 12.2.0-14+deb12u1) \n"
    )


_PARAMS = (
    "ResmanDebugLevel: 4294967295\nModifyDeviceFiles: 1\nDeviceFileUID: 0\nDeviceFileGID: 0\nDeviceFileMode: 438\n"
)


def _information(gpu: Gpu, scenario: Scenario) -> bytes:
    rows = [
        ("Model:", gpu.name),
        ("IRQ:  ", str(100 + int(gpu.minor or 0))),
        ("GPU UUID:", str(gpu.uuid)),
        ("Video BIOS:", gpu.vbios),
        ("Bus Type:", "PCIe"),
        ("DMA Size:", "52 bits"),
        ("DMA Mask:", "0xfffffffffffff"),
        ("Bus Location:", str(gpu.pci_bus_id)),
        ("Device Minor:", str(gpu.minor)),
        ("GPU Firmware:", scenario.kernel_version),
        ("GPU Excluded:", "No"),
    ]
    return "".join(f"{name} \t {value}\n" for name, value in rows).encode("utf-8", "surrogateescape")
