# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Process lists: who is on them, in which layout, and what they hide."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lab.driver.build import BuildError, build_library
from lab.driver.scenario import Process
from lab.driver.testing import CLIENT, LocalDriver, running_driver

Nvml = Callable[[str], Any]

MIB = 1024 * 1024

# Reads a list's raw bytes through a symbol, into a buffer that was filled with 0xAA.
_RAW = """
import ctypes
def raw(symbol, index=0, room=8, size=1024):
    count, buffer = ctypes.c_uint(room), (ctypes.c_ubyte * size)(*[0xAA] * size)
    result = n._nvmlGetFunctionPointer(symbol)(gpu(index), ctypes.byref(count), buffer)
    return result, count.value, bytes(buffer)
"""


def _lists(index: int = 0) -> str:
    return f"""
out = {{kind: [[p.pid, p.usedGpuMemory] for p in getattr(n, "nvmlDeviceGet%sRunningProcesses" % kind)(gpu({index}))]
       for kind in ("Compute", "Graphics", "MPSCompute")}}
"""


def test_a_holder_is_on_the_list_of_its_kind(driver_local: LocalDriver, driver_nvml: Nvml) -> None:
    computing = driver_local.hold(0, 100)
    drawing = driver_local.hold(0, 200, "--kind", "G")
    sharing = driver_local.hold(0, 300, "--kind", "M")
    both = driver_local.hold(0, 400, "--kind", "C+G")
    assert driver_nvml(_lists()) == {
        "Compute": [[computing.pid, 100 * MIB], [both.pid, 400 * MIB]],
        "Graphics": [[drawing.pid, 200 * MIB], [both.pid, 400 * MIB]],
        "MPSCompute": [[sharing.pid, 300 * MIB]],
    }


def test_all_versions_of_the_call_give_the_same(driver_local: LocalDriver, driver_nvml: Nvml) -> None:
    holder = driver_local.hold(0, 100)
    out = driver_nvml(
        "out = [[(p.pid, p.usedGpuMemory) for p in read(gpu(0))] for read in"
        " (n.nvmlDeviceGetComputeRunningProcesses_v2, n.nvmlDeviceGetComputeRunningProcesses_v3)]"
    )
    assert out == [[[holder.pid, 100 * MIB]]] * 2


def test_several_allocations_of_one_process_are_one_entry(driver_local: LocalDriver, driver_nvml: Nvml) -> None:
    code = (
        "from lab.driver.client import Allocation\nimport os, time\n"
        "held = [Allocation(0, 100), Allocation(0, 150)]\nprint('holding', flush=True)\ntime.sleep(60)"
    )
    tests = str(Path(__file__).resolve().parents[1])
    process = subprocess.Popen(
        [sys.executable, "-c", code],
        env={**driver_local.environ(), "PYTHONPATH": tests},
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "holding\n"
        assert driver_nvml(_lists())["Compute"] == [[process.pid, 250 * MIB]]
    finally:
        process.kill()
        process.communicate()


def test_the_count_tells_how_much_room_is_needed(driver_local: LocalDriver, driver_nvml: Nvml) -> None:
    for attempt in range(3):
        driver_local.hold(0, 10)
    symbol = "nvmlDeviceGetComputeRunningProcesses_v3"
    out = driver_nvml(
        _RAW + f"out = [raw('{symbol}', room=room)[:2] for room in (0, 2, 3, 8)] + [raw('{symbol}', 1, room=0)[:2]]"
    )
    assert out == [[7, 3], [7, 3], [0, 3], [0, 3], [0, 0]]


@pytest.mark.parametrize(
    ("preset", "symbol", "stride"),
    [
        ("stride16", "nvmlDeviceGetComputeRunningProcesses_v3", 16),
        ("stride16", "nvmlDeviceGetComputeRunningProcesses_v2", 16),
        ("stride24", "nvmlDeviceGetComputeRunningProcesses", 24),
        ("stride24", "nvmlDeviceGetComputeRunningProcesses_v3", 24),
        ("stride32", "nvmlDeviceGetComputeRunningProcesses", 16),
        ("stride32", "nvmlDeviceGetComputeRunningProcesses_v2", 24),
        ("stride32", "nvmlDeviceGetComputeRunningProcesses_v3", 32),
        ("stride32", "nvmlDeviceGetGraphicsRunningProcesses_v3", 32),
        ("stride32", "nvmlDeviceGetMPSComputeRunningProcesses_v3", 32),
    ],
)
def test_entries_have_the_drivers_stride_whatever_the_symbol(
    driver_local: LocalDriver, driver_nvml: Nvml, preset: str, symbol: str, stride: int
) -> None:
    driver_local.gpus.preset(preset)
    pids = [driver_local.hold(0, 10 * (number + 1), "--kind", "C+G+M").pid for number in range(2)]
    result, count, data = driver_nvml(_RAW + f"r = raw('{symbol}'); out = [r[0], r[1], list(r[2])]")
    assert (result, count) == (0, 2)
    raw = bytes(data)
    for number, pid in enumerate(pids):
        entry = raw[number * stride : (number + 1) * stride]
        assert int.from_bytes(entry[0:4], "little") == pid
        assert int.from_bytes(entry[8:16], "little") == 10 * (number + 1) * MIB
        if stride >= 24:
            assert entry[16:24] == b"\xff" * 8
    assert raw[2 * stride :] == b"\xaa" * (len(raw) - 2 * stride)


def test_a_wrong_stride_is_read_as_nonsense(driver_local: LocalDriver, driver_nvml: Nvml) -> None:
    driver_local.gpus.preset("stride32")
    pids = [driver_local.hold(0, 10).pid for each in range(2)]
    out = [pid for pid, _used in driver_nvml(_lists())["Compute"]]  # pynvml believes in 24 bytes
    assert out[0] == pids[0]
    assert out[1] not in pids


def test_a_list_can_hide_its_processes(driver_local: LocalDriver, driver_nvml: Nvml) -> None:
    driver_local.gpus.set(0, unlisted=True)
    driver_local.hold(0, 100)
    driver_local.hold(1, 100, "--unlisted")
    for index in (0, 1):
        assert driver_nvml(_lists(index))["Compute"] == []
        assert driver_local.gpus.used_mib(index) == 102


def test_a_process_can_be_listed_under_another_pid(driver_local: LocalDriver, driver_nvml: Nvml) -> None:
    driver_local.hold(0, 100, "--as-pid", "3900123")
    process = driver_local.hold(1, 100)
    driver_local.gpus.set(1, list_as={str(process.pid): 4242})
    assert driver_nvml(_lists(0))["Compute"] == [[3900123, 100 * MIB]]
    assert driver_nvml(_lists(1))["Compute"] == [[4242, 100 * MIB]]


def test_entries_of_the_scenario_are_listed_and_count(driver_local: LocalDriver, driver_nvml: Nvml) -> None:
    driver_local.gpus.add_process(0, Process(3_900_001, 20_000))
    driver_local.gpus.add_process(0, Process(0, 10, "G"))
    driver_local.gpus.add_process(0, Process(2**32 - 1, 5, counts=False))
    assert driver_nvml(_lists()) == {
        "Compute": [[3_900_001, 20_000 * MIB], [2**32 - 1, 5 * MIB]],
        "Graphics": [[0, 10 * MIB]],
        "MPSCompute": [],
    }
    assert driver_local.gpus.used_mib(0) == 20_012


def test_memory_of_a_process_can_be_unknown(driver_local: LocalDriver, driver_nvml: Nvml) -> None:
    driver_local.gpus.preset("process_memory_not_available")
    process = driver_local.hold(0, 100)
    assert driver_nvml(_lists())["Compute"] == [[process.pid, None]]
    data = driver_nvml(_RAW + "out = list(raw('nvmlDeviceGetComputeRunningProcesses_v3')[2][8:16])")
    assert data == [255] * 8
    smi = driver_local.run("nvidia-smi", "--query-compute-apps=pid,used_memory", "--format=csv,noheader,nounits")
    assert smi.stdout == f"{process.pid}, [N/A]\n"


def test_names_come_from_the_callers_proc(driver_local: LocalDriver, driver_nvml: Nvml) -> None:
    process = driver_local.hold(0, 100)
    driver_local.gpus.add_process(0, Process(3_900_001, 1, name="/usr/bin/elsewhere"))
    driver_local.gpus.add_process(0, Process(3_900_002, 1))
    out = driver_nvml(
        f"out = [n.nvmlSystemGetProcessName({process.pid}), n.nvmlSystemGetProcessName(3900001),"
        " code(n.nvmlSystemGetProcessName, 3900002)]"
    )
    assert out == [sys.executable, "/usr/bin/elsewhere", 6]
    smi = driver_local.run("nvidia-smi", "--query-compute-apps=process_name", "--format=csv,noheader")
    assert smi.stdout.splitlines() == [sys.executable, "/usr/bin/elsewhere", "[Not Found]"]


def test_an_old_driver_lacks_symbols(tmp_path: Path) -> None:
    omitted = [f"nvmlDeviceGet{kind}RunningProcesses_v3" for kind in ("Compute", "Graphics", "MPSCompute")]
    with running_driver(tmp_path, preset="old_driver", omit=[*omitted, "nvmlDeviceGetMemoryInfo_v2"]) as driver:
        holder = driver.hold(0, 100)
        done = driver.python(
            """
import pynvml as n, json
n.nvmlInit(); h = n.nvmlDeviceGetHandleByIndex(0); out = []
for read in (lambda: n.nvmlDeviceGetComputeRunningProcesses_v3(h), lambda: n.nvmlDeviceGetMemoryInfo(h, n.nvmlMemory_v2)):
    try: read()
    except n.NVMLError as error: out.append(error.value)
print(json.dumps(out + [[p.pid for p in n.nvmlDeviceGetComputeRunningProcesses_v2(h)]]))
"""
        )
        assert json.loads(done.stdout) == [13, 13, [holder.pid]]


def test_leaving_out_an_unknown_symbol_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(BuildError, match="nvmlNothing"):
        build_library(tmp_path, omit=["nvmlNothing"])


def test_pids_are_told_as_the_caller_sees_them(driver_local: LocalDriver) -> None:
    """A container's process has its own number inside and another one on the host."""
    inside = subprocess.Popen(
        ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc", sys.executable, str(CLIENT)]
        + ["--gpu", "0", "--mib", "100"],
        env=driver_local.environ(),
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert inside.stdout is not None
        assert inside.stdout.readline().split() == ["holding", "1"]
        (allocation,) = driver_local.gpus.state()[0]["allocations"]
        outer, inner = allocation["pids"]
        assert inner == allocation["pid"] == 1
        query = ["nvidia-smi", "--query-compute-apps=pid", "--format=csv,noheader"]
        assert driver_local.run(*query).stdout == f"{outer}\n"
        within = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc"]
        assert driver_local.run(*within, *query).stdout == "1\n"
        driver_local.gpus.scenario(pid_depth=1)  # a driver that knows no namespaces tells the host's number to all
        assert driver_local.run(*within, *query).stdout == f"{outer}\n"
    finally:
        inside.kill()
        inside.communicate()


def test_mig_processes_carry_their_instances(driver_local: LocalDriver, driver_nvml: Nvml) -> None:
    driver_local.gpus.preset("mig")
    mig = driver_local.gpus.current.gpus[0].mig
    assert mig is not None
    process = driver_local.hold(str(mig.devices[1].uuid), 300)
    out = driver_nvml(
        """
m = n.nvmlDeviceGetMigDeviceHandleByIndex(gpu(0), 1)
out = [[[p.pid, p.gpuInstanceId, p.computeInstanceId] for p in n.nvmlDeviceGetComputeRunningProcesses(h)]
       for h in (gpu(0), m, n.nvmlDeviceGetMigDeviceHandleByIndex(gpu(0), 0))]
"""
    )
    assert out == [[[process.pid, 7, 0]], [[process.pid, 7, 0]], []]
