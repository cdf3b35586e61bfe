# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A server that is up and answers amiss is not waited for as one that loads."""

from __future__ import annotations

from typing import Any

import pytest

from ansible_collections.gpufleet.vllm.plugins.module_utils._service.ready import NotReady, Target, wait_ready
from ansible_collections.gpufleet.vllm.tests.unit.plugins.module_utils._service.world import Behaviour, World, status

UNIT = "vllm-new.service"


def given_up(behaviour: Behaviour, timeout: float = 1800.0) -> tuple[NotReady, float]:
    world = World(units={UNIT: status(UNIT, "active")}, behaviours={UNIT: behaviour})
    world.started_at[UNIT] = world.clock.now
    server: Any = world.server("", 8000)
    begun = world.clock.now
    with pytest.raises(NotReady) as failure:
        wait_ready(Target(UNIT, "new", server), world, world.clock, timeout, 0)  # type: ignore[arg-type]
    return failure.value, world.clock.now - begun


@pytest.mark.parametrize("load", [0.0, 1.3, 29.7, 300.01])
def test_a_server_is_seen_as_soon_as_it_listens_and_looks_stay_rare(load: float) -> None:
    world = World(units={UNIT: status(UNIT, "active")}, behaviours={UNIT: Behaviour(load=load)})
    world.started_at[UNIT] = world.clock.now
    server: Any = world.server("", 8000)
    begun, looks = world.clock.now, 0

    def count(*_seen: object) -> None:
        nonlocal looks
        looks += 1

    assert wait_ready(Target(UNIT, "new", server), world, world.clock, 1800.0, 0, count).ready  # type: ignore[arg-type]
    assert world.clock.now - begun - load < 0.1
    assert looks <= 6 + load / 0.8


def test_a_wrong_name_is_given_up_in_seconds_after_the_load() -> None:
    failure, took = given_up(Behaviour(load=40.0, served="other"))
    assert failure.unwell is not None and failure.unwell.other_name and "other" in failure.msg
    assert 43 < took < 60, took


def test_completions_that_fail_are_given_up_after_a_while() -> None:
    failure, took = given_up(Behaviour(load=40.0, completes=False))
    assert failure.unwell is not None and failure.unwell.stage == "completion" and not failure.unwell.other_name
    assert took < 400, took


def test_one_that_still_loads_when_its_time_is_over_is_not_unwell() -> None:
    failure, _took = given_up(Behaviour(load=400.0), timeout=30)
    assert failure.timed_out and failure.unwell is None
