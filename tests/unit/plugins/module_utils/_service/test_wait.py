# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A server that is up and answers amiss is not waited for as one that loads."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from ansible_collections.gpufleet.vllm.plugins.module_utils._server.http import NoAnswer
from ansible_collections.gpufleet.vllm.plugins.module_utils._server.ready import ReadyState
from ansible_collections.gpufleet.vllm.plugins.module_utils._service.ready import (
    NotReady,
    Target,
    wait_ready,
    wait_steady,
)
from ansible_collections.gpufleet.vllm.tests.unit.plugins.module_utils._service.world import Behaviour, World, status

UNIT = "vllm-new.service"


def given_up(behaviour: Behaviour, timeout: float = 1800.0, metrics: Any = None) -> tuple[NotReady, float]:
    world = World(units={UNIT: status(UNIT, "active")}, behaviours={UNIT: behaviour})
    world.started_at[UNIT] = world.clock.now
    server: Any = world.server("", 8000)
    server.metrics = metrics or server.metrics
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


FLOODED = [Behaviour(load=40.0, completes=False, says=says, rate=900.0) for says in (None, 429, 503)]


@pytest.mark.parametrize("behaviour", FLOODED, ids=["silent", "429", "503"])
def test_one_that_is_flooded_from_the_start_is_waited_for_to_the_end(behaviour: Behaviour) -> None:
    failure, took = given_up(behaviour)
    assert 1800 <= took < 1810 and failure.busy, (took, failure.msg)
    assert "too busy to answer" in failure.msg and failure.advice is not None and "ready_timeout" in failure.advice


@pytest.mark.parametrize("behaviour", FLOODED, ids=["silent", "429", "503"])
def test_one_that_is_flooded_serves_once_it_answers(behaviour: Behaviour) -> None:
    world = World(units={UNIT: status(UNIT, "active")}, behaviours={UNIT: behaviour})
    world.started_at[UNIT] = world.clock.now
    server: Any = world.server("", 8000)

    def calm(*_seen: object) -> None:
        if world.clock.now > 1000.0 + 600.0:
            world.behaviours[UNIT] = Behaviour(load=40.0)

    assert wait_ready(Target(UNIT, "new", server), world, world.clock, 1800.0, 0, calm).ready  # type: ignore[arg-type]
    assert 600 <= world.clock.now - 1000.0 < 900


@pytest.mark.parametrize("behaviour", FLOODED, ids=["silent", "429", "503"])
def test_metrics_that_are_late_once_in_a_while_are_no_engine_that_stands_still(behaviour: Behaviour) -> None:
    asked = 0

    def now_and_then(_timeout: float) -> dict[str, float]:
        nonlocal asked
        asked += 1
        if asked % 3 == 0:
            raise NoAnswer("/metrics gave no answer")
        return {"generation_tokens_total": float(asked)}

    failure, took = given_up(behaviour, metrics=now_and_then)
    assert took >= 1800 and failure.busy, (took, failure.msg)


@pytest.mark.parametrize("says", [429, 503])
def test_one_that_puts_us_off_while_its_engine_stands_still_is_given_up(says: int) -> None:
    failure, took = given_up(Behaviour(load=40.0, completes=False, says=says))
    assert not failure.busy and failure.advice is None and 100 <= took < 105, took


def test_one_whose_engine_works_and_answers_wrongly_is_given_up_all_the_same() -> None:
    failure, took = given_up(Behaviour(load=40.0, completes=False, says=500, rate=900.0))
    assert not failure.busy and 100 <= took < 105, took


@pytest.mark.parametrize("code", [401, 403])
def test_one_that_refuses_our_key_is_given_up_in_seconds_and_told_of_its_key(code: int) -> None:
    failure, took = given_up(Behaviour(load=40.0, refuses=code))
    assert failure.refused and not failure.busy and 40 < took < 60
    assert "refuses the API key" in failure.msg and "HTTP %d" % code in failure.msg
    assert failure.advice is not None and "secrets.VLLM_API_KEY" in failure.advice


def test_one_that_still_loads_when_its_time_is_over_is_not_unwell() -> None:
    failure, _took = given_up(Behaviour(load=400.0), timeout=30)
    assert failure.timed_out and failure.unwell is None


SERVES = ReadyState(True, "ready", "it serves")


def steady(world: Any) -> ReadyState:
    return wait_steady(Target(UNIT, "new", world.server("", 8000)), world, world.clock, 5.0, 0, SERVES)


def serving(**behaviour: Any) -> Any:
    """A world in which the unit runs; it stands in for systemd and the clock."""
    world = World(units={UNIT: status(UNIT, "active")}, behaviours={UNIT: Behaviour(load=0.0, **behaviour)})
    world.started_at[UNIT] = world.clock.now
    return world


def test_one_that_was_started_again_meanwhile_did_not_go_on() -> None:
    world = serving()
    pause = world.clock.sleep

    def replaced(seconds: float) -> None:
        pause(seconds)
        world.units[UNIT] = replace(world.units[UNIT], main_pid=4711)

    world.clock.sleep = replaced
    with pytest.raises(NotReady, match="served, and then was started again") as failure:
        steady(world)
    assert failure.value.served


def test_one_that_no_longer_answers_right_did_not_go_on() -> None:
    with pytest.raises(NotReady, match="listens, but has not served"):
        steady(serving(completes=False, says=500))


def test_one_that_is_busy_by_then_goes_on() -> None:
    assert steady(serving(completes=False, rate=900.0)) == SERVES


@pytest.mark.parametrize(
    ("path", "said"), [("/usr/local/lib/gpufleet/gpu-guard.pyz", "its guard"), ("/bin/false", "/bin/false, which its unit")]
)
def test_what_failed_before_the_server_is_called_by_its_name(path: str, said: str) -> None:
    world: Any = World(units={UNIT: replace(status(UNIT, "failed"), start_pre_status=1, start_pre_path=path)})
    with pytest.raises(NotReady, match=said):
        wait_ready(Target(UNIT, "new", world.server("", 8000)), world, world.clock, 5.0, 0)
