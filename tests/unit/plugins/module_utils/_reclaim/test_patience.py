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
from ansible_collections.gpufleet.vllm.plugins.module_utils._gpu.types import Gpu, Snapshot
from ansible_collections.gpufleet.vllm.plugins.module_utils._reclaim.patience import PatientReader, call_limit
from ansible_collections.gpufleet.vllm.plugins.module_utils._reclaim.plan import make_plan
from ansible_collections.gpufleet.vllm.plugins.module_utils._reclaim.request import ReclaimRequest
from ansible_collections.gpufleet.vllm.plugins.module_utils._reclaim.survey import unanswered
from ansible_collections.gpufleet.vllm.tests.unit.plugins.module_utils._reclaim.world import gpu, orphan, snapshot, view

WORDS = "memory: driver_hung: the driver did not answer in time"


def hung(index: int, **more: Any) -> Gpu:
    """A GPU about which a call did not return."""
    return gpu(index, None, state="error", error=WORDS, unanswered=True, **more)


class Driver(GpuReader):
    """Three GPUs, of which some hang. ``asked`` is what each reading asked for."""

    def __init__(self, *gpus: Gpu) -> None:
        self.gpus = gpus
        self.asked: List[Optional[List[str]]] = []

    def snapshot(self, gpus: Optional[Sequence[str]] = None, processes: bool = True) -> Snapshot:
        self.asked.append(None if gpus is None else list(gpus))
        return snapshot(*(resolve(gpus, self.gpus) if gpus else self.gpus))


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
    driver = Driver(hung(0), hung(1))
    reader = PatientReader(driver)
    reader.snapshot()
    reader.snapshot()
    assert driver.asked == [None, None]


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
