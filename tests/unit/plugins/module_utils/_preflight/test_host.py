# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Room, memory and the fabric manager of a host."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.gpufleet.vllm.plugins.module_utils._core.errors import GpuFleetError
from ansible_collections.gpufleet.vllm.plugins.module_utils._core.runner import Runner
from ansible_collections.gpufleet.vllm.plugins.module_utils._preflight.asked import Asked, Places
from ansible_collections.gpufleet.vllm.plugins.module_utils._preflight.host import check_fabric, check_host_memory
from ansible_collections.gpufleet.vllm.plugins.module_utils._preflight.room import check_room
from ansible_collections.gpufleet.vllm.plugins.module_utils._systemd.manager import Systemd
from ansible_collections.gpufleet.vllm.plugins.module_utils._systemd.show import UnitStatus

MIB = 1 << 20


class Units(Systemd):
    """systemd with one unit, or one that gives no answer."""

    def __init__(self, state: str | None) -> None:
        super().__init__(Runner())
        self.state = state

    def status(self, unit: str) -> UnitStatus:
        if self.state is None:
            raise GpuFleetError("no answer")
        if self.state == "not-found":
            return UnitStatus(unit, "not-found", "inactive", "dead")
        runs = self.state == "active"
        return UnitStatus(unit, "loaded", self.state, "running" if runs else "dead", main_pid=7 if runs else 0)


def places(tmp_path: Path, total_mib: int = 65536) -> Places:
    for name in ("proc", "sys/bus/pci/devices", "dev", "shm", "etc"):
        (tmp_path / name).mkdir(parents=True, exist_ok=True)
    kib = total_mib * 1024
    (tmp_path / "proc/meminfo").write_text(f"MemTotal: {kib} kB\nMemFree: {kib} kB\nMemAvailable: {kib} kB\n", encoding="utf-8")
    return Places(shm=str(tmp_path / "shm"), etc=str(tmp_path / "etc"), proc=str(tmp_path / "proc"), sys=str(tmp_path / "sys"),
                  dev=str(tmp_path / "dev"), journal=(str(tmp_path / "journal"),))


@pytest.mark.parametrize(("args", "total", "status"), [
    ({}, 65536, "pass"),
    ({"tensor_parallel_size": 8}, 65536, "pass"),
    ({"tensor_parallel_size": 8}, 8192, "warn"),
    ({"tensor_parallel_size": 8, "cpu_offload_gb": 10}, 65536, "fail"),
    ({"tensor_parallel_size": 2, "cpu_offload_gb": "10"}, 65536, "pass"),
    ({"cpu_offload_gb": "much"}, 65536, "pass"),
    ({"cpu_offload_gb": float("nan")}, 65536, "pass"),
    ({"tensor_parallel_size": "x"}, 65536, "pass"),
])
def test_the_hosts_memory_holds_the_ranks(args: dict[str, Any], total: int, status: str, tmp_path: Path) -> None:
    found = check_host_memory(Asked("m", args=args), places(tmp_path, total))
    assert found.status == status, found
    assert (found.fix is not None) == (status in ("warn", "fail"))


def test_unreadable_memory_is_skipped(tmp_path: Path) -> None:
    assert check_host_memory(Asked("m"), Places(proc=str(tmp_path))).status == "skip"


def _switch(tmp_path: Path, how: str) -> None:
    if how == "pci":
        device = tmp_path / "sys/bus/pci/devices/0000:c1:00.0"
        device.mkdir()
        (device / "vendor").write_text("0x10de\n", encoding="ascii")
        (device / "class").write_text("0x068000\n", encoding="ascii")
    else:
        (tmp_path / "dev/nvidia-nvswitch0").touch()


@pytest.mark.parametrize("how", ["pci", "node"])
@pytest.mark.parametrize(("state", "status"), [("active", "pass"), ("failed", "fail"), ("inactive", "fail"), ("not-found", "warn"),
                                               (None, "skip")])
def test_where_nvswitch_is_the_fabric_manager_has_to_run(how: str, state: str | None, status: str, tmp_path: Path) -> None:
    where = places(tmp_path)
    _switch(tmp_path, how)
    (found,) = check_fabric(Asked("m"), where, Units(state))
    assert (found.id, found.status) == ("fabric_manager", status)
    assert (found.fix is not None) == (status in ("warn", "fail"))


def test_a_fabric_manager_that_runs_without_its_unit_will_do(tmp_path: Path) -> None:
    where = places(tmp_path)
    _switch(tmp_path, "node")
    (tmp_path / "proc/4711").mkdir()
    (tmp_path / "proc/4711/comm").write_text("nv-fabricmanage\n", encoding="ascii")
    (found,) = check_fabric(Asked("m"), where, Units("failed"))
    assert found.status == "pass"


def test_without_nvswitch_nobody_asks(tmp_path: Path) -> None:
    where = places(tmp_path)
    gpu = tmp_path / "sys/bus/pci/devices/0000:01:00.0"
    gpu.mkdir()
    (gpu / "vendor").write_text("0x10de\n", encoding="ascii")
    (gpu / "class").write_text("0x030200\n", encoding="ascii")
    assert check_fabric(Asked("m"), where, Units(None)) == []


def _free(monkeypatch: pytest.MonkeyPatch, **mib: int) -> None:
    """How much is free by the last part of a path; plenty elsewhere. ``inodes`` for all."""

    def statvfs(path: str) -> os.statvfs_result:
        blocks = mib.get(os.path.basename(path), 99999)
        return os.statvfs_result((MIB, MIB, 100000, blocks, blocks, 1000, mib.get("inodes", 500), mib.get("inodes", 500), 0, 255))

    monkeypatch.setattr("os.statvfs", statvfs)


@pytest.mark.parametrize(("free", "ranks", "said"), [
    ({}, 8, {"disk": "pass", "shm": "pass"}),
    ({"home": 500}, 1, {"disk": "warn", "shm": "pass"}),
    ({"home": 3}, 1, {"disk": "fail", "shm": "pass"}),
    ({"etc": 0}, 1, {"disk": "fail", "shm": "pass"}),
    ({"inodes": 0}, 1, {"disk": "fail", "shm": "pass"}),
    ({"shm": 64}, 8, {"disk": "pass", "shm": "warn"}),
    ({"shm": 64}, 1, {"disk": "pass", "shm": "pass"}),
    ({"shm": 1}, 2, {"disk": "pass", "shm": "fail"}),
    ({"journal": 3}, 2, {"disk": "pass", "shm": "pass", "journal": "warn"}),
])
def test_room_is_counted_where_it_is_needed(
    free: dict[str, int], ranks: int, said: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    where = places(tmp_path)
    for name in ("home", "journal"):
        (tmp_path / name).mkdir()
    _free(monkeypatch, **free)
    asked = Asked("m", args={"tensor_parallel_size": ranks}, home=str(tmp_path / "home"))
    found = check_room(asked, where)
    assert {check.id: check.status for check in found} == said, found
    for check in found:
        assert (check.fix is not None) == (check.status != "pass"), check


def test_a_directory_that_is_yet_to_be_made_counts_with_the_one_above(tmp_path: Path) -> None:
    found = check_room(Asked("m", home=str(tmp_path / "var/lib/vllm/x")), places(tmp_path))
    assert f"in {tmp_path}" in found[0].detail
