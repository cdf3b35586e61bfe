# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the kernel says about GPUs by itself."""

from __future__ import annotations

from pathlib import Path

import pytest

from ansible_collections.gpufleet.vllm.plugins.module_utils._gpu import host


@pytest.mark.parametrize(
    ("text", "normal"),
    [
        ("0000:1b:00.0", "00000000:1B:00.0"),
        ("00000000:1B:00.0", "00000000:1B:00.0"),
        ("1b:00.0", "00000000:1B:00.0"),
        ("000f:01:00.0", "0000000F:01:00.0"),
        (" 0000:1B:00.0 ", "00000000:1B:00.0"),
        ("12", None),
        ("GPU-1", None),
        ("0000:1b:00", None),
        ("0000:1b:00.0x", None),
    ],
)
def test_addresses_have_one_form(text: str, normal: "str | None") -> None:
    assert host.normal_pci(text) == normal


def device(root: Path, address: str, vendor: str = "0x10de", kind: str = "0x030000", virtual: bool = False) -> None:
    """One device of the PCI bus."""
    base = root / "bus/pci/devices" / address
    base.mkdir(parents=True)
    (base / "vendor").write_text(vendor + "\n")
    (base / "class").write_text(kind + "\n")
    if virtual:
        (base / "physfn").mkdir()


def test_gpus_on_the_bus_are_counted_and_nothing_else(tmp_path: Path) -> None:
    device(tmp_path, "0000:41:00.0", kind="0x030200")
    device(tmp_path, "0000:01:00.0")
    device(tmp_path, "0000:01:00.1", kind="0x040300")  # its audio function
    device(tmp_path, "0000:02:00.0", vendor="0x1002")
    device(tmp_path, "0000:05:00.0", kind="0x068000")  # an NVSwitch
    device(tmp_path, "0000:41:00.4", kind="0x030200", virtual=True)
    assert host.pci_gpus(str(tmp_path)) == ["00000000:01:00.0", "00000000:41:00.0"]
    assert host.pci_gpus(str(tmp_path / "nothing")) is None


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ("NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.90.07  Fri May 31 09:35:42 UTC 2024\nGCC version: gcc 12\n", "550.90.07"),
        ("NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.124.06  Release Build  (root@x)\n", "570.124.06"),
        ("NVRM version: NVIDIA UNIX Open Kernel Module for aarch64  580.95  Release Build\n", "580.95"),
        ("something else\n", None),
    ],
)
def test_the_loaded_module_has_a_version(tmp_path: Path, text: str, version: "str | None") -> None:
    path = tmp_path / "driver/nvidia/version"
    path.parent.mkdir(parents=True)
    path.write_text(text)
    assert host.module_version(str(tmp_path)) == version
    assert host.module_loaded(str(tmp_path))


def test_the_module_names_its_gpus_and_their_nodes(tmp_path: Path) -> None:
    for address, minor in (("0000:41:00.0", 0), ("0000:01:00.0", 1)):
        path = tmp_path / "driver/nvidia/gpus" / address / "information"
        path.parent.mkdir(parents=True)
        path.write_text("Model: \t\t NVIDIA A\nIRQ:   \t\t 5\nDevice Minor: \t %d\n" % minor)
    assert host.driver_gpus(str(tmp_path)) == ["00000000:01:00.0", "00000000:41:00.0"]
    assert host.driver_minor("00000000:01:00.0", str(tmp_path)) == 1
    assert host.driver_minor("00000000:99:00.0", str(tmp_path)) is None
    assert host.driver_gpus(str(tmp_path / "nothing")) is None
    assert host.driver_minor("00000000:01:00.0", str(tmp_path / "nothing")) is None
    assert not host.module_loaded(str(tmp_path / "nothing"))


def test_the_hosts_memory_in_mib(tmp_path: Path) -> None:
    (tmp_path / "meminfo").write_text("MemTotal:  125829120 kB\nMemFree:  1048576 kB\nMemAvailable: 104857600 kB\nBuffers: x\n")
    assert host.meminfo(str(tmp_path)) == host.MemInfo(122880, 1024, 102400)
    (tmp_path / "meminfo").write_text("MemTotal:  125829120 kB\n")
    assert host.meminfo(str(tmp_path)) is None
    assert host.meminfo(str(tmp_path / "nothing")) is None
