# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A busy server is not a dead one: it takes proof to start a running server anew, and seconds to find it."""

from __future__ import annotations

from typing import Any

import pytest

from ansible_collections.gpufleet.vllm.plugins.module_utils._gpu.types import GpuProcess, Snapshot
from ansible_collections.gpufleet.vllm.plugins.module_utils._server.http import CompletionResult, NoAnswer, ServerError
from ansible_collections.gpufleet.vllm.plugins.module_utils._service.ready import Target
from ansible_collections.gpufleet.vllm.plugins.module_utils._service.wellness import (
    LOOK_S,
    Wellness,
    examine_server,
    idle_gpus,
)
from ansible_collections.gpufleet.vllm.tests.unit.plugins.module_utils._service.world import (
    Behaviour,
    FakeServer,
    World,
    gpu,
    snapshot,
    status,
)

UNIT = "vllm-new.service"
ENGINE = GpuProcess(4711, "C", 90000)


class Engine(FakeServer):
    """A server whose engine makes ``rate`` tokens a second, and whose completions take ``ttft`` seconds or end with ``status``."""

    def __init__(self, rate: float = 0.0, ttft: float = 0.1, status_code: Any = 200, health: Any = 200, running: float = 1.0) -> None:
        self.world = World(units={UNIT: status(UNIT, "active")}, behaviours={UNIT: Behaviour()}, started_at={UNIT: 0.0})
        super().__init__(self.world, 8000)
        self.rate, self.ttft, self.running = rate, ttft, running
        self.codes = status_code if isinstance(status_code, list) else [status_code]  # one for each look
        self.healths = health if isinstance(health, list) else [health]
        self.asked = 0

    def health(self, timeout: float = 5.0) -> Any:
        self.asked += 1
        answer = self.healths[min(self.asked, len(self.healths)) - 1]
        if answer == "hang":
            self.world.clock.sleep(timeout)
            raise NoAnswer("/health gave no answer")
        return answer

    def complete(self, model: str, timeout: float = 60.0) -> CompletionResult:
        late = self.ttft > timeout
        self.world.clock.sleep(min(self.ttft, timeout))
        code = None if late else self.codes[min(self.asked, len(self.codes)) - 1]
        return CompletionResult(code == 200, "completion", code, 0.0, "" if code == 200 else "said %s" % code)

    def metrics(self, timeout: float = 5.0) -> dict[str, float]:
        made = self.rate * self.world.clock.now
        return {"generation_tokens_total": made, "num_requests_running": self.running, "num_requests_waiting": 2.0}


def look(server: Engine, limit: float = 1800.0, idle: str | None = None) -> tuple[Wellness, float]:
    began = server.world.clock.now
    found = examine_server(Target(UNIT, "new", server), server.world.clock, limit, idle)  # type: ignore[arg-type]
    return found, server.world.clock.now - began


def test_a_server_that_answers_is_well_after_one_look() -> None:
    found, seconds = look(Engine(ttft=0.2))
    assert found.seen.ready and found.unwell is None and found.doubt is None
    assert seconds < 0.3


def test_a_server_that_still_loads_is_looked_at_once() -> None:
    found, seconds = look(Engine(health=None))
    assert found.seen.stage == "loading" and found.unwell is None and found.doubt is None and seconds == 0


def test_a_slow_server_is_left_as_it_is_and_told_of_within_the_documented_time() -> None:
    found, seconds = look(Engine(ttft=90.0))
    assert found.unwell is None
    assert found.doubt is not None and "state: restarted" in found.doubt and "1 requests running and 2 waiting" in found.doubt
    assert seconds <= LOOK_S
    assert "finished no step within 5 s" in found.doubt, "only what was seen between the two readings"


def test_a_server_that_makes_tokens_for_others_is_said_to_work() -> None:
    for code in (200, 500, 503):
        found, _seconds = look(Engine(rate=5000.0, ttft=90.0 if code == 200 else 0.1, status_code=code))
        assert found.unwell is None
        assert found.doubt is not None and "its engine works" in found.doubt


def test_what_counts_without_the_engine_is_no_work_of_it() -> None:
    """The look's own requests are counted as well: their prompts, maybe on arrival, and their end when the look gives them up."""
    server = Engine(ttft=90.0)
    moving = ("prompt_tokens_total", "request_success_total", "e2e_request_latency_seconds_count")
    standing = server.metrics
    server.metrics = lambda timeout=5.0: {**standing(), **dict.fromkeys(moving, server.world.clock.now)}  # type: ignore[method-assign]
    found, _seconds = look(server)
    assert found.doubt is not None and "its engine finished no step" in found.doubt


@pytest.mark.parametrize("code", [429, 503])
def test_a_server_that_asks_to_come_back_later_is_busy(code: int) -> None:
    found, _seconds = look(Engine(status_code=code))
    assert found.unwell is None and found.doubt is not None


@pytest.mark.parametrize("server", [{"status_code": 500}, {"health": 503}, {"health": 500}])
def test_wrong_answers_in_two_looks_are_proof(server: dict[str, Any]) -> None:
    found, seconds = look(Engine(**server))
    assert found.unwell is not None and found.unwell.startswith("it runs but does not serve: ")
    assert found.doubt is None and seconds <= LOOK_S


SILENT: dict[str, Any] = {"health": ["hang", 200], "status_code": [200, 500]}


@pytest.mark.parametrize(
    "server",
    [SILENT, {"status_code": [None, 500]}, {"status_code": [None, 400]}, {"status_code": [503, 500]}, {"status_code": [500, 429]},
     {"health": [503, "hang"]}],
)
def test_one_wrong_answer_and_one_silence_are_no_proof(server: dict[str, Any]) -> None:
    found, seconds = look(Engine(**server))
    assert found.unwell is None and seconds <= LOOK_S
    assert found.doubt is not None and "first " in found.doubt and ", then " in found.doubt


def test_one_wrong_answer_on_gpus_that_nobody_computes_on_is_proof() -> None:
    found, _seconds = look(Engine(**SILENT), idle="nobody holds memory on GPU 0")
    assert found.unwell is not None and "nobody holds memory on GPU 0" in found.unwell


@pytest.mark.parametrize("code", [401, 403])
@pytest.mark.parametrize("where", ["health", "models", "completion"])
def test_a_server_that_refuses_our_key_is_left_as_it_is(code: int, where: str) -> None:
    server = Engine(health=code if where == "health" else 200, status_code=code if where == "completion" else 200)

    def refuse(timeout: float = 5.0) -> list[str]:
        raise ServerError("/v1/models answered HTTP %d" % code, code)

    if where == "models":
        server.models = refuse  # type: ignore[method-assign]
    for rate in (0.0, 5000.0):
        server.rate = rate
        found, seconds = look(server)
        assert found.unwell is None and not found.seen.ready and seconds <= LOOK_S
        assert found.doubt is not None and str(code) in found.doubt and "refuses the API key" in found.doubt
        assert "secrets.VLLM_API_KEY" in found.doubt and "state: restarted" not in found.doubt
    server.rate = 0.0
    assert look(server, idle="nobody holds memory on GPU 0")[0].unwell is not None


@pytest.mark.parametrize("codes", [[401, 500], [500, 401]])
def test_a_refusal_and_a_wrong_answer_are_no_proof(codes: list[int]) -> None:
    found, _seconds = look(Engine(status_code=codes))
    assert found.unwell is None and found.doubt is not None and "401" in found.doubt


def test_a_second_look_that_is_good_takes_the_first_one_back() -> None:
    found, _seconds = look(Engine(health=[503, 200]))
    assert found.seen.ready and found.unwell is None and found.doubt is None


def test_a_health_that_says_nothing_is_no_proof() -> None:
    found, seconds = look(Engine(health="hang"))
    assert found.unwell is None and found.doubt is not None and "hang" in found.doubt
    assert seconds <= LOOK_S


def test_a_silent_server_on_gpus_that_nobody_computes_on_is_dead() -> None:
    found, _seconds = look(Engine(ttft=90.0), idle="nobody holds memory on GPU 0")
    assert found.unwell is not None and "nobody holds memory on GPU 0" in found.unwell


def test_a_short_ready_timeout_shortens_the_look() -> None:
    found, seconds = look(Engine(ttft=90.0), limit=3.0)
    assert found.unwell is None and found.doubt is not None
    assert seconds <= 3.5


def test_metrics_that_cannot_be_read_are_no_proof_either() -> None:
    server = Engine(ttft=90.0)
    server.metrics = lambda timeout=5.0: {}  # type: ignore[method-assign]
    found, _seconds = look(server)
    assert found.unwell is None and found.doubt is not None and "its metrics say nothing" in found.doubt


@pytest.mark.parametrize(
    ("seen", "idle"),
    [
        (snapshot([gpu(0, used=4), gpu(1, used=600)]), True),
        (snapshot([gpu(0, used=4), gpu(1, used=600, processes=[GpuProcess(4711, "C", 500, state="zombie")])]), True),
        (snapshot([gpu(0, used=4), gpu(1, used=90000)]), False),
        (snapshot([gpu(0, used=4), gpu(1, used=600, processes=[ENGINE])]), False),
        (snapshot([gpu(0, used=None)]), False),
        (snapshot([gpu(0, used=4, memory_type="mig")]), False),
        (snapshot([gpu(0, used=4, memory_type="unified")]), False),
        (snapshot([gpu(0, used=4, state="lost")]), False),
        (Snapshot(True, gpus=(gpu(0, used=4),), processes_reliable=False), False),
        (snapshot([]), False),
        (None, False),
    ],
)
def test_only_a_driver_that_shows_nobody_proves_that_the_engine_is_gone(seen: Snapshot | None, idle: bool) -> None:
    assert (idle_gpus(seen, seen.gpus if seen is not None else ()) is not None) is idle
