# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A reading through NVML of which calls hang: it has one limit as a whole, and shows every GPU that is well."""

from __future__ import annotations

import math
import time
from typing import Any, Callable, Dict, Iterator, Optional, Set

import pytest

from ansible_collections.gpufleet.vllm.plugins.module_utils._gpu import child as child_module
from ansible_collections.gpufleet.vllm.plugins.module_utils._gpu import raw
from ansible_collections.gpufleet.vllm.plugins.module_utils._gpu.driver import Driver
from ansible_collections.gpufleet.vllm.plugins.module_utils._gpu.limits import reading_limit
from ansible_collections.gpufleet.vllm.plugins.module_utils._gpu.nvml import Skips
from ansible_collections.gpufleet.vllm.tests.unit.plugins.module_utils._gpu.played import (
    COUNT,
    DEAD,
    HANDLE,
    INIT,
    LISTS,
    MEMORY,
    MODE,
    QUICK,
    RECOVERY,
    UTILIZATION,
    UUID,
    Child,
    Machine,
)


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Machine]]:
    """Makes machines whose children are played."""

    def make(count: int, takes: Callable[[str, Optional[int]], float]) -> Machine:
        made = Machine(count, takes)
        monkeypatch.setattr("ansible_collections.gpufleet.vllm.plugins.module_utils._gpu.driver.start_child", made.child)
        monkeypatch.setattr(time, "monotonic", lambda: made.now)
        return made

    yield make


def bad_gpus(bad: Set[int], init: float, calls: Set[str], lasts: float = math.inf) -> Callable[[str, Optional[int]], float]:
    """The library takes ``init`` seconds to start, and these calls to these GPUs never return."""
    return lambda function, index: init if function == INIT else lasts if index in bad and function in calls else QUICK


def states(reading: raw.RawReading) -> Dict[int, bool]:
    """Whether each GPU is well: with all that can be known of it."""
    return {gpu.index: gpu.code == gpu.memory_code == gpu.processes_code == 0 and gpu.memory is not None and gpu.processes == []
            and gpu.uuid is not None and not gpu.unread for gpu in reading.gpus}


def named(calls: Set[str]) -> str:
    """A short name of these calls."""
    return "+".join(sorted(call.replace("nvmlDeviceGet", "") for call in calls))


@pytest.mark.parametrize("init", [0.05, 3.0, 8.0])
@pytest.mark.parametrize("timeout", [15.0, 30.0, 60.0])
@pytest.mark.parametrize(("count", "bad"), [
    (1, {0}), (8, {2}), (8, {0}), (8, {1, 2}), (8, {1, 2, 3, 4}), (8, {0, 1, 2, 3, 4, 5, 6}), (16, {0, 1, 2, 3, 4, 5, 6, 7}),
])
@pytest.mark.parametrize("calls", [DEAD, {HANDLE}, {MEMORY}, {LISTS}, {UTILIZATION}, {UUID}], ids=named)
def test_hung_gpus_hide_no_good_one_and_the_whole_has_a_limit(
    machine: Callable[..., Machine], calls: Set[str], count: int, bad: Set[int], timeout: float, init: float
) -> None:
    """Without persistence mode every child pays for the start of the library again, and so it did for each GPU that hangs."""
    made = machine(count, bad_gpus(bad, init, calls))
    reading, took = made.read(timeout)
    assert reading.failure is None and [gpu.index for gpu in reading.gpus] == list(range(count)) and reading.count == count
    assert states(reading) == {index: index not in bad for index in range(count)}
    for gpu in reading.gpus:
        if calls != {UUID} or init < 1:  # without its identity, where there is little time, nothing else is known of it
            memory = gpu.index not in bad or not calls & {HANDLE, MEMORY}
            assert (gpu.memory is not None) is memory and (memory or raw.HUNG in (gpu.code, gpu.memory_code))
        assert gpu.uuid or calls & {HANDLE, UUID}
    assert took <= reading_limit(timeout)
    if init < 1:
        assert took < timeout + 12


@pytest.mark.parametrize("init", [0.05, 3.0])
def test_on_a_host_with_very_many_gpus_too(machine: Callable[..., Machine], init: float) -> None:
    bad = {3, 40, 63}
    reading, took = machine(64, bad_gpus(bad, init, DEAD)).read(30.0)
    assert states(reading) == {index: index not in bad for index in range(64)} and took <= reading_limit(30.0)


@pytest.mark.parametrize(("count", "bad", "init", "limit"), [(8, 1, 8.0, 70), (8, 2, 3.0, 62), (8, 4, 8.0, 70), (16, 8, 3.0, 62)])
def test_a_cleanup_has_time_left_after_a_reading(machine: Callable[..., Machine], count: int, bad: int, init: float, limit: float) -> None:
    """Of its 120 seconds a call may take 30."""
    assert machine(count, bad_gpus(set(range(1, bad + 1)), init, DEAD)).read(30.0)[1] < limit


@pytest.mark.parametrize("call", [UTILIZATION, MODE, RECOVERY, LISTS])
@pytest.mark.parametrize("init", [0.05, 8.0])
def test_a_call_that_hangs_on_every_gpu_costs_no_memory(machine: Callable[..., Machine], call: str, init: float) -> None:
    for timeout in (0.5, 15.0, 30.0) if init < 1 else (30.0, 60.0):
        reading, took = machine(8, bad_gpus(set(range(8)), init, {call})).read(timeout)
        assert reading.failure is None and all(gpu.memory is not None and gpu.uuid for gpu in reading.gpus), timeout
        assert took <= reading_limit(timeout)


@pytest.mark.parametrize("slow", [0.05, 3.0])
@pytest.mark.parametrize("calls", [{INIT}, {COUNT}, {HANDLE}, {MEMORY}, DEAD | {HANDLE, MODE, UUID}], ids=named)
def test_a_driver_on_which_all_hang_is_given_up_in_time(machine: Callable[..., Machine], calls: Set[str], slow: float) -> None:
    """However slow its good calls are, and however many GPUs it has: nothing of their memory is known."""

    def takes(function: str, index: Optional[int]) -> float:
        return math.inf if function in calls else slow

    for count in (1, 8, 64):
        reading, took = machine(count, takes).read(60.0)
        if calls & {INIT, COUNT}:
            assert reading.failure is not None and reading.failure.reason == "driver_hung" and took < 70
        else:
            assert [raw.HUNG in (gpu.code, gpu.memory_code) and gpu.memory is None for gpu in reading.gpus] == [True] * count
        assert took <= reading_limit(60.0)


def test_who_is_slow_but_well_is_read_whole(machine: Callable[..., Machine]) -> None:
    """A call may take many seconds, and all together longer than the limit of one; beside a GPU that hangs too."""
    for bad in (set(), {2}):
        reading, took = machine(8, lambda function, index: math.inf if index in bad and function in DEAD else 9.0  # noqa: B023
                                if function in (INIT, HANDLE) else QUICK).read(60.0)
        assert states(reading) == {index: index not in bad for index in range(8)} and 80 < took <= reading_limit(60.0)


def test_who_is_too_slow_for_one_after_another_is_read_side_by_side(machine: Callable[..., Machine]) -> None:
    made = machine(16, lambda _function, index: 0.1 if index is None else 1.5)
    reading, took = made.read(30.0)
    assert states(reading) == dict.fromkeys(range(16), True) and 60 < took <= reading_limit(30.0) and made.started == 1 + 1 + 16


def test_crashes_are_told_apart_and_cost_no_time(machine: Callable[..., Machine]) -> None:
    reading, took = machine(8, bad_gpus({1, 5}, 0.05, {MEMORY}, lasts=-1.0)).read(60.0)
    assert {gpu.index: gpu.memory_code for gpu in reading.gpus if gpu.memory is None} == {1: raw.CRASHED, 5: raw.CRASHED} and took < 2
    assert [note for note in reading.notes if note.endswith("is lost")] == ["%s on GPU %d is lost" % (MEMORY, index) for index in (1, 5)]


def test_only_the_selected_are_asked(machine: Callable[..., Machine]) -> None:
    made = machine(8, bad_gpus({2, 7}, 0.05, DEAD))
    reading, took = made.read(30.0, only=frozenset([1, 2]))
    assert states(reading) == {1: True, 2: False} and reading.count == 8 and made.started <= 1 + 1 + 2 + 2 + 2


@pytest.mark.parametrize("within", [2.0, 20.0, 50.0])
def test_a_caller_with_less_time_gets_what_can_be_read_in_it(machine: Callable[..., Machine], within: float) -> None:
    """The call that hangs is cut short then, and is not to blame yet; the others are read all the same."""
    reading, took = machine(8, bad_gpus({2, 3}, 0.05, DEAD)).read(30.0, within=within)
    assert states(reading) == {index: index not in (2, 3) for index in range(8)} and took <= within


def test_an_ordinary_reading_takes_one_child(machine: Callable[..., Machine]) -> None:
    made = machine(8, bad_gpus(set(), 3.0, set()))
    assert made.read(30.0)[1] < 4 and made.started == 1


def test_a_host_that_starts_no_more_processes_asks_few_at_once(
    machine: Callable[..., Machine], monkeypatch: pytest.MonkeyPatch
) -> None:
    made = machine(8, bad_gpus({2, 3}, 0.05, DEAD))

    def start(*arguments: object) -> Child:
        if len(made.alive) >= 3:
            raise BlockingIOError("no more processes")
        return made.child(*arguments)

    monkeypatch.setattr("ansible_collections.gpufleet.vllm.plugins.module_utils._gpu.driver.start_child", start)
    reading, took = made.read(30.0)
    assert states(reading) == {index: index not in (2, 3) for index in range(8)} and took <= reading_limit(30.0)


def test_a_host_that_starts_none_at_all_says_so(machine: Callable[..., Machine], monkeypatch: pytest.MonkeyPatch) -> None:
    made = machine(4, bad_gpus({2}, 0.05, DEAD))

    def start(*arguments: object) -> Child:
        if made.started >= 2:
            raise BlockingIOError("no more processes")
        return made.child(*arguments)

    monkeypatch.setattr("ansible_collections.gpufleet.vllm.plugins.module_utils._gpu.driver.start_child", start)
    reading, _took = made.read(30.0)
    assert [(gpu.code, gpu.memory) for gpu in reading.gpus] == [(raw.UNKNOWN, None)] * 4
    assert reading.notes[-1] == "GPU 0, 1, 2, 3 not asked: no process could be started for that: no more processes"


@pytest.mark.parametrize(("timeout", "limit"), [(0.5, 5.5), (1.0, 6.0), (3.0, 9.0), (30.0, 90.0), (60.0, 180.0)])
def test_what_a_reading_may_take(timeout: float, limit: float) -> None:
    assert reading_limit(timeout) == limit


def test_a_real_child_is_asked_as_the_played_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same words through worker.Worker, with its pipes and its clock."""
    from ansible_collections.gpufleet.vllm.plugins.module_utils._gpu.worker import Beat, Handler, Worker

    def handler(beat: Beat) -> Handler:
        def handle(request: Any) -> raw.RawReading:
            _kind, only, processes, depth, skips = request
            reading = raw.RawReading("nvml", count=4)
            for index in range(4):
                if only is None or index in only:
                    code = Skips(skips).code(MEMORY, index)
                    gpu = raw.RawGpu(index, uuid="GPU-%d" % index, memory_code=code, processes=[] if processes else None)
                    beat("%s on GPU %d" % (MEMORY, index))
                    if depth > raw.IDENTITY and code == raw.SUCCESS:
                        if index in (1, 2):
                            time.sleep(60)
                        gpu.memory = raw.RawMemory(1 << 30, 0, 1 << 30)
                    reading.gpus.append(gpu)
            return reading

        return handle

    monkeypatch.setattr(child_module, "Worker", lambda _make: Worker(handler))
    driver = Driver("nvml", 0.3, None, "/proc", "/dev")
    begin = time.monotonic()
    try:
        reading = driver.read(None, True, raw.FULL)
    finally:
        driver.close()
    assert time.monotonic() - begin < 3
    assert states(reading) == {0: True, 1: False, 2: False, 3: True}
    assert [gpu.memory_code for gpu in reading.gpus] == [0, raw.HUNG, raw.HUNG, 0] and all(gpu.processes == [] for gpu in reading.gpus)
    assert reading.notes == ("%s on GPU 1 did not answer within 0.3 s" % MEMORY, "%s on GPU 2 did not answer within 0.3 s" % MEMORY)
