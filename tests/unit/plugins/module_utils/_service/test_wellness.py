# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A busy server is not a dead one, and one bad look is not enough for a restart."""

from __future__ import annotations

from typing import Any

from ansible_collections.gpufleet.vllm.plugins.module_utils._server.ready import ReadyState
from ansible_collections.gpufleet.vllm.plugins.module_utils._service.ready import Target
from ansible_collections.gpufleet.vllm.plugins.module_utils._service.wellness import unwell
from ansible_collections.gpufleet.vllm.tests.unit.plugins.module_utils._service.world import (
    Behaviour,
    FakeServer,
    World,
    status,
)

UNIT = "vllm-new.service"
BAD = ReadyState(False, "completion", "nothing within 30 s")


class Counting(FakeServer):
    """Its engine makes ``rate`` tokens a second."""

    def __init__(self, world: World, rate: float) -> None:
        super().__init__(world, 8000)
        self._rate = rate

    def metrics(self, timeout: float = 5.0) -> dict[str, float]:
        return {"generation_tokens_total": self._rate * self._world.clock.now}


def target(rate: float, completes: bool = False) -> tuple[Any, World]:
    world = World(units={UNIT: status(UNIT, "active")}, behaviours={UNIT: Behaviour(completes=completes)}, started_at={UNIT: 0.0})
    return Target(UNIT, "new", Counting(world, rate)), world  # type: ignore[arg-type]


def test_a_server_that_makes_tokens_is_busy() -> None:
    asked, world = target(rate=5000.0)
    assert unwell(asked, BAD, world.clock) is None


def test_a_server_that_makes_none_and_still_does_not_answer_is_dead() -> None:
    asked, world = target(rate=0.0)
    said = unwell(asked, BAD, world.clock)
    assert said is not None and "does not serve" in said


def test_a_second_look_that_is_good_takes_the_first_one_back() -> None:
    asked, world = target(rate=0.0, completes=True)
    assert unwell(asked, BAD, world.clock) is None


def test_a_server_that_loads_or_serves_is_well_without_another_look() -> None:
    asked, world = target(rate=0.0)
    before = world.clock.now
    for seen in (ReadyState(False, "loading", ""), ReadyState(True, "ready", "")):
        assert unwell(asked, seen, world.clock) is None
    assert world.clock.now == before
