# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Every way to fail can be provoked: return codes, hangs, crashes, rubbish, for some calls, devices and callers."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lab.driver import codes
from lab.driver.testing import LocalDriver

Nvml = Callable[[str], Any]

_HANGING = """
import pynvml as n
n.nvmlInit(); h = n.nvmlDeviceGetHandleByIndex(0); print("open", flush=True)
try: print(n.nvmlDeviceGetMemoryInfo(h).total)
except n.NVMLError as error: print("code", error.value)
"""


def _start(driver: LocalDriver, code: str = _HANGING) -> subprocess.Popen[str]:
    """A child that is in the middle of a call when this returns (or has ended)."""
    child = subprocess.Popen(
        [sys.executable, "-c", code], env=driver.environ(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert child.stdout is not None
    assert child.stdout.readline() == "open\n"
    time.sleep(0.1)
    return child


def _end(child: subprocess.Popen[str]) -> None:
    child.kill()
    child.communicate()


def _state(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0]


def _runs(pid: int) -> bool:
    """Whether a process is there and no zombie."""
    try:
        return _state(pid) != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def test_every_code_for_every_init(driver_local: LocalDriver) -> None:
    wanted = [code for code in codes.TEXTS if code]
    for code in reversed(wanted):
        driver_local.gpus.fail("nvmlInitWithFlags", code, times=1)  # the one put in last is in front
    done = driver_local.python(
        f"""
import pynvml as n
for _ in range({len(wanted)}):
    try: n.nvmlInit()
    except n.NVMLError as error: print(error.value)
n.nvmlInit()
"""
    )
    assert done.returncode == 0
    assert [int(word) for word in done.stdout.split()] == wanted


def test_every_call_can_return_any_code(driver_local: LocalDriver, driver_nvml: Nvml) -> None:
    driver_local.gpus.fail("nvmlDeviceGetP*", 15)
    driver_local.gpus.fail("nvmlDeviceGetComputeRunningProcesses_v3", 4)
    driver_local.gpus.fail("nvmlDeviceGetMemoryInfo_v2", 3)
    out = driver_nvml(
        """
h = gpu(0)
out = [code(n.nvmlDeviceGetPciInfo, h), code(n.nvmlDeviceGetPowerUsage, h), code(n.nvmlDeviceGetUUID, h),
    code(n.nvmlDeviceGetComputeRunningProcesses, h), code(n.nvmlDeviceGetComputeRunningProcesses_v2, h),
    code(n.nvmlDeviceGetMemoryInfo, h), code(n.nvmlDeviceGetMemoryInfo, h, n.nvmlMemory_v2)]
"""
    )
    assert out == [15, 15, 0, 4, 0, 0, 3]


def test_a_failure_can_be_one_gpus_alone(driver_local: LocalDriver, driver_nvml: Nvml) -> None:
    driver_local.gpus.fail("nvmlDeviceGetMemoryInfo", 999, gpu=3)
    driver_local.gpus.fail("nvmlDeviceGetHandleByIndex_v2", 15, gpu=5)
    out = driver_nvml(
        "out = [code(n.nvmlDeviceGetHandleByIndex, i) or code(n.nvmlDeviceGetMemoryInfo, gpu(i)) for i in range(8)]"
    )
    assert out == [0, 0, 0, 999, 0, 15, 0, 0]


def test_a_failure_can_be_the_nth_time_alone(driver_local: LocalDriver, driver_nvml: Nvml) -> None:
    driver_local.gpus.fail("nvmlDeviceGetMemoryInfo", 10, skip=2, times=1)
    assert driver_nvml("out = [code(n.nvmlDeviceGetMemoryInfo, gpu(0)) for _ in range(5)]") == [0, 0, 10, 0, 0]


def test_counts_outlive_an_unrelated_change_of_the_scenario(driver_local: LocalDriver, driver_nvml: Nvml) -> None:
    driver_local.gpus.fail("nvmlDeviceGetMemoryInfo", 10, times=1)
    assert driver_nvml("out = code(n.nvmlDeviceGetMemoryInfo, gpu(0))") == 10
    driver_local.gpus.set(0, temperature_c=50)
    assert driver_nvml("out = code(n.nvmlDeviceGetMemoryInfo, gpu(0))") == 0


def test_a_failure_can_be_one_clients_alone(driver_local: LocalDriver, driver_nvml: Nvml) -> None:
    driver_local.gpus.fail("nvmlInit*", 9, client="library")
    done = driver_local.python("import pynvml as n\ntry: n.nvmlInit()\nexcept n.NVMLError as e: print(e.value)")
    assert done.stdout.split() == ["9"]
    assert driver_local.run("nvidia-smi", "-L").returncode == 0
    driver_local.gpus.clear_failures()
    driver_local.gpus.fail("nvmlInit*", 18, client="smi")
    assert driver_nvml("out = n.nvmlDeviceGetCount()") == 8
    assert driver_local.run("nvidia-smi", "-L").returncode == 18


def test_a_failure_can_be_that_of_the_unprivileged(driver_local: LocalDriver, driver_nvml: Nvml) -> None:
    driver_local.gpus.fail("nvmlDeviceGetComputeRunningProcesses_v3", 4, unprivileged=True)
    out = driver_nvml(
        """
out = [code(n.nvmlDeviceGetComputeRunningProcesses, gpu(0))]; n.nvmlShutdown()
import os; os.setuid(65534); n.nvmlInit()
out.append(code(n.nvmlDeviceGetComputeRunningProcesses, gpu(0)))
"""
    )
    assert out == [0, 4]


def test_a_call_can_hang_for_a_while_and_then_work(driver_local: LocalDriver, driver_nvml: Nvml) -> None:
    driver_local.gpus.hang("nvmlDeviceGetMemoryInfo", 0.3, times=1)
    out = driver_nvml(
        """
import time
begun = time.monotonic(); result = code(n.nvmlDeviceGetMemoryInfo, gpu(0)); out = [result, time.monotonic() - begun]
"""
    )
    assert out[0] == 0
    assert 0.25 < out[1] < 3


def test_a_call_can_hang_and_then_fail(driver_local: LocalDriver, driver_nvml: Nvml) -> None:
    driver_local.gpus.hang("nvmlDeviceGetMemoryInfo", 0.1, code=15)
    assert driver_nvml("out = code(n.nvmlDeviceGetMemoryInfo, gpu(0))") == 15


def test_a_call_that_hangs_for_ever_goes_on_when_the_scenario_lets_it(driver_local: LocalDriver) -> None:
    driver_local.gpus.hang("nvmlDeviceGetMemoryInfo")
    child = _start(driver_local)
    try:
        assert child.poll() is None
        driver_local.gpus.clear_failures()
        out, _err = child.communicate(timeout=5)
        assert int(out) == 97887 * 1024 * 1024
    finally:
        _end(child)


def test_others_are_served_while_one_hangs(driver_local: LocalDriver, driver_nvml: Nvml) -> None:
    driver_local.gpus.hang("nvmlDeviceGetMemoryInfo")
    child = _start(driver_local)
    try:
        assert driver_nvml("out = n.nvmlDeviceGetCount()") == 8
        assert child.poll() is None
    finally:
        _end(child)


def test_a_hanging_call_ends_with_sigterm(driver_local: LocalDriver) -> None:
    driver_local.gpus.hang("nvmlDeviceGetMemoryInfo")
    child = _start(driver_local)
    try:
        child.terminate()
        assert child.wait(timeout=5) == -signal.SIGTERM
    finally:
        _end(child)


def test_a_hanging_call_may_ignore_sigterm(driver_local: LocalDriver) -> None:
    driver_local.gpus.hang("nvmlDeviceGetMemoryInfo", ignore_term=True)
    child = _start(driver_local)
    try:
        child.terminate()
        with pytest.raises(subprocess.TimeoutExpired):
            child.wait(timeout=0.3)
        child.kill()
        assert child.wait(timeout=5) == -signal.SIGKILL
    finally:
        _end(child)


def test_a_hanging_call_may_be_uninterruptible(driver_local: LocalDriver) -> None:
    driver_local.gpus.hang("nvmlDeviceGetMemoryInfo", uninterruptible=True)
    child = _start(driver_local)
    try:
        assert _state(child.pid) == "D"
        child.terminate()
        with pytest.raises(subprocess.TimeoutExpired):
            child.wait(timeout=0.3)
        driver_local.gpus.clear_failures()
        child.wait(timeout=5)
        assert child.returncode == -signal.SIGTERM  # taken once the call is over, as with a real driver
    finally:
        _end(child)


def test_sigkill_ends_an_uninterruptible_caller_and_leaves_nobody(driver_local: LocalDriver) -> None:
    driver_local.gpus.hang("nvmlDeviceGetMemoryInfo", uninterruptible=True)
    child = _start(driver_local)
    stand_in = Path(f"/proc/{child.pid}/task/{child.pid}/children").read_text(encoding="ascii").split()
    _end(child)
    assert len(stand_in) == 1
    deadline = time.monotonic() + 5
    while _runs(int(stand_in[0])):
        assert time.monotonic() < deadline, "the process that waited in its place is still there"
        time.sleep(0.01)


def test_a_call_can_crash_its_caller(driver_local: LocalDriver) -> None:
    driver_local.gpus.fail("nvmlDeviceGetMemoryInfo", None, crash=True)
    child = _start(driver_local)
    child.communicate(timeout=5)
    assert child.returncode == -signal.SIGSEGV


def test_a_call_can_print_rubbish(driver_local: LocalDriver) -> None:
    driver_local.gpus.fail("nvmlDeviceGetMemoryInfo", None, stdout="rubbish {\n", stderr="more\udcff\n")
    child = subprocess.run(
        [sys.executable, "-c", _HANGING], env=driver_local.environ(), capture_output=True, check=True
    )
    assert b"rubbish {\n" in child.stdout
    assert child.stderr == b"more\xff\n"
    assert str(97887 * 1024 * 1024).encode() in child.stdout


def test_a_null_handle_can_crash_its_caller(driver_local: LocalDriver) -> None:
    code = "import pynvml as n; n.nvmlInit(); n.nvmlDeviceGetMemoryInfo(n.c_nvmlDevice_t())"
    assert driver_local.python(code).returncode == 1
    driver_local.gpus.scenario(null_handle="crash")
    assert driver_local.python(code).returncode == -signal.SIGSEGV


def test_nvidia_smi_meets_the_same_failures(driver_local: LocalDriver) -> None:
    driver_local.gpus.fail("nvmlDeviceGetMemoryInfo*", 999, gpu=1)
    driver_local.gpus.fail("nvmlDeviceGetName", 4, gpu=2)
    smi = driver_local.run("nvidia-smi", "--query-gpu=name,memory.used", "--format=csv,noheader", "-i", "0,1,2")
    name = "NVIDIA RTX PRO 6000 Blackwell Server Edition"
    assert smi.stdout.splitlines() == [
        f"{name}, 2 MiB",
        f"{name}, [Unknown Error]",
        "[Insufficient Permissions], 2 MiB",
    ]


def test_nvidia_smi_hangs_with_the_driver(driver_local: LocalDriver) -> None:
    driver_local.gpus.preset("hung")
    child = subprocess.Popen(
        ["nvidia-smi"], env=driver_local.environ(), executable=str(driver_local.bin / "nvidia-smi")
    )
    try:
        with pytest.raises(subprocess.TimeoutExpired):
            child.wait(timeout=0.5)
        child.terminate()  # the hang blocks SIGTERM
        with pytest.raises(subprocess.TimeoutExpired):
            child.wait(timeout=0.3)
    finally:
        child.kill()
        child.wait()
