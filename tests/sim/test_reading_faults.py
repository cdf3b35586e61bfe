# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Calls that hang, crash, print and fail: the rest stands, and nobody waits without end."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from lab.driver.testing import LocalDriver, running_driver

from .reading import BACKENDS, Reading, comparable, wait_until

# A call that does not hang is answered within this on a machine on which much else runs: also the first one of a new worker.
ANSWERED_S = 2.0


@pytest.fixture
def reading(driver_local: LocalDriver) -> Reading:
    """Readings of an idle driver with eight GPUs."""
    return Reading(driver_local)


def states(facts: dict[str, Any]) -> dict[int, str]:
    """The GPUs that are not ok."""
    return {gpu["index"]: gpu["state"] for gpu in facts["gpus"] if gpu["state"] != "ok"}


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_gpu_whose_memory_call_hangs_does_not_hide_the_others(reading: Reading, backend: str) -> None:
    reading.driver.gpus.hang("nvmlDeviceGetMemoryInfo*", gpu=2, ignore_term=True)
    facts = reading.one(backend, timeout=1.0)
    assert facts["available"] and states(facts) == {2: "error"}
    assert "driver_hung" in facts["gpus"][2]["error"] and facts["gpus"][2]["free_mib"] is None
    assert facts["free_mib"] == sum(gpu["free_mib"] for gpu in facts["gpus"] if gpu["index"] != 2)
    assert reading.took[0] < 6


def test_a_hung_call_is_named(reading: Reading) -> None:
    reading.driver.gpus.hang("nvmlDeviceGetMemoryInfo*", gpu=2)
    facts = reading.one("nvml", timeout=0.5)
    assert facts["reason_detail"] == "nvmlDeviceGetMemoryInfo_v2 on GPU 2 did not answer within 0.5 s"


@pytest.mark.parametrize("call", ["nvmlInit*", "nvmlDeviceGetCount*", "nvmlDeviceGetMemoryInfo*", "nvmlDeviceGetHandleByIndex*"])
@pytest.mark.parametrize("backend", BACKENDS)
def test_a_hung_driver_is_given_up_and_never_taken_for_free(reading: Reading, backend: str, call: str) -> None:
    reading.driver.gpus.hang(call, ignore_term=True)
    facts = reading.one(backend, timeout=1.0)
    assert (facts["available"], facts["reason"], facts["free_mib"]) == (False, "driver_hung", None)
    assert reading.took[0] < 9  # eight GPUs that are asked one after the other, with less and less patience


def test_an_optional_call_that_hangs_costs_only_its_value(reading: Reading) -> None:
    reading.driver.gpus.hang("nvmlDeviceGetUtilizationRates")
    facts = reading.one("nvml", timeout=ANSWERED_S)
    assert facts["available"] and not states(facts)
    assert [gpu["utilization_percent"] for gpu in facts["gpus"]] == [None] * 8
    assert facts["free_mib"] and reading.took[0] < 8


@pytest.mark.parametrize("bad", [(2, 5), (0, 1, 2, 3), (0, 2, 3, 4, 5, 7)])
@pytest.mark.parametrize("call", ["nvmlDeviceGetMemoryInfo*", "nvmlDeviceGetHandleByIndex*"])
@pytest.mark.parametrize("crash", [False, True], ids=["hang", "crash"])
def test_several_bad_gpus_do_not_hide_the_good_ones(reading: Reading, call: str, bad: tuple[int, ...], crash: bool) -> None:
    """Whatever stands behind one dead switch is lost one after the other; that is not the whole driver."""
    for index in bad:
        if crash:
            reading.driver.gpus.fail(call, None, gpu=index, crash=True)
        else:
            reading.driver.gpus.hang(call, gpu=index)
    facts = reading.one("nvml", processes=False, timeout=1.0)
    assert facts["available"] and states(facts) == dict.fromkeys(bad, "error")
    assert all(gpu["free_mib"] == 97247 for gpu in facts["gpus"] if gpu["index"] not in bad)
    assert reading.took[0] < 9


def test_two_optional_calls_that_hang_cost_no_gpu(reading: Reading) -> None:
    for call in ("nvmlDeviceGetUtilizationRates", "nvmlDeviceGetComputeMode"):
        reading.driver.gpus.hang(call)
    facts = reading.one("nvml", timeout=ANSWERED_S)
    assert facts["available"] and not states(facts) and facts["free_mib"] == 777976
    assert [(gpu["utilization_percent"], gpu["compute_mode"]) for gpu in facts["gpus"]] == [(None, None)] * 8


def test_an_unselected_gpu_that_hangs_costs_nothing(reading: Reading) -> None:
    reading.driver.gpus.hang("nvmlDeviceGet*Info*", gpu=7)
    for backend in BACKENDS:
        facts = reading.one(backend, timeout=20.0, gpus=["0", "1"])
        assert [gpu["index"] for gpu in facts["gpus"]] == [0, 1] and facts["count"] == 8
        assert reading.took[0] < 10


def test_a_slow_driver_is_waited_for(reading: Reading) -> None:
    # more than the limit in all, less than the limit for any one call
    reading.driver.gpus.hang("nvmlDeviceGetMemoryInfo_v2", seconds=0.3)
    facts = reading.one("nvml", timeout=1.0)
    assert facts["available"] and not states(facts)
    assert reading.took[0] > 1.0


def test_a_crash_of_the_library_costs_one_gpu(reading: Reading) -> None:
    reading.driver.gpus.fail("nvmlDeviceGetMemoryInfo_v2", None, gpu=5, crash=True)
    facts = reading.one("nvml")
    assert facts["available"] and states(facts) == {5: "error"}
    assert "crashed" in facts["gpus"][5]["error"] and "signal 11" in facts["reason_detail"]


def test_a_library_that_crashes_at_once_is_an_error(reading: Reading) -> None:
    reading.driver.gpus.fail("nvmlInit*", None, crash=True, client="library")
    facts = reading.one("nvml")
    assert (facts["available"], facts["reason"]) == (False, "error")
    # auto takes the other road, and says why
    facts = reading.one("auto")
    assert (facts["available"], facts["backend"]) == (True, "nvidia_smi")
    assert "signal 11" in facts["reason_detail"]


def test_what_the_library_prints_goes_nowhere(reading: Reading) -> None:
    reading.driver.gpus.fail("nvmlDeviceGet*", None, stdout='{"junk": 1}\n', stderr="NVRM: rubbish\n")
    facts = reading.one("nvml")  # its output is parsed as JSON
    assert facts["available"] and reading.stderr == ""


@pytest.mark.parametrize("code", [3, 4, 6, 13, 17, 20, 25, 27, 999])
def test_any_code_of_the_memory_call_leaves_the_others(reading: Reading, code: int) -> None:
    reading.driver.gpus.fail("nvmlDeviceGetMemoryInfo*", code, gpu=1)
    nvml, smi = reading.both()
    assert states(nvml) == {1: "error"} and nvml["gpus"][1]["error"] and nvml["gpus"][1]["free_mib"] is None
    assert states(smi) == {1: "error"}
    assert nvml["free_mib"] == smi["free_mib"]


@pytest.mark.parametrize(
    "call",
    ["nvmlDeviceGetUtilizationRates", "nvmlDeviceGetComputeMode", "nvmlDeviceGetMigMode", "nvmlDeviceGetFieldValues",
     "nvmlDeviceGetMinorNumber", "nvmlDeviceGetName", "nvmlDeviceGetUUID", "nvmlDeviceGetPciInfo*", "nvmlSystemGetCudaDriverVersion*",
     "nvmlSystemGetDriverVersion"],
)
def test_any_optional_call_may_be_missing(reading: Reading, call: str) -> None:
    for code in (3, 999):
        reading.driver.gpus.clear_failures()
        reading.driver.gpus.fail(call, code, client="library")
        facts = reading.one("nvml")
        assert facts["available"] and not states(facts) and facts["processes_reliable"]
        assert facts["free_mib"] == 777976


@pytest.mark.parametrize("kind", ["Graphics", "MPSCompute"])
def test_a_list_of_other_processes_may_be_missing_but_not_fail(reading: Reading, kind: str) -> None:
    reading.driver.hold(0, 2000)
    for code, reliable in ((3, True), (999, False)):
        reading.driver.gpus.clear_failures()
        reading.driver.gpus.fail("nvmlDeviceGet%sRunningProcesses*" % kind, code, client="library")
        facts = reading.one("nvml")
        gpu = facts["gpus"][0]
        assert facts["available"] and not states(facts) and facts["processes_reliable"] is reliable
        assert (gpu["error"], gpu["unattributed_mib"]) == ((None, 2) if reliable else ("process list: unknown error", None))
        assert [(process["type"], process["used_mib"]) for process in gpu["processes"]] == [("C", 2000)]  # it is seen all the same


def test_a_process_list_that_cannot_be_read_is_not_an_empty_one(reading: Reading) -> None:
    reading.driver.hold(0, 2000)
    for code in (3, 4, 999):
        reading.driver.gpus.clear_failures()
        reading.driver.gpus.fail("nvmlDeviceGetComputeRunningProcesses*", code)
        for facts in reading.both():
            assert facts["available"] and not facts["processes_reliable"]
            gpu = facts["gpus"][0]
            assert "process list" in gpu["error"] and gpu["unattributed_mib"] is None
            # whoever holds the node is found all the same
            assert [(process["type"], process["used_mib"]) for process in gpu["processes"]] == [(None, None)]


def test_holders_that_cannot_be_told_do_not_vanish_without_a_word(reading: Reading) -> None:
    reading.driver.gpus.set(2, unlisted=True)
    holder = reading.driver.hold(2, 2000)
    (process,) = reading.one("nvml")["gpus"][2]["processes"]
    assert process["pid"] == holder.pid and process["type"] is None
    reading.driver.gpus.hang("nvmlDeviceGetMinorNumber", gpu=2)
    facts = reading.one("nvml", timeout=ANSWERED_S)
    assert facts["available"] and not states(facts) and facts["gpus"][2]["processes"] == []
    assert "can't be seen where the number of its device node is unknown: GPU 2" in facts["reason_detail"]


def test_one_lost_gpu_alone_is_a_gpu_that_is_lost(reading: Reading) -> None:
    reading.driver.gpus.scenario(gpus=1)
    reading.driver.gpus.set(0, state="lost")
    for facts in reading.both():
        assert facts["available"] and facts["count"] == 1 and states(facts) == {0: "lost"}


@pytest.mark.parametrize(
    "omit",
    [
        ("nvmlDeviceGetComputeRunningProcesses_v3", "nvmlDeviceGetGraphicsRunningProcesses_v3",
         "nvmlDeviceGetMPSComputeRunningProcesses_v3"),
        ("nvmlDeviceGetComputeRunningProcesses_v3", "nvmlDeviceGetComputeRunningProcesses_v2", "nvmlDeviceGetGraphicsRunningProcesses_v3",
         "nvmlDeviceGetGraphicsRunningProcesses_v2", "nvmlDeviceGetMPSComputeRunningProcesses_v3",
         "nvmlDeviceGetMPSComputeRunningProcesses_v2", "nvmlDeviceGetMPSComputeRunningProcesses"),
        ("nvmlDeviceGetMemoryInfo_v2", "nvmlDeviceGetFieldValues", "nvmlDeviceGetMigMode", "nvmlSystemGetCudaDriverVersion_v2",
         "nvmlDeviceGetPciInfo_v3"),
    ],
    ids=["no v3", "no v2", "older still"],
)
def test_libraries_of_older_drivers(tmp_path: Path, omit: tuple[str, ...]) -> None:
    with running_driver(tmp_path, omit=omit) as driver:
        holder = driver.hold(0, 1000)
        facts = Reading(driver).one("nvml")
        assert facts["available"] and facts["processes_reliable"] and not states(facts)
        assert [process["pid"] for process in facts["gpus"][0]["processes"]] == [holder.pid]
        assert facts["gpus"][0]["unattributed_mib"] == (640 if "nvmlDeviceGetMemoryInfo_v2" in omit else 2)
        assert facts["gpus"][0]["pci_bus_id"] == "00000000:01:00.0"


@pytest.mark.parametrize("stride", [16, 24, 32])
@pytest.mark.parametrize("missing", [(), ("_v3",), ("_v3", "_v2")], ids=["v3", "v2", "v1"])
def test_every_stride_behind_every_symbol(tmp_path: Path, stride: int, missing: tuple[str, ...]) -> None:
    omit = ["nvmlDeviceGet%sRunningProcesses%s" % (kind, suffix) for kind in ("Compute", "Graphics", "MPSCompute") for suffix in missing]
    with running_driver(tmp_path, omit=omit) as driver:
        driver.gpus.scenario(strides={"v1": stride, "v2": stride, "v3": stride})
        holders = [driver.hold(0, 100 * (number + 1)) for number in range(3)]
        facts = Reading(driver).one("nvml")
        found = {process["pid"]: process["used_mib"] for process in facts["gpus"][0]["processes"]}
        assert facts["processes_reliable"]
        assert found == {holder.pid: 100 * (number + 1) for number, holder in enumerate(holders)}


def test_nobody_is_left_behind_by_a_reading(reading: Reading) -> None:
    before = {int(name) for name in os.listdir("/proc") if name.isdigit()}
    reading.driver.gpus.hang("nvmlDeviceGetMemoryInfo*", gpu=1, ignore_term=True)
    reading.one("nvml", timeout=0.5)
    reading.one("nvidia_smi", timeout=0.5)
    socket = str(reading.driver.gpus.socket)

    def left() -> list[int]:
        found = []
        for name in os.listdir("/proc"):
            if name.isdigit() and int(name) not in before:
                try:
                    environ = Path("/proc", name, "environ").read_bytes()
                except OSError:
                    continue
                if socket.encode() in environ and b"NVIDIA_SIM" in environ:
                    found.append(int(name))
        return found

    wait_until(lambda: not left())


def test_the_driver_is_asked_no_more_than_it_has_to_be(reading: Reading) -> None:
    polls = 5
    reading.driver.gpus.reset_calls()
    reading.all("nvml", [{"gpus": ["0"], "processes": False}] * polls, quick=True)
    calls = reading.driver.gpus.calls()
    # who the GPU is stays known, the library stays initialised; each look costs its memory and its health
    assert calls["nvmlDeviceGetMemoryInfo_v2"] == polls
    for once in ("nvmlDeviceGetHandleByIndex_v2", "nvmlDeviceGetUUID", "nvmlDeviceGetName"):
        assert calls[once] == 1
    assert sum(count for name, count in calls.items() if name.startswith("nvmlInit")) == 1
    assert not any("RunningProcesses" in name for name in calls)


def test_both_say_the_same_to_an_ordinary_user(driver_local: LocalDriver) -> None:
    driver_local.hold(0, 1000)
    nvml, smi = Reading(driver_local).both(uid=65534)
    assert comparable(nvml) == comparable(smi)
    (process,) = nvml["gpus"][0]["processes"]
    assert process["state"] == "running" and process["user"] == "root"  # seen, though not proven


def test_a_driver_that_comes_back_is_read_again(reading: Reading) -> None:
    # one reader that lives through a driver that is not loaded yet, as the guard's does at boot
    reading.driver.gpus.fail("nvmlInit*", 9, times=2)
    first, second, third = reading.all("nvml", [{"processes": False}] * 3)
    assert [facts["reason"] for facts in (first, second)] == ["no_driver"] * 2
    assert third["available"] and third["free_mib"] == 777976


def test_a_frozen_neighbour_does_not_stop_the_reading(reading: Reading) -> None:
    holder = reading.driver.hold(0, 1000)
    holder.send_signal(signal.SIGSTOP)
    started = time.monotonic()
    for facts in reading.both():
        assert [process["pid"] for process in facts["gpus"][0]["processes"]] == [holder.pid]
    assert time.monotonic() - started < 10
