# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A server over HTTP: real sockets on loopback, a scripted server behind them."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from ansible_collections.gpufleet.vllm.plugins.module_utils._server.http import Server, ServerError, connect_address
from ansible_collections.gpufleet.vllm.plugins.module_utils._server.metrics import parse_metrics
from ansible_collections.gpufleet.vllm.plugins.module_utils._server.ready import Readiness

Answer = tuple[int, Any]
NOT_FOUND: Answer = (404, {"detail": "Not Found"})
COMPLETION: Answer = (200, {"choices": [{"text": "x"}], "usage": {"completion_tokens": 1}})
MODELS: Answer = (200, {"object": "list", "data": [{"id": "m"}, {"id": "other"}]})
UNSUPPORTED: Answer = (
    501,
    {"error": {"message": "The model does not support Completions API", "type": "NotImplementedError"}},
)


class Scripted:
    """A server whose answers a test sets by path; what isn't set is 404."""

    def __init__(self, family: int = socket.AF_INET) -> None:
        self.answers: dict[str, Answer | Callable[[BaseHTTPRequestHandler], None]] = {"/health": (200, "")}
        self.asked: list[tuple[str, dict[str, str], Any]] = []
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def _serve(self) -> None:
                length = int(self.headers.get("Content-Length") or 0)
                body = json.loads(self.rfile.read(length)) if length else None
                outer.asked.append((self.path, dict(self.headers), body))
                answer = outer.answers.get(self.path, NOT_FOUND)
                if callable(answer):
                    answer(self)
                    return
                status, content = answer
                raw = content.encode() if isinstance(content, str) else json.dumps(content).encode()
                self.send_response(status)
                self.send_header("Content-Length", str(len(raw)))
                self.end_headers()
                self.wfile.write(raw)

            do_GET = _serve  # noqa: N815
            do_POST = _serve  # noqa: N815

            def log_message(self, *_args: Any) -> None:
                pass

        class Listening(ThreadingHTTPServer):
            address_family = socket.AddressFamily(family)
            daemon_threads = True

        self._server = Listening(("::1" if family == socket.AF_INET6 else "127.0.0.1", 0), Handler)
        self.port = self._server.server_address[1]
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02})
        self._thread.start()

    def close(self) -> None:
        """End it."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


@pytest.fixture
def scripted() -> Iterator[Scripted]:
    """A scripted server."""
    server = Scripted()
    yield server
    server.close()


@pytest.fixture
def server(scripted: Scripted) -> Server:
    """Our side of it, over the wildcard address that services bind to."""
    return Server("0.0.0.0", scripted.port)


def test_whether_somebody_listens_is_told_without_a_request(scripted: Scripted, server: Server) -> None:
    assert server.listens() and not scripted.asked
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        assert not Server("127.0.0.1", unused.getsockname()[1]).listens()
    assert not Server("no such name" * 30, 1).listens()


def test_nothing_listening_is_none_and_silence_is_an_error(scripted: Scripted) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        assert Server("127.0.0.1", unused.getsockname()[1]).health(1.0) is None
    scripted.answers["/health"] = lambda handler: time.sleep(0.6)
    start = time.monotonic()
    with pytest.raises(ServerError, match=r"nothing within 0\.2 s"):
        Server("127.0.0.1", scripted.port).health(0.2)
    assert time.monotonic() - start < 0.5


def test_a_reply_that_drips_is_not_waited_for_longer_than_its_time(scripted: Scripted, server: Server) -> None:
    def drip(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(200)
        handler.send_header("Content-Length", "1000")
        handler.end_headers()
        try:
            for _byte in range(20):
                handler.wfile.write(b"x")
                handler.wfile.flush()
                time.sleep(0.05)
        except OSError:
            pass  # the client had enough, as it should

    scripted.answers["/health"] = drip
    start = time.monotonic()
    with pytest.raises(ServerError):
        server.health(0.3)
    assert time.monotonic() - start < 0.6


def test_health_models_version(scripted: Scripted, server: Server) -> None:
    scripted.answers.update({"/v1/models": MODELS, "/version": (200, {"version": "0.33.0"})})
    assert server.health() == 200
    assert server.models() == ["m", "other"]
    assert server.version() == "0.33.0"
    scripted.answers["/health"] = (503, "")
    assert server.health() == 503


@pytest.mark.parametrize(
    "answer",
    [
        (200, "no json"),
        (200, {"data": 3}),
        (500, {"error": {"message": "engine is dead"}}),
        (401, {"error": "Unauthorized"}),
    ],
)
def test_a_model_list_that_is_none(scripted: Scripted, server: Server, answer: Answer) -> None:
    scripted.answers["/v1/models"] = answer
    with pytest.raises(ServerError, match="/v1/models") as failure:
        server.models()
    assert failure.value.status == (None if answer[0] == 200 else answer[0])


def test_the_key_goes_with_every_request_and_proxies_are_ignored(
    scripted: Scripted, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    scripted.answers["/v1/models"] = MODELS
    assert Server("127.0.0.1", scripted.port, api_key="k y").models() == ["m", "other"]
    assert scripted.asked[-1][1]["Authorization"] == "Bearer k y"


def test_ipv6() -> None:
    six = Scripted(socket.AF_INET6)
    try:
        for host in ("::", "::1", "[::1]"):
            server = Server(host, six.port)
            assert server.health() == 200 and server.url == "http://[::1]:%d" % six.port
    finally:
        six.close()


@pytest.mark.parametrize(
    ("bound", "asked"),
    [("0.0.0.0", "127.0.0.1"), ("::", "::1"), ("10.0.0.7", "10.0.0.7"), ("[::]", "::1"), ("", "127.0.0.1")],
)
def test_where_a_bound_address_is_reached(bound: str, asked: str) -> None:
    assert connect_address(bound) == asked


def test_a_completion(scripted: Scripted, server: Server) -> None:
    scripted.answers["/v1/completions"] = COMPLETION
    result = server.complete("m", 2.0)
    assert result.ok and result.kind == "completion" and result.status == 200 and 0 < result.seconds < 2
    path, _headers, body = scripted.asked[-1]
    assert path == "/v1/completions" and body["model"] == "m" and body["max_tokens"] == 1


@pytest.mark.parametrize(
    "no",
    [NOT_FOUND, UNSUPPORTED, (400, {"error": {"message": "The model does not support Completions API"}}), (405, "")],
)
def test_a_model_without_completions_is_asked_in_its_own_form(scripted: Scripted, server: Server, no: Answer) -> None:
    scripted.answers["/v1/completions"] = no
    scripted.answers["/v1/chat/completions"] = COMPLETION
    assert server.complete("m").kind == "chat"
    scripted.answers["/v1/chat/completions"] = no
    scripted.answers["/v1/embeddings"] = (200, {"data": [{"embedding": [0.1]}]})
    result = server.complete("m")
    assert result.ok and result.kind == "embedding"
    scripted.answers["/v1/embeddings"] = no
    result = server.complete("m")
    assert result.ok and result.kind == "none" and "nothing was computed" in result.detail


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        ((404, {"error": {"message": "The model `m` does not exist.", "type": "NotFoundError"}}), "does not exist"),
        ((500, {"error": {"message": "EngineCore encountered an issue"}}), "EngineCore"),
        ((503, "Service Unavailable"), "503"),
        ((200, {"choices": []}), "without choices"),
        ((200, "hello"), "without choices"),
    ],
)
def test_a_fault_is_a_fault(scripted: Scripted, server: Server, answer: Answer, words: str) -> None:
    scripted.answers["/v1/completions"] = answer
    result = server.complete("m")
    assert not result.ok and words in result.detail and result.status == answer[0]


def test_a_dead_engine_behind_a_live_server(scripted: Scripted, server: Server) -> None:
    scripted.answers["/v1/completions"] = lambda handler: time.sleep(1.0)
    result = server.complete("m", 0.2)
    assert not result.ok and result.status is None and "nothing within" in result.detail


METRICS = """# HELP vllm:num_requests_running Number of requests in model execution batches.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="a b,}"} 2.0
vllm:num_requests_running{engine="1",model_name="m"} 3.0
vllm:num_requests_waiting{engine="0"} 1.0 1764430000000
vllm:kv_cache_usage_perc{engine="0"} 0.25
vllm:kv_cache_usage_perc{engine="1"} 0.75
vllm:generation_tokens_total{engine="0"} 1.5e+06
vllm:time_to_first_token_seconds_bucket{le="0.1"} 4
vllm:broken{engine="0"} NaN
process_cpu_seconds_total 12.5
"""


def test_metrics_are_summed_over_engines(scripted: Scripted, server: Server) -> None:
    expected = {
        "num_requests_running": 5.0,
        "num_requests_waiting": 1.0,
        "kv_cache_usage_perc": 0.75,
        "generation_tokens_total": 1.5e6,
    }
    assert parse_metrics(METRICS) == expected
    scripted.answers["/metrics"] = (200, METRICS)
    assert server.metrics() == expected


def stage(server: Server, running: bool = True, **options: Any) -> tuple[bool, str]:
    """One look at readiness."""
    found = Readiness(server, "m", timeout=0.3, call_timeout=0.3, **options).check(running, "dead (exit-code)")
    return found.ready, found.stage


def test_every_sign_is_needed(scripted: Scripted, server: Server) -> None:
    assert stage(server, running=False) == (False, "unit")
    assert stage(server) == (False, "models")
    scripted.answers["/v1/models"] = (200, {"data": [{"id": "another"}]})
    assert stage(server) == (False, "models")
    scripted.answers["/v1/models"] = MODELS
    assert stage(server) == (True, "ready"), "it says that it has no endpoint that could compute anything"
    scripted.answers["/v1/completions"] = (500, "dead")
    assert stage(server) == (False, "completion")
    assert stage(server, smoke=False) == (True, "ready")
    scripted.answers["/v1/completions"] = lambda handler: time.sleep(1.0)
    assert stage(server) == (False, "completion")
    scripted.answers["/v1/completions"] = COMPLETION
    assert stage(server) == (True, "ready")
    scripted.answers["/health"] = (503, "")
    assert stage(server) == (False, "health")
    scripted.answers["/health"] = lambda handler: time.sleep(1.0)
    assert stage(server) == (False, "health")
    scripted.close()
    assert stage(server) == (False, "loading")


@pytest.mark.parametrize("path", ["/health", "/v1/models", "/v1/completions"])
def test_who_is_refused_knows_nothing_of_the_engine(scripted: Scripted, server: Server, path: str) -> None:
    scripted.answers.update({"/v1/models": MODELS, "/v1/completions": COMPLETION})
    for code, refused in ((401, True), (403, True), (500, False)):
        scripted.answers[path] = (code, {"error": "Unauthorized"})
        found = Readiness(server, "m").check(True)
        assert not found.ready and not found.silent
        assert found.refused is refused and found.wrong is not refused
