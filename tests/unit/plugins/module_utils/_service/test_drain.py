# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Until when a server counts as one that still has requests, and with what drain it is declared."""

from __future__ import annotations

import http.server
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Dict, List, Optional, Union

import pytest

from ansible_collections.gpufleet.vllm.plugins.module_utils._server.http import Server
from ansible_collections.gpufleet.vllm.plugins.module_utils._service.drain import drain, own_drain, shutdown_timeout
from ansible_collections.gpufleet.vllm.plugins.module_utils._unit.config import render_config


class Time:
    """A clock that goes on only when somebody sleeps."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now

    def time(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


class Answering(Server):
    """A server whose looks end as listed, the last one again and again: a count of requests, or what is raised."""

    def __init__(self, *answers: Union[int, Exception]) -> None:
        super().__init__("127.0.0.1", 1)
        self.answers = list(answers)

    def request(self, method: str, path: str, timeout: float, body: Optional[Any] = None) -> Any:
        raise AssertionError("only metrics are asked for")

    def metrics(self, timeout: float = 5.0) -> Dict[str, float]:
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, Exception):
            raise answer
        return {"num_requests_running": float(answer)}


def _drain(server: Server, timeout: float = 10.0) -> "tuple[Optional[int], float]":
    clock = Time()
    return drain(server, clock, timeout), clock.now  # type: ignore[arg-type]


def test_a_moment_without_requests_is_not_quiet_yet() -> None:
    left, waited = _drain(Answering(3, 0, 2, 0))
    assert left == 0
    assert waited == pytest.approx(3 * 0.25 + 0.5)


def test_what_is_left_in_the_end_is_counted() -> None:
    assert _drain(Answering(1000), 2.0) == (1000, 2.0)


@pytest.fixture
def port() -> Iterator[int]:
    """A port on which nothing listens."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        yield int(probe.getsockname()[1])


def test_a_server_that_listens_no_more_is_drained(port: int) -> None:
    assert _drain(Server("127.0.0.1", port)) == (0, 0.0)


def test_a_server_that_is_too_busy_to_answer_is_not_drained(monkeypatch: pytest.MonkeyPatch) -> None:
    """It accepts the connection and says nothing: the look times out, and is taken again."""
    monkeypatch.setattr("ansible_collections.gpufleet.vllm.plugins.module_utils._service.drain._METRICS_S", 0.05)
    with socket.socket() as busy:
        busy.bind(("127.0.0.1", 0))
        busy.listen(64)
        assert _drain(Server("127.0.0.1", busy.getsockname()[1]), 1.0) == (None, 1.0)


def test_a_server_without_metrics_has_nothing_to_wait_for() -> None:
    class Nothing(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_error(404)

        def log_message(self, format: str, *args: Any) -> None:
            """Nobody reads it."""

    with http.server.HTTPServer(("127.0.0.1", 0), Nothing) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        assert _drain(Server("127.0.0.1", server.server_port)) == (0, 0.0)
        server.shutdown()


@pytest.mark.parametrize(
    "args, asked, declared",
    [({}, 0.0, None), ({}, 30.0, 30), ({}, 0.2, 1), ({"shutdown_timeout": 5}, 30.0, None), ({"shutdown-timeout": None}, 30.0, None)],
)
def test_a_service_that_is_to_be_drained_is_declared_with_a_drain(args: Dict[str, Any], asked: float, declared: Optional[int]) -> None:
    assert shutdown_timeout(args, asked) == declared


def test_a_drain_is_found_again_in_the_configuration(tmp_path: Path) -> None:
    config = tmp_path / "small.yaml"
    seen: List[int] = [own_drain(str(config))]
    for args in ({"shutdown_timeout": 30}, {"max_model_len": 30}):
        config.write_text(render_config(args, "0.0.0.0", 8000, "small"), encoding="utf-8")
        seen.append(own_drain(str(config)))
    assert seen == [0, 30, 0]
