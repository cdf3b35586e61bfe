# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Waiting for memory ends early where somebody lives on who holds it, and never where he is about to go."""

from __future__ import annotations

from typing import Any, Callable, Optional, Sequence

import pytest

from ansible_collections.gpufleet.vllm.plugins.module_utils._core.errors import GpuFleetError
from ansible_collections.gpufleet.vllm.plugins.module_utils._gpu.reader import GpuReader
from ansible_collections.gpufleet.vllm.plugins.module_utils._gpu.types import Gpu, GpuProcess, Snapshot
from ansible_collections.gpufleet.vllm.plugins.module_utils._service import free
from ansible_collections.gpufleet.vllm.plugins.module_utils._service.memory import Limit
from ansible_collections.gpufleet.vllm.plugins.module_utils._service.ports import Ports
from ansible_collections.gpufleet.vllm.tests.unit.plugins.module_utils._service.world import (
    World,
    gpu,
    snapshot,
    status,
)

OLD, OTHER = "vllm-old.service", "other.service"


class Driver(GpuReader):
    """GPUs as ``read(seconds)`` has them."""

    def __init__(self, world: World, read: Callable[[float], Sequence[Gpu]]) -> None:
        self.world, self.read = world, read
        self.looks = 0

    def snapshot(self, gpus: Optional[Sequence[str]] = None, processes: bool = True) -> Snapshot:
        self.looks += processes
        return snapshot([one for one in self.read(self.world.clock.now - 1000.0) if gpus is None or str(one.index) in gpus])


@pytest.fixture(autouse=True)
def no_orphans(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ending orphans has tests of its own."""
    monkeypatch.setattr(free, "_end_orphans", lambda *_given: None)


def stranger(used: Optional[int] = 50000, **more: Any) -> GpuProcess:
    return GpuProcess(**{"pid": 4711, "type": "C", "used_mib": used, "name": "train.py", "start_ticks": 5, **more})


def limits(*gpus: int) -> list[Limit]:
    return [Limit(index, 1024, 7000, None, False) for index in gpus]


def run(world: World, read: Callable[[float], Sequence[Gpu]], *gpus: int, leaving: Sequence[str] = ()) -> tuple[str, float]:
    """What it says, and the seconds that it took."""
    systemd: Any = world
    try:
        text = "; ".join(free.make_free(
            limits(*gpus), Ports(clock=world.clock, systemd=systemd), Driver(world, read), leaving=frozenset(leaving)
        ).warnings)
    except GpuFleetError as exc:
        text = exc.msg
    return text, world.clock.now - 1000.0


def test_a_stranger_who_lives_on_is_named_after_a_few_seconds() -> None:
    text, seconds = run(World(), lambda _now: [gpu(3, 50400, [stranger()])], 3)
    assert "does not come free, since pid 4711 (train.py) lives on, and has held it for 5 s: " in text and 5.0 <= seconds < 12.0


def test_one_who_ends_within_the_grace_is_waited_for() -> None:
    text, seconds = run(World(), lambda now: [gpu(3, 50400, [stranger()])] if now < 5.0 else [gpu(3, 0)], 3)
    assert text == "" and 5.5 <= seconds < 6.0


def test_what_is_ours_and_ends_late_is_waited_for_to_the_end() -> None:
    late = [gpu(3, 90000, [stranger(90000, unit=OLD)])]
    text, seconds = run(World(), lambda now: late if now < 60.0 else [gpu(3, 0)], 3, leaving=[OLD])
    assert text == "" and seconds >= 60.0


@pytest.mark.parametrize("state", ["deactivating", "inactive"])
def test_what_systemd_is_ending_is_waited_for(state: str) -> None:
    world = World()
    world.units[OTHER] = status(OTHER, state)
    text, seconds = run(world, lambda now: [gpu(3, 50400, [stranger(unit=OTHER)])] if now < 60.0 else [gpu(3, 0)], 3)
    assert text == "" and seconds >= 60.0


def test_a_unit_that_runs_is_not() -> None:
    world = World()
    world.units[OTHER] = status(OTHER, "active")
    text, seconds = run(world, lambda _now: [gpu(3, 50400, [stranger(unit=OTHER)])], 3)
    assert "lives on" in text and seconds < 12.0


@pytest.mark.parametrize("more", [
    {"orphan": True}, {"state": "zombie"}, {"state": "gone"}, {"state": "not_visible"}, {"name": None}, {"used_mib": None},
])  # fmt: skip
def test_who_may_yet_go_or_is_not_known_is_waited_for(more: dict[str, Any]) -> None:
    _text, seconds = run(World(), lambda _now: [gpu(3, 50400, [stranger(**more)])], 3)
    assert seconds >= 120.0


def test_a_list_that_cannot_be_relied_on_ends_no_wait() -> None:
    _text, seconds = run(World(), lambda _now: [gpu(3, 50400, [stranger()], processes_reliable=False)], 3)
    assert seconds >= 120.0


def test_another_process_each_time_is_nobody_who_stays() -> None:
    _text, seconds = run(World(), lambda now: [gpu(3, 50400, [stranger(start_ticks=int(now / 3))])], 3)
    assert seconds >= 120.0


def test_one_who_is_letting_go_is_waited_for() -> None:
    _text, seconds = run(World(), lambda now: [gpu(3, 90000 - int(now) * 100, [stranger(89000 - int(now) * 100)])], 3)
    assert seconds >= 120.0


def test_with_room_enough_beside_him_only_what_comes_back_is_waited_for() -> None:
    text, seconds = run(World(), lambda now: [gpu(3, 65000 if now < 20.0 else 5000, [stranger(4900)])], 3)
    assert "There is room for the service" in text and 25.0 <= seconds < 32.0


def test_memory_that_nobody_holds_is_waited_for() -> None:
    _text, seconds = run(World(), lambda _now: [gpu(3, 50400)], 3)
    assert seconds >= 120.0


def test_memory_that_comes_back_at_once_costs_no_look_at_processes() -> None:
    world = World()
    systemd: Any = world
    driver = Driver(world, lambda now: [gpu(3, 90000 if now < 0.9 else 0)])
    free.make_free(limits(3), Ports(clock=world.clock, systemd=systemd), driver)
    assert driver.looks == 0
