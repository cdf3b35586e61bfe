# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Every named scenario holds what it says, through the library and nvidia-smi alike."""

from __future__ import annotations

import ast
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lab.driver import build, presets
from lab.driver.scenario import Scenario, ScenarioError
from lab.driver.testing import LocalDriver

Nvml = Callable[[str], Any]

_FAIL_TO_START = {"no_driver", "no_permission", "init_unknown", "library_missing", "mismatch", "no_gpus"}

# One reading of everything that a facts module would ask, with each failure as its code.
_SURVEY = """
def read(function, *arguments):
    try:
        return function(*arguments)
    except n.NVMLError as error:
        return -error.value
out = []
for index in range(n.nvmlDeviceGetCount()):
    handle = read(n.nvmlDeviceGetHandleByIndex, index)
    if isinstance(handle, int):
        out.append(dict(handle=handle))
        continue
    v1, v2 = read(n.nvmlDeviceGetMemoryInfo, handle), read(n.nvmlDeviceGetMemoryInfo, handle, n.nvmlMemory_v2)
    lists = {kind: read(getattr(n, "nvmlDeviceGet%sRunningProcesses" % kind), handle)
             for kind in ("Compute", "Graphics", "MPSCompute")}
    out.append(dict(handle=0, v1=v1 if isinstance(v1, int) else v1.used, v2=v2 if isinstance(v2, int) else v2.used,
        minor=read(n.nvmlDeviceGetMinorNumber, handle), power=read(n.nvmlDeviceGetPowerUsage, handle),
        virtual=read(n.nvmlDeviceGetVirtualizationMode, handle), mig=read(n.nvmlDeviceGetMigMode, handle),
        busy=read(lambda h: n.nvmlDeviceGetUtilizationRates(h).gpu, handle),
        lists={kind: found if isinstance(found, int) else [[p.pid, p.usedGpuMemory] for p in found]
               for kind, found in lists.items()}))
"""

MIB = 1024 * 1024


@pytest.mark.parametrize("name", presets.NAMES)
def test_a_preset_is_a_valid_scenario(name: str) -> None:
    scenario = presets.build(name, seed="host")
    assert Scenario.from_json(scenario.to_json()) == scenario


def test_an_unknown_preset_is_an_error() -> None:
    with pytest.raises(ScenarioError, match="no preset 'nothing'; there are default, "):
        presets.build("nothing")


@pytest.mark.parametrize("name", sorted(set(presets.NAMES) - _FAIL_TO_START - {"hung"}))
def test_a_preset_answers_both_clients(driver_local: LocalDriver, driver_nvml: Nvml, name: str) -> None:
    driver_local.gpus.preset(name)
    surveyed = driver_nvml(_SURVEY.replace("n.nvmlDeviceGetName", "bytes"))
    assert len(surveyed) == len(driver_local.gpus.current.shown)
    listed = driver_local.run("nvidia-smi", "-L")
    assert listed.stdout.count("(UUID: GPU-") == sum(each["handle"] == 0 for each in surveyed)


def test_lost_and_failing_gpus_leave_the_others(driver_local: LocalDriver, driver_nvml: Nvml) -> None:
    for name, code in (("lost", -15), ("unknown_error", -999)):
        driver_local.gpus.preset(name)
        assert [each["handle"] for each in driver_nvml(_SURVEY)] == [0, 0, 0, code, 0, 0, 0, 0]


def test_a_gpu_lost_while_its_handle_is_held(driver_local: LocalDriver, driver_nvml: Nvml) -> None:
    driver_local.gpus.fail("nvmlDeviceGet[MCGUP]*", 15, gpu=2)
    surveyed = driver_nvml(_SURVEY)[2]
    assert (surveyed["handle"], surveyed["v1"], surveyed["lists"]["Compute"]) == (0, -15, -15)


def test_a_gpu_that_needs_a_reset(driver_local: LocalDriver, driver_nvml: Nvml) -> None:
    driver_local.gpus.preset("reset_required")
    surveyed = driver_nvml(_SURVEY)
    assert (surveyed[3]["handle"], surveyed[3]["minor"], surveyed[3]["v2"]) == (0, 3, -16)
    assert surveyed[3]["lists"]["Compute"] == -16
    assert surveyed[4]["v2"] == 2 * MIB


def test_unified_memory(driver_local: LocalDriver, driver_nvml: Nvml) -> None:
    driver_local.gpus.preset("gb10")
    (gpu,) = driver_nvml(_SURVEY)
    assert (gpu["v1"], gpu["v2"]) == (-3, -3)


def test_only_the_first_memory_form(driver_local: LocalDriver, driver_nvml: Nvml) -> None:
    driver_local.gpus.preset("v1_only")
    gpu = driver_nvml(_SURVEY)[0]
    assert (gpu["v1"], gpu["v2"]) == ((638 + 2) * MIB, -3)


def test_wsl(driver_local: LocalDriver, driver_nvml: Nvml) -> None:
    driver_local.gpus.preset("wsl")
    (gpu,) = driver_nvml(_SURVEY)
    assert (gpu["minor"], gpu["v2"], gpu["lists"]["Graphics"]) == (-3, -3, [[30, None]])
    assert build.nodes(driver_local.gpus.current) == []


def test_a_vgpu_guest(driver_local: LocalDriver, driver_nvml: Nvml) -> None:
    driver_local.gpus.preset("vgpu_guest")
    (gpu,) = driver_nvml(_SURVEY)
    assert (gpu["virtual"], gpu["power"], gpu["v2"], gpu["lists"]["MPSCompute"]) == (2, -3, 0, -3)


def test_a_vgpu_host_lists_its_tenants(driver_local: LocalDriver, driver_nvml: Nvml) -> None:
    driver_local.gpus.preset("vgpu_host")
    assert driver_nvml(_SURVEY)[0]["lists"]["Graphics"] == [[3_900_030, 24_000 * MIB]]


def test_mig(driver_local: LocalDriver, driver_nvml: Nvml) -> None:
    driver_local.gpus.preset("mig")
    out = driver_nvml(
        """
def ids(m): return [n.nvmlDeviceGetGpuInstanceId(m), n.nvmlDeviceGetComputeInstanceId(m), n.nvmlDeviceGetName(m),
    n.nvmlDeviceGetMemoryInfo(m, n.nvmlMemory_v2).total // 2**20, n.nvmlDeviceGetAttributes(m).memorySizeMB,
    n.nvmlDeviceGetIndex(m), n.nvmlDeviceGetUUID(m)[:4],
    n.nvmlDeviceGetIndex(n.nvmlDeviceGetDeviceHandleFromMigDeviceHandle(m)), code(n.nvmlDeviceGetUtilizationRates, m)]
h = gpu(0); most = n.nvmlDeviceGetMaxMigDeviceCount(h)
codes = [code(n.nvmlDeviceGetMigDeviceHandleByIndex, h, i) for i in range(most + 1)]
out = [most, codes, ids(n.nvmlDeviceGetMigDeviceHandleByIndex(h, 1)), n.nvmlDeviceGetMigMode(h),
    n.nvmlDeviceGetMigMode(gpu(2)), code(n.nvmlDeviceGetMigDeviceHandleByIndex, gpu(2), 0),
    code(n.nvmlDeviceGetUtilizationRates, h), n.nvmlDeviceIsMigDeviceHandle(h).value]
"""
    )
    assert out == [
        7,
        [0, 0, 0, 6, 6, 6, 6, 2],
        [7, 0, "NVIDIA A100-SXM4-40GB MIG 1g.5gb", 4864, 4864, 1, "MIG-", 0, 3],
        [1, 1],
        [0, 0],
        3,
        3,
        0,
    ]


def test_a_full_mig_device_takes_no_more(driver_local: LocalDriver) -> None:
    driver_local.gpus.preset("mig")
    mig = driver_local.gpus.current.gpus[0].mig
    assert mig is not None
    driver_local.hold(str(mig.devices[1].uuid), 4800)
    with pytest.raises(RuntimeError, match="ended with 1"):
        driver_local.hold(str(mig.devices[1].uuid), 100)
    driver_local.hold(str(mig.devices[0].uuid), 15_000)


def test_fewer_gpus_than_on_the_bus(driver_local: LocalDriver, driver_nvml: Nvml, tmp_path: Path) -> None:
    driver_local.gpus.preset("fewer_gpus_than_pci")
    assert len(driver_nvml(_SURVEY)) == 7
    assert [each["minor"] for each in driver_nvml(_SURVEY)] == [0, 1, 2, 4, 5, 6, 7]
    build.write_pci_tree(tmp_path / "pci", driver_local.gpus.current)
    build.write_proc_tree(tmp_path / "proc", driver_local.gpus.current)
    assert len(list((tmp_path / "pci").iterdir())) == 8
    assert len(list((tmp_path / "proc/gpus").iterdir())) == 7


def test_foreign_pids_mps_and_graphics(driver_local: LocalDriver, driver_nvml: Nvml) -> None:
    driver_local.gpus.preset("foreign_pids")
    surveyed = driver_nvml(_SURVEY)
    assert surveyed[0]["lists"]["Compute"] == [[3_900_001, 20_000 * MIB], [1, 500 * MIB]]
    assert (surveyed[1]["lists"]["Compute"], surveyed[1]["v2"]) == ([], 30_002 * MIB)
    driver_local.gpus.preset("mps")
    lists = driver_nvml(_SURVEY)[0]["lists"]
    assert (lists["Compute"], lists["MPSCompute"]) == (
        [[3_900_010, 27 * MIB], [3_900_011, 4096 * MIB]],
        [[3_900_011, 4096 * MIB]],
    )
    driver_local.gpus.preset("graphics")
    lists = driver_nvml(_SURVEY)[0]["lists"]
    assert [pid for pid, _used in lists["Graphics"]] == [3_900_020, 3_900_021]
    assert [pid for pid, _used in lists["Compute"]] == [3_900_021]


def test_the_seed_makes_uuids_a_hosts_own(driver_local: LocalDriver) -> None:
    one, other = presets.build("default", seed="a"), presets.build("default", seed="b")
    assert not {gpu.uuid for gpu in one.gpus} & {gpu.uuid for gpu in other.gpus}
    driver_local.gpus.scenario(seed="a", gpus=8)
    driver_local.gpus.preset("lost")
    assert [gpu.uuid for gpu in driver_local.gpus.current.gpus] == [gpu.uuid for gpu in one.gpus]


def test_the_trees_have_the_kernels_forms(tmp_path: Path) -> None:
    scenario = presets.build("mismatch")
    build.write_pci_tree(tmp_path / "pci", scenario)
    build.write_proc_tree(tmp_path / "proc", scenario)
    device = tmp_path / "pci/0000:21:00.0"
    assert [(device / name).read_text() for name in ("vendor", "device", "class")] == [
        "0x10de\n",
        "0x2bb5\n",
        "0x030200\n",
    ]
    assert (device / "driver").is_symlink()
    version = (tmp_path / "proc/version").read_text()
    assert version.startswith("NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.124.04  Release Build")
    rows = dict(row.split(":", 1) for row in (tmp_path / "proc/gpus/0000:21:00.0/information").read_text().splitlines())
    assert rows["GPU UUID"].strip() == scenario.gpus[1].uuid
    assert rows["Device Minor"].strip() == "1"
    assert rows["Bus Location"].strip() == "0000:21:00.0"


def test_device_nodes_are_named_by_minor() -> None:
    scenario = Scenario.from_dict({"gpus": [{"minor": 3}, {"minor": 0}, {"minor": 1, "visible": False}]})
    assert build.nodes(scenario) == ["nvidiactl", "nvidia-uvm", "nvidia-uvm-tools", "nvidia3", "nvidia0"]


@pytest.mark.parametrize("part", ["client.py", "codes.py", "smi"])
def test_what_runs_on_hosts_is_python_3_9(part: str) -> None:
    here = build.HERE / part
    for path in [here] if here.is_file() else sorted(here.glob("*.py")):
        ast.parse(path.read_text(encoding="utf-8"), feature_version=(3, 9))
