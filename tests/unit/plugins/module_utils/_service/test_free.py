# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Making room: how long the memory is watched, and that on MIG instances each is waited for by itself."""

from __future__ import annotations

from typing import Any, Callable, Optional, Sequence

import pytest

from ansible_collections.gpufleet.vllm.plugins.module_utils._core.errors import GpuFleetError
from ansible_collections.gpufleet.vllm.plugins.module_utils._gpu.reader import GpuReader
from ansible_collections.gpufleet.vllm.plugins.module_utils._gpu.select import resolve
from ansible_collections.gpufleet.vllm.plugins.module_utils._gpu.types import Gpu, MigDevice, Snapshot
from ansible_collections.gpufleet.vllm.plugins.module_utils._service import free
from ansible_collections.gpufleet.vllm.plugins.module_utils._service.memory import Limit
from ansible_collections.gpufleet.vllm.plugins.module_utils._service.ports import Ports
from ansible_collections.gpufleet.vllm.tests.unit.plugins.module_utils._service.world import FakeClock, gpu, snapshot


class Cut(GpuReader):
    """One card cut in two. The second half gives its memory back after ``late`` seconds."""

    def __init__(self, clock: FakeClock, late: float) -> None:
        self.clock, self.late = clock, late

    def snapshot(self, gpus: Optional[Sequence[str]] = None, processes: bool = True) -> Snapshot:
        used = 38000 if self.clock.now < 1000.0 + self.late else 0
        halves = tuple(
            MigDevice(number, "MIG-%d" % number, None, number, 0, total_mib=40000, used_mib=each, free_mib=40000 - each)
            for number, each in enumerate((0, used))
        )
        card: Gpu = gpu(3, used, memory_type="mig", mig_devices=halves)
        return snapshot(resolve(gpus or ["all"], [card]))


@pytest.fixture(autouse=True)
def no_orphans(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ending orphans has tests of its own."""
    monkeypatch.setattr(free, "_end_orphans", lambda *_given: None)


LIMITS = [Limit(3, 1024, 4000, "MIG-0", False), Limit(3, 1024, 4000, "MIG-1", False)]
ALONE = Limit(3, 1024, 4000, None, False)


def test_both_instances_of_a_card_are_waited_for() -> None:
    clock = FakeClock()
    freed = free.make_free(LIMITS, _ports(clock), Cut(clock, 5.0))
    assert freed.warnings == () and 1005.5 <= clock.now < 1006.0


def test_the_instance_that_stays_full_is_named() -> None:
    clock = FakeClock()
    with pytest.raises(GpuFleetError, match=r"MIG-1 \(38,000 MiB used\)"):
        free.make_free(LIMITS, _ports(clock), Cut(clock, 1e9), 10.0)
    free.make_free(LIMITS[:1], _ports(clock), Cut(clock, 1e9), 10.0)  # the neighbour's memory is its own


class Moving(GpuReader):
    """One GPU whose used memory, in MiB, is ``used(seconds)``."""

    def __init__(self, clock: FakeClock, used: Callable[[float], int]) -> None:
        self.clock, self.used = clock, used

    def snapshot(self, gpus: Optional[Sequence[str]] = None, processes: bool = True) -> Snapshot:
        return snapshot([gpu(3, self.used(self.clock.now - 1000.0))])


def test_memory_that_is_all_back_is_watched_for_half_a_second() -> None:
    clock = FakeClock()
    free.make_free([ALONE], _ports(clock), Moving(clock, lambda _now: 600))
    assert 1000.5 <= clock.now < 1000.7


def test_beside_somebody_who_stays_it_is_watched_for_a_second() -> None:
    clock = FakeClock()
    free.make_free([ALONE, Limit(3, 1024, 4000, None, True)], _ports(clock), Moving(clock, lambda _now: 900))
    assert 1001.0 <= clock.now < 1001.2, "by who is there, not by how much he holds"


def test_more_than_an_idle_gpu_holds_is_watched_for_a_second() -> None:
    clock = FakeClock()
    free.make_free([Limit(3, 2000, 4000, None, False)], _ports(clock), Moving(clock, lambda _now: 1900))
    assert 1001.0 <= clock.now < 1001.2


class Slow(Moving):
    """A driver that takes three seconds for each answer, as nvidia-smi does on a host without persistence mode."""

    readings = 0

    def snapshot(self, gpus: Optional[Sequence[str]] = None, processes: bool = True) -> Snapshot:
        self.readings += 1
        self.clock.sleep(3.0)
        return super().snapshot(gpus, processes)


@pytest.mark.parametrize("staying", [False, True])
def test_a_slow_driver_has_to_say_it_five_times_and_gets_the_time_for_that(staying: bool) -> None:
    clock = FakeClock()
    driver = Slow(clock, lambda _now: 600)
    assert free.make_free([Limit(3, 1024, 4000, None, staying)], _ports(clock), driver, timeout=2.0) == free.Freed()
    assert driver.readings == 5


def test_a_slow_driver_that_shows_it_held_at_last_has_proven_nothing() -> None:
    clock = FakeClock()
    with pytest.raises(GpuFleetError, match="within 2 s"):
        free.make_free([ALONE], _ports(clock), Slow(clock, lambda now: 600 if now < 10.0 else 90000), timeout=2.0)


def test_memory_that_goes_on_coming_back_is_not_yet_proven() -> None:
    clock = FakeClock()
    free.make_free([ALONE], _ports(clock), Moving(clock, lambda now: 900 if now < 0.4 else 700))
    assert 1000.9 <= clock.now < 1001.1


def test_what_came_back_only_in_part_is_watched_for_a_second() -> None:
    clock = FakeClock()
    freed = free.make_free([ALONE], _ports(clock), Moving(clock, lambda _now: 3000), timeout=2.0)
    assert "not all memory came back" in freed.warnings[0] and clock.now >= 1003.0


def _ports(clock: FakeClock) -> Any:
    return Ports(clock=clock)
