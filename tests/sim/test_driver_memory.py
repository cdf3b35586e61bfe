# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""GPU memory follows real processes: who holds it, when it comes back, what never does."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import pytest

from lab.driver.client import Allocation, DriverError, OutOfMemory, memory_mib
from lab.driver.ledger import Allocation as Booked
from lab.driver.ledger import Ledger, ReleaseSchedule
from lab.driver.testing import CLIENT, LocalDriver

IDLE = 2  # MiB that an idle GPU of the default machine shows as used


@pytest.fixture(autouse=True)
def _environment(driver_local: LocalDriver, monkeypatch: pytest.MonkeyPatch) -> None:
    """This process can allocate too."""
    for name in ("NVIDIA_SIM_SOCKET", "NVIDIA_SIM_DEV"):
        monkeypatch.setenv(name, driver_local.env[name])


def test_an_idle_gpu_shows_only_the_drivers_own_use(driver_local: LocalDriver) -> None:
    for gpu in driver_local.gpus.state():
        assert (gpu["used_mib"], gpu["free_mib"]) == (IDLE, 97887 - 638 - IDLE)


def test_memory_belongs_to_a_living_process_and_returns_when_it_ends(driver_local: LocalDriver) -> None:
    process = driver_local.hold(3, 96_801)
    state = driver_local.gpus.state()[3]
    assert state["used_mib"] == 96_801 + IDLE
    assert [(each["pid"], each["mib"], each["listed"]) for each in state["allocations"]] == [
        (process.pid, 96_801, True)
    ]
    process.kill()
    driver_local.gpus.wait_for_used(3, IDLE, timeout=5)


def test_memory_returns_late_after_the_process_died(driver_local: LocalDriver) -> None:
    driver_local.gpus.set(0, release_delay_s=1.0)
    process = driver_local.hold(0, 50_000)
    process.kill()
    process.wait()
    died = time.monotonic()
    time.sleep(0.05)
    state = driver_local.gpus.state()[0]
    assert state["used_mib"] == 50_000 + IDLE
    assert state["allocations"] == []
    assert state["releasing_mib"] == 50_000
    driver_local.gpus.wait_for_used(0, IDLE, timeout=5)
    assert 0.8 < time.monotonic() - died < 5.0


def test_each_gpu_has_its_own_delay(driver_local: LocalDriver) -> None:
    driver_local.gpus.set(1, release_delay_s=60.0)
    first, second = driver_local.hold(0, 1000), driver_local.hold(1, 1000)
    for process in (first, second):
        process.kill()
    driver_local.gpus.wait_for_used(0, IDLE, timeout=5)
    assert driver_local.gpus.used_mib(1) == 1000 + IDLE


def test_a_changed_delay_holds_for_what_is_on_its_way_back(driver_local: LocalDriver) -> None:
    driver_local.gpus.set(0, release_delay_s=3600.0)
    process = driver_local.hold(0, 7000)
    process.kill()
    process.wait()
    time.sleep(0.1)
    assert driver_local.gpus.used_mib(0) == 7000 + IDLE
    before = time.monotonic()
    driver_local.gpus.set(0, release_delay_s=0.0)
    assert driver_local.gpus.used_mib(0) == IDLE
    assert driver_local.gpus.releases()[-1].freed_at >= before


def test_memory_comes_back_in_stages(driver_local: LocalDriver) -> None:
    driver_local.gpus.set(0, release_ramp=[[0.0, 0.25], [0.3, 0.5], [0.6, 1.0]])
    process = driver_local.hold(0, 8000)
    process.kill()
    process.wait()
    seen = set()
    deadline = time.monotonic() + 5
    while (used := driver_local.gpus.used_mib(0)) != IDLE and time.monotonic() < deadline:
        seen.add(used - IDLE)
        time.sleep(0.02)
    assert {6000, 4000} <= seen <= {8000, 6000, 4000}
    assert [each.mib for each in driver_local.gpus.releases()] == [2000, 2000, 4000]


def test_a_forked_child_keeps_the_memory_though_nobody_is_listed(driver_local: LocalDriver) -> None:
    process = driver_local.hold(2, 40_000, "--fork-child")
    process.kill()
    process.wait()
    time.sleep(0.1)
    state = driver_local.gpus.state()[2]
    assert state["used_mib"] == 40_000 + IDLE
    assert [(each["alive"], each["listed"]) for each in state["allocations"]] == [(False, False)]
    os.killpg(process.pid, signal.SIGKILL)
    driver_local.gpus.wait_for_used(2, IDLE, timeout=5)


def test_the_child_of_a_holder_has_the_device_nodes_open(driver_local: LocalDriver) -> None:
    process = driver_local.hold(2, 100, "--fork-child")
    children = subprocess.run(["pgrep", "-P", str(process.pid)], capture_output=True, text=True, check=True)
    child = int(children.stdout)
    for pid in (process.pid, child):
        held = {os.readlink(f"/proc/{pid}/fd/{each}") for each in os.listdir(f"/proc/{pid}/fd")}
        assert {str(driver_local.dev / name) for name in ("nvidiactl", "nvidia-uvm", "nvidia2")} <= held


def test_a_process_that_ignores_sigterm_keeps_its_memory(driver_local: LocalDriver) -> None:
    process = driver_local.hold(0, 1000, "--ignore-term")
    process.terminate()
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(timeout=0.3)
    assert driver_local.gpus.used_mib(0) == 1000 + IDLE


def test_a_stopped_process_keeps_its_memory(driver_local: LocalDriver) -> None:
    process = driver_local.hold(0, 1000)
    process.send_signal(signal.SIGSTOP)
    time.sleep(0.05)
    assert driver_local.gpus.used_mib(0) == 1000 + IDLE


def test_a_zombie_holds_nothing(driver_local: LocalDriver) -> None:
    process = driver_local.hold(0, 1000)
    process.kill()  # not waited for: it stays a zombie
    driver_local.gpus.wait_for_used(0, IDLE, timeout=5)


def test_what_does_not_fit_is_refused_and_says_what_is_free(driver_local: LocalDriver) -> None:
    driver_local.hold(0, 90_000)
    with pytest.raises(OutOfMemory) as refused:
        Allocation(0, 8000)
    assert refused.value.free_mib == 97887 - 638 - IDLE - 90_000
    assert driver_local.gpus.used_mib(0) == 90_000 + IDLE


def test_memory_on_its_way_back_can_not_be_allocated_yet(driver_local: LocalDriver) -> None:
    driver_local.gpus.set(0, release_delay_s=60.0)
    process = driver_local.hold(0, 90_000)
    process.kill()
    process.wait()
    with pytest.raises(OutOfMemory):
        Allocation(0, 90_000)


def test_an_allocation_grows_and_shrinks_at_once(driver_local: LocalDriver) -> None:
    driver_local.gpus.set(0, release_delay_s=60.0)
    with Allocation(0, 1000) as held:
        held.resize(5000)
        assert driver_local.gpus.used_mib(0) == 5000 + IDLE
        with pytest.raises(OutOfMemory):
            held.resize(200_000)
        assert driver_local.gpus.used_mib(0) == 5000 + IDLE
        held.resize(300)
        assert driver_local.gpus.used_mib(0) == 300 + IDLE


def test_one_process_may_hold_memory_on_several_gpus(driver_local: LocalDriver) -> None:
    process = driver_local.hold(4, 500, "--gpu", "5")
    assert [driver_local.gpus.used_mib(gpu) for gpu in (3, 4, 5)] == [IDLE, 500 + IDLE, 500 + IDLE]
    process.kill()
    driver_local.gpus.wait_for_used(5, IDLE, timeout=5)


def test_a_gpu_is_chosen_by_index_uuid_or_pci_id(driver_local: LocalDriver) -> None:
    state = driver_local.gpus.state()[6]
    for spec in (6, "6", state["uuid"], state["pci_bus_id"], "00000000:C1:00.0", "c1:00.0"):
        with Allocation(spec, 700):
            assert driver_local.gpus.used_mib(6) == 700 + IDLE
    with pytest.raises(DriverError, match="GPU 8"):
        Allocation(8, 1)


def test_memory_can_be_held_by_nobody(driver_local: LocalDriver) -> None:
    driver_local.gpus.set(0, held_mib=96_000)
    state = driver_local.gpus.state()[0]
    assert state["used_mib"] == 96_000 + IDLE
    assert state["allocations"] == []


def test_leaked_memory_stays_until_the_gpu_is_reset(driver_local: LocalDriver) -> None:
    driver_local.gpus.set(0, leak_mib=4096)
    for attempt in range(2):  # the second one leaks no more: the limit is for all together
        process = driver_local.hold(0, 3000)
        process.kill()
        process.wait()
        time.sleep(0.05)
    driver_local.gpus.wait_for_used(0, 4096 + IDLE, timeout=5)
    assert driver_local.gpus.state()[0]["leaked_mib"] == 4096
    driver_local.gpus.gpu_reset(0)
    assert driver_local.gpus.used_mib(0) == IDLE


def test_a_reset_clears_what_nobody_holds_until_the_scenario_says_so_again(driver_local: LocalDriver) -> None:
    driver_local.gpus.set(0, held_mib=5000)
    driver_local.gpus.gpu_reset(0)
    driver_local.gpus.fail("nvmlDeviceGetName", 999)  # an unrelated change does not bring it back
    assert driver_local.gpus.used_mib(0) == IDLE
    driver_local.gpus.set(0, held_mib=5000)
    assert driver_local.gpus.used_mib(0) == 5000 + IDLE


def test_a_gpu_in_use_can_not_be_reset(driver_local: LocalDriver) -> None:
    driver_local.hold(0, 10)
    with pytest.raises(DriverError, match="In use by another client"):
        driver_local.gpus.gpu_reset(0)


def test_a_power_failure_leaves_nothing_behind(driver_local: LocalDriver) -> None:
    driver_local.gpus.set(0, release_delay_s=3600.0, leak_mib=100)
    process = driver_local.hold(0, 1000)
    process.kill()
    process.wait()
    time.sleep(0.05)
    driver_local.gpus.power_cycle()
    assert driver_local.gpus.used_mib(0) == IDLE


def test_releases_say_when_memory_came_back(driver_local: LocalDriver) -> None:
    driver_local.gpus.set(1, release_delay_s=0.2)
    process = driver_local.hold(1, 640)
    before, wall_before = time.monotonic(), time.time()
    process.kill()
    driver_local.gpus.wait_for_used(1, IDLE, timeout=5)
    (release,) = driver_local.gpus.releases()
    assert (release.gpu, release.mib, release.pid) == (1, 640, process.pid)
    assert before <= release.released_at <= time.monotonic()
    assert release.freed_at - release.released_at == pytest.approx(0.2, abs=1e-6)
    assert wall_before + 0.1 < release.freed_at_wall <= time.time()


def test_exclusive_mode_admits_one_process(driver_local: LocalDriver) -> None:
    driver_local.gpus.set(0, compute_mode="exclusive_process")
    driver_local.hold(0, 10)
    with pytest.raises(DriverError, match="busy or unavailable"):
        Allocation(0, 10)
    driver_local.gpus.set(1, compute_mode="prohibited")
    with pytest.raises(DriverError, match="busy or unavailable"):
        Allocation(1, 10)


def test_a_lost_gpu_takes_no_allocations(driver_local: LocalDriver) -> None:
    driver_local.gpus.set(0, state="lost")
    with pytest.raises(DriverError, match="GPU is lost"):
        Allocation(0, 10)


def test_without_device_nodes_nothing_can_be_allocated(
    driver_local: LocalDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NVIDIA_SIM_DEV", "/nonexistent")
    with pytest.raises(FileNotFoundError):
        Allocation(0, 10)
    assert driver_local.gpus.used_mib(0) == IDLE


def test_cuda_sees_the_total_without_what_the_driver_reserves(driver_local: LocalDriver) -> None:
    driver_local.hold(0, 1000)
    free, total = memory_mib(0)
    assert total == 97887 - 638
    assert free == total - 1000 - IDLE


def test_allocations_can_be_made_to_fail(driver_local: LocalDriver) -> None:
    driver_local.gpus.fail("cuMemAlloc", 20, gpu=1, times=1)
    with Allocation(0, 10), pytest.raises(OutOfMemory):
        Allocation(1, 10)
    with Allocation(1, 10):
        pass


def test_many_processes_at_once(driver_local: LocalDriver) -> None:
    command = [sys.executable, "-S", str(CLIENT), "--mib", "100", "--seconds", "30"]
    processes = [
        subprocess.Popen(
            [*command, "--gpu", str(number % 8)], env=driver_local.environ(), stdout=subprocess.PIPE, text=True
        )
        for number in range(60)
    ]
    try:
        for process in processes:
            assert process.stdout is not None
            assert process.stdout.readline().startswith("holding")
        assert sum(gpu["used_mib"] - IDLE for gpu in driver_local.gpus.state()) == 6000
        listed = {each["pid"] for gpu in driver_local.gpus.state() for each in gpu["allocations"]}
        assert listed == {process.pid for process in processes}
    finally:
        for process in processes:
            process.kill()
            process.wait()
            assert process.stdout is not None
            process.stdout.close()
    for gpu in range(8):
        driver_local.gpus.wait_for_used(gpu, IDLE, timeout=5)


def test_the_little_program_tells_what_went_wrong(driver_local: LocalDriver) -> None:
    refused = driver_local.run(sys.executable, str(CLIENT), "--gpu", "0", "--mib", "200000")
    assert (refused.returncode, "out of memory" in refused.stderr) == (1, True)
    alone = driver_local.run(
        sys.executable, str(CLIENT), "--gpu", "0", "--mib", "1", NVIDIA_SIM_SOCKET="/nonexistent/socket"
    )
    assert (alone.returncode, "no driver" in alone.stderr) == (9, True)


def test_the_little_program_takes_a_name_on(driver_local: LocalDriver) -> None:
    process = driver_local.hold(0, 1, "--name", "VLLM::Worker_TP0")
    with open(f"/proc/{process.pid}/comm", encoding="utf-8") as comm:
        assert comm.read().strip() == "VLLM::Worker_TP"


def test_a_schedule_gives_everything_back_whatever_the_rounding() -> None:
    schedule = ReleaseSchedule(((0.0, 0.333), (1.0, 0.667), (2.0, 1.0)))
    stages = schedule.split(10, begun_at=5.0)
    assert sum(mib for _when, mib in stages) == 10
    assert [when for when, _mib in stages] == [5.0, 6.0, 7.0]


def test_rescheduling_never_gives_back_twice() -> None:
    ledger = Ledger()
    ledger.allocations[1] = Booked(1, 100, frozenset("C"), (10,))
    ledger.release(1, 0.0, ReleaseSchedule(((1.0, 0.5), (10.0, 1.0))), leak_mib=0)
    ledger.settle(2.0)
    assert ledger.in_use_mib() == 50
    ledger.reschedule(2.0, ReleaseSchedule(((3.0, 1.0),)))
    assert ledger.in_use_mib() == 50
    ledger.settle(3.0)
    assert ledger.in_use_mib() == 0
    assert sum(each.mib for each in ledger.history) == 100
