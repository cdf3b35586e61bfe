# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A GPU that hangs is waited for once, and what was not selected fails nobody."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, List, Optional, Sequence

import pytest

from ansible_collections.gpufleet.vllm.plugins.module_utils._gpu.reader import GpuReader
from ansible_collections.gpufleet.vllm.plugins.module_utils._gpu.select import resolve
from ansible_collections.gpufleet.vllm.plugins.module_utils._gpu.types import Gpu, MigDevice, Snapshot
from ansible_collections.gpufleet.vllm.plugins.module_utils._reclaim.patience import PatientReader, call_limit
from ansible_collections.gpufleet.vllm.plugins.module_utils._reclaim.plan import make_plan
from ansible_collections.gpufleet.vllm.plugins.module_utils._reclaim.ports import Ports
from ansible_collections.gpufleet.vllm.plugins.module_utils._reclaim.proof import prove_free
from ansible_collections.gpufleet.vllm.plugins.module_utils._reclaim.request import ReclaimRequest
from ansible_collections.gpufleet.vllm.plugins.module_utils._reclaim.situation import Situation
from ansible_collections.gpufleet.vllm.plugins.module_utils._reclaim.survey import unanswered
from ansible_collections.gpufleet.vllm.tests.unit.plugins.module_utils._reclaim.world import (
    FakeClock,
    gpu,
    orphan,
    snapshot,
    view,
)

WORDS = "memory: driver_hung: the driver did not answer in time"


def hung(index: int, **more: Any) -> Gpu:
    """A GPU about which a call did not return."""
    return gpu(index, None, state="error", error=WORDS, unanswered=True, **more)


def mute(index: int, used: int = 0, **more: Any) -> Gpu:
    """A GPU of which only the list of processes did not come back."""
    return gpu(index, used, error="process list: " + WORDS, unanswered=True, processes_reliable=False, **more)


def without_list(each: Gpu) -> Gpu:
    """The same GPU where nobody asks for its processes."""
    return each if each.state != "ok" else replace(each, processes=(), unanswered=False, error=None, processes_reliable=True)


class Driver(GpuReader):
    """Three GPUs, of which some hang. ``asked`` is what each reading asked for."""

    def __init__(self, *gpus: Gpu) -> None:
        self.gpus = gpus
        self.asked: List[Optional[List[str]]] = []
        self.with_processes: List[bool] = []

    def snapshot(self, gpus: Optional[Sequence[str]] = None, processes: bool = True) -> Snapshot:
        self.asked.append(None if gpus is None else list(gpus))
        self.with_processes.append(processes)
        found = tuple(resolve(gpus, self.gpus)) if gpus else self.gpus
        if not processes:
            found = tuple(without_list(each) for each in found)
        if all(each.state == "error" and each.unanswered for each in found):
            return Snapshot(False, reason="driver_hung", processes_reliable=False, gpus=found)
        return snapshot(*found, processes_reliable=all(each.processes_reliable for each in found))


def test_a_gpu_that_hung_once_is_not_asked_again_and_stays_in_the_answer() -> None:
    driver = Driver(hung(0), gpu(1), gpu(2, 500))
    reader = PatientReader(driver)
    first, second = reader.snapshot(), reader.snapshot()
    assert driver.asked == [None, ["1", "2"]]
    assert [each.index for each in second.gpus] == [0, 1, 2] and second.gpus[0] == first.gpus[0]
    assert [each.index for each in reader.snapshot(["2"], processes=False).gpus] == [2]
    assert [each.unanswered for each in reader.snapshot(["0", "2"]).gpus] == [True, False]
    alone = reader.snapshot(["0"])
    assert (alone.available, alone.reason) == (False, "driver_hung") and "GPU 0: " + WORDS in str(alone.reason_detail)
    assert driver.asked[2:] == [["2"], ["2"]], "the one that hung is not among them"


def test_a_gpu_that_begins_to_hang_on_the_way_is_remembered_too() -> None:
    driver = Driver(gpu(0), gpu(1), gpu(2))
    reader = PatientReader(driver)
    reader.snapshot()
    driver.gpus = (hung(0), gpu(1), gpu(2))
    reader.snapshot(["0", "1"])
    reader.snapshot()
    assert driver.asked[-1] == ["1", "2"]


def test_where_all_hang_each_reading_asks_anew() -> None:
    """It is the driver, or the look at its processes, rather than one GPU: that may pass."""
    for lame in (hung, mute):
        driver = Driver(lame(0), lame(1))
        reader = PatientReader(driver)
        reader.snapshot()
        reader.snapshot()
        assert driver.asked == [None, None]


def test_a_gpu_whose_list_of_processes_hung_is_still_asked_for_its_memory() -> None:
    driver = Driver(mute(0, 300), gpu(1), gpu(2, 500))
    reader = PatientReader(driver)
    reader.snapshot()
    driver.gpus = (mute(0, 90000), gpu(1), gpu(2, 500))
    for processes in (True, False):
        found = reader.snapshot(processes=processes)
        assert [each.used_mib for each in found.gpus] == [90000, 0, 500]
        assert found.used_mib == 90500 and not found.processes_reliable
        assert (found.gpus[0].unanswered, found.gpus[0].processes_reliable) == (True, False)
    assert reader.snapshot(["0"]).gpus[0].used_mib == 90000
    asked = list(zip(driver.asked, driver.with_processes, strict=True))
    assert asked == [(None, True), (["1", "2"], True), (["0"], False), (["0", "1", "2"], False), (["0"], False)]


def test_a_figure_of_before_proves_nothing() -> None:
    """A GPU that is asked no more may hold anything by now."""
    clock = FakeClock()
    part = MigDevice(0, "MIG-0", None, 1, 0, used_mib=0)
    lame = (
        mute(0, 300),
        mute(0, 0, memory_type="unified"),
        gpu(0, None, memory_type="mig", mig_devices=(part,), unanswered=True),
        gpu(0, 0, unanswered=True),
    )
    for each in lame:
        driver = Driver(each, gpu(1))
        reader = PatientReader(driver)
        reader.snapshot()
        driver.gpus = (replace(each, used_mib=90000), gpu(1))
        proof = prove_free(reader, [0, 1], {0: 1024, 1: 1024}, 0.2, 1.0, clock)
        assert not proof.freed and proof.reason is not None and proof.reason.startswith("GPU 0")


def test_a_gpu_whose_memory_hangs_later_is_asked_for_nothing_any_more() -> None:
    driver = Driver(mute(0, 300), gpu(1))
    reader = PatientReader(driver)
    reader.snapshot()
    driver.gpus = (hung(0), gpu(1))
    reader.snapshot(processes=False)
    found = reader.snapshot()
    assert driver.asked == [None, ["0", "1"], ["1"]] and found.gpus[0].used_mib is None


def test_nor_does_it_stand_for_the_driver_when_it_is_asked_alone() -> None:
    driver = Driver(mute(0, 300), gpu(1))
    reader = PatientReader(driver)
    reader.snapshot()
    driver.gpus = (hung(0), gpu(1))
    found = reader.snapshot()
    assert found.available and [(each.state, each.used_mib) for each in found.gpus] == [("error", None), ("ok", 0)]
    assert not found.processes_reliable and found.gpus[0].unanswered
    reader.snapshot()
    assert driver.asked == [None, ["1"], ["0"], ["1"]]


def test_one_failed_look_at_processes_freezes_nobody() -> None:
    """It makes every list unread at once, and says nothing about any GPU; also where one has hung before."""
    driver = Driver(hung(0), gpu(1), gpu(2, 500))
    reader = PatientReader(driver)
    reader.snapshot()
    driver.gpus = (hung(0), mute(1), mute(2, 500))
    assert not reader.snapshot().processes_reliable
    driver.gpus = (hung(0), gpu(1), gpu(2, 700))
    found = reader.snapshot()
    assert [each.unanswered for each in found.gpus] == [True, False, False] and found.gpus[2].used_mib == 700
    assert driver.asked == [None, ["1", "2"], ["1", "2"]] and all(driver.with_processes)


@pytest.mark.parametrize(("timeout", "limit"), [(120.0, 30.0), (8.0, 3.0), (1.5, 0.75), (3600.0, 60.0)])
def test_a_call_may_take_its_share_of_the_time(timeout: float, limit: float) -> None:
    assert call_limit(timeout) == limit


def test_a_hung_gpu_that_was_not_selected_holds_nobody_up_and_is_said() -> None:
    look = view([orphan(11, [1])], selected=[1], processes_reliable=False)
    lame = replace(look.snapshot, gpus=(hung(0, processes_reliable=False), look.snapshot.gpus[1]))
    other = replace(look, snapshot=lame)
    assert [each.holder.pid for each in make_plan(ReclaimRequest(), other).signals] == [11]
    assert unanswered(other) == ["GPU 0, which was not selected, does not answer (%s)" % WORDS]
    assert make_plan(ReclaimRequest(), replace(other, selected=(0, 1))).empty and not unanswered(replace(other, selected=(0, 1)))
    absurd = replace(lame, gpus=(gpu(0, processes_reliable=False), look.snapshot.gpus[1]))
    assert make_plan(ReclaimRequest(), replace(look, snapshot=absurd)).empty, "a list that makes no sense speaks against all of them"


def test_a_reading_that_hangs_makes_the_whole_no_more_than_its_share_longer() -> None:
    clock = FakeClock()
    readers = [Driver(gpu(0)), Driver(gpu(0))]
    opened = iter(readers)
    now = Situation(ReclaimRequest(timeout=120.0), Ports(clock=clock, open_reader=lambda: next(opened)))
    left: List[float] = []
    for spent in (0.0, 100.0, 20.0, 200.0):
        clock.now += spent
        assert readers[0].within is not None
        left.append(readers[0].within())
    assert left == [155.0, 55.0, 35.0, 5.0]
    now.reopen()
    assert readers[1].within is not None and readers[1].within() == 5.0
