# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a ready stand-in answers, and how it misbehaves while it serves."""

from __future__ import annotations

import datetime
import http.client
import ipaddress
import json
import os
import re
import signal
import socket
import ssl
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from sim.standin_fixtures import (
    Bench,
    Running,
    eventually,
)


def _stream(running: Running, path: str, body: dict[str, Any], timeout: float = 10.0) -> Iterator[str]:
    """The data of a streamed answer's events, as they come."""
    connection = http.client.HTTPConnection("127.0.0.1", running.port, timeout=timeout)
    try:
        content = json.dumps({"stream": True, **body}).encode()
        connection.request("POST", path, content, {"Content-Type": "application/json"})
        response = connection.getresponse()
        assert response.status == 200
        assert response.headers["content-type"].startswith("text/event-stream")
        for line in response:
            if line.startswith(b"data: "):
                yield line[6:].decode().rstrip("\n")
    finally:
        connection.close()


def _metric(running: Running, name: str) -> float:
    _status, text = running.request("GET", "/metrics")
    return sum(float(line.rpartition(" ")[2]) for line in text.splitlines() if line.startswith(f"vllm:{name}{{"))


def _sleep_states(running: Running) -> dict[str, float]:
    found = re.findall(r'^vllm:engine_sleep_state{engine="0",.*sleep_state="(\w+)"} (\S+)$', running.request("GET", "/metrics")[1], re.M)
    return {state: float(value) for state, value in found}


# --- endpoints


def test_plain_endpoints(bench: Bench) -> None:
    running = bench.serve("small", "--served-model-name", "one", "two", "--max-model-len", "8192").ready()
    assert running.request("GET", "/health") == (200, "")
    assert running.request("GET", "/ping") == (200, "") == running.request("POST", "/ping")
    assert running.request("GET", "/version") == (200, {"version": "0.33.0"})
    assert running.request("GET", "/load") == (200, {"server_load": 0})
    status, models = running.request("GET", "/v1/models")
    assert status == 200 and models["object"] == "list"
    assert [card["id"] for card in models["data"]] == ["one", "two"]
    assert models["data"][0] | {"created": 0, "permission": []} == {
        "id": "one",
        "object": "model",
        "created": 0,
        "owned_by": "vllm",
        "root": str(bench.models / "small"),
        "parent": None,
        "max_model_len": 8192,
        "permission": [],
    }
    assert running.request("GET", "/nothing") == (404, {"detail": "Not Found"})
    assert running.request("POST", "/v1/models", {}) == (405, {"detail": "Method Not Allowed"})
    assert running.request("POST", "/sleep")[0] == 404  # only in development mode


def test_what_stands_in_its_answers_to_the_byte(bench: Bench) -> None:
    """As vLLM 0.32 was seen to write them: a client that looks for text in them must find it here as well."""
    running = bench.serve("small", "--served-model-name", "m").ready()
    connection = http.client.HTTPConnection("127.0.0.1", running.port, timeout=10)
    connection.request("POST", "/health")
    refused = connection.getresponse()
    assert (refused.status, refused.getheader("allow"), refused.read()) == (405, "GET", b'{"detail":"Method Not Allowed"}')
    body = json.dumps({"model": "m", "prompt": "x", "max_tokens": 1, "stream": True})
    connection.request("POST", "/v1/completions", body, {"Content-Type": "application/json"})
    assert b'"object":"text_completion"' in connection.getresponse().read()
    connection.close()


def test_tokenize(bench: Bench) -> None:
    running = bench.serve("small", "--served-model-name", "m", "--max-model-len", "8192").ready()
    body = {"model": "m", "prompt": "one two one", "add_special_tokens": False}
    status, answer = running.request("POST", "/tokenize", body)
    assert status == 200
    assert answer | {"tokens": []} == {"count": 3, "max_model_len": 8192, "tokens": [], "token_strs": None}
    assert answer["tokens"][0] == answer["tokens"][2] != answer["tokens"][1]
    assert running.complete("m", prompt=body["prompt"], max_tokens=1)[1]["usage"]["prompt_tokens"] == 3
    text = "internationalisation of names"
    counted = running.request("POST", "/tokenize", {"prompt": text})[1]
    assert counted["count"] == len(counted["tokens"]) == running.complete("m", prompt=text, max_tokens=1)[1]["usage"]["prompt_tokens"]
    status, answer = running.request("POST", "/tokenize", {"model": "other", "prompt": "x"})
    assert (status, answer["error"]["message"]) == (404, "The model `other` does not exist. Valid aliases: m.")
    assert running.request("POST", "/tokenize", {"model": "m"})[0] == 400


def test_detokenize(bench: Bench) -> None:
    running = bench.serve("small", "--served-model-name", "m").ready()
    for text in ("one two one", "internationalisation of names"):
        told = running.request("POST", "/tokenize", {"prompt": text, "return_token_strs": True})[1]
        assert "".join(told["token_strs"]).strip() == text
        assert running.request("POST", "/detokenize", {"model": "m", "tokens": told["tokens"]}) == (200, {"prompt": text})
    assert running.request("POST", "/detokenize", {"tokens": [99_999_999]}) == (200, {"prompt": ""}), "as the real one has it"
    status, answer = running.request("POST", "/detokenize", {"model": "other", "tokens": [1]})
    assert (status, answer["error"]["message"]) == (404, "The model `other` does not exist. Valid aliases: m.")
    for given, param, said in (
        ({}, "body.tokens", "Field required"),
        ({"tokens": "x"}, "body.tokens", "Input should be a valid list"),
        ({"tokens": ["a"]}, "body.tokens.0", "unable to parse string as an integer"),
        ({"tokens": [5, -1]}, "body.tokens.1", "Input should be greater than or equal to 0', 'input': '-1', 'ctx': {'ge': 0}"),
    ):
        status, answer = running.request("POST", "/detokenize", given)
        assert (status, answer["error"]["param"]) == (400, param) and said in answer["error"]["message"]


def test_answers_depend_on_the_origin_as_the_real_ones_say(bench: Bench) -> None:
    running = bench.serve("small", "--served-model-name", "m", "--api-key", "hush").ready()
    connection = http.client.HTTPConnection("127.0.0.1", running.port, timeout=10)

    def varies(method: str, path: str, key: str, body: str | None = None) -> tuple[int, str | None]:
        connection.request(method, path, body, {"Authorization": f"Bearer {key}", "Content-Type": "application/json"})
        answer = connection.getresponse()
        answer.read()
        return answer.status, answer.getheader("vary")

    stream = json.dumps({"model": "m", "prompt": "x", "max_tokens": 1, "stream": True})
    assert varies("GET", "/health", "hush") == varies("POST", "/v1/completions", "hush", stream) == (200, "Origin")
    assert varies("GET", "/nothing", "hush") == (404, "Origin") and varies("POST", "/health", "hush") == (405, "Origin")
    assert varies("GET", "/v1/models", "wrong") == (401, None), "keys are asked for before that"
    connection.close()


def test_completion(bench: Bench) -> None:
    running = bench.serve("small", "--served-model-name", "m").ready()
    status, answer = running.complete("m", max_tokens=5)
    assert status == 200
    assert answer["id"].startswith("cmpl-") and answer["object"] == "text_completion" and answer["model"] == "m"
    (choice,) = answer["choices"]
    assert choice["finish_reason"] == "length" and len(choice["text"].split()) == 5
    usage = answer["usage"]
    assert usage["completion_tokens"] == 5
    assert usage["total_tokens"] == usage["prompt_tokens"] + 5 > 5
    assert running.complete("m", prompt=[1, 2, 3], max_tokens=1)[1]["usage"]["prompt_tokens"] == 3
    status, answer = running.complete("m", prompt=["one", "two"], n=2, max_tokens=3)
    assert [choice["index"] for choice in answer["choices"]] == [0, 1, 2, 3]
    assert answer["usage"]["completion_tokens"] == 12
    assert running.complete("m")[1]["usage"]["completion_tokens"] == 16  # the API's default


@pytest.mark.parametrize("told", [True, False])
def test_requests_are_logged_under_their_own_names_when_asked_for(bench: Bench, told: bool) -> None:
    running = bench.serve("small", "--served-model-name", "m", *["--enable-log-requests"][: int(told)]).ready()
    body = {"model": "m", "prompt": ["one", "two"], "max_tokens": 1}
    assert running.request("POST", "/v1/completions", body, headers={"X-Request-Id": "mine"})[1]["id"] == "cmpl-mine"
    assert [f"Received request cmpl-mine-{index}:" in running.log for index in (0, 1, 2)] == [told, told, False]


def test_chat(bench: Bench) -> None:
    running = bench.serve("small", "--served-model-name", "m").ready()
    body = {"model": "m", "messages": [{"role": "user", "content": [{"type": "text", "text": "Hello"}]}]}
    status, answer = running.request("POST", "/v1/chat/completions", body)
    assert status == 200
    assert answer["id"].startswith("chatcmpl-") and answer["object"] == "chat.completion"
    (choice,) = answer["choices"]
    assert choice["message"]["role"] == "assistant" and choice["message"]["content"]
    assert choice["finish_reason"] == "stop"
    status, answer = running.request("POST", "/v1/chat/completions", body | {"max_completion_tokens": 3})
    assert answer["choices"][0]["finish_reason"] == "length" and answer["usage"]["completion_tokens"] == 3


def test_streaming(bench: Bench) -> None:
    bench.standin.behave(throttle={"tokens_per_s": 100})
    running = bench.serve("small", "--served-model-name", "m").ready()
    body = {"model": "m", "prompt": "Hello", "max_tokens": 10, "stream_options": {"include_usage": True}}
    started = time.monotonic()
    arrived = [(time.monotonic() - started, data) for data in _stream(running, "/v1/completions", body)]
    assert arrived[-1][1] == "[DONE]"
    chunks = [json.loads(data) for _when, data in arrived[:-1]]
    assert "".join(chunk["choices"][0]["text"] for chunk in chunks[:-1]).split() == (
        running.complete("m", max_tokens=10)[1]["choices"][0]["text"].split()
    )
    assert [chunk["choices"][0]["finish_reason"] for chunk in chunks[:-1]][-2:] == [None, "length"]
    assert chunks[-1]["choices"] == [] and chunks[-1]["usage"]["completion_tokens"] == 10
    assert not any("usage" in chunk for chunk in chunks[:-1])
    assert chunks[-1]["system_fingerprint"].startswith("vllm-0.33.0-")
    assert arrived[-1][0] - arrived[0][0] > 0.06  # not all at once


def test_chat_streaming(bench: Bench) -> None:
    running = bench.serve("small", "--served-model-name", "m").ready()
    body = {"model": "m", "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 4}
    events = list(_stream(running, "/v1/chat/completions", body))
    assert events[-1] == "[DONE]"
    chunks = [json.loads(event) for event in events[:-1]]
    assert {chunk["object"] for chunk in chunks} == {"chat.completion.chunk"}
    assert chunks[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert len("".join(chunk["choices"][0]["delta"]["content"] for chunk in chunks).split()) == 4
    assert "usage" not in chunks[-1]


def test_errors(bench: Bench) -> None:
    running = bench.serve("small", "--served-model-name", "m", "--max-model-len", "100").ready()
    status, answer = running.complete("other")
    assert status == 404
    assert answer["error"] == {
        "message": "The model `other` does not exist. Valid aliases: m.",
        "type": "NotFoundError",
        "param": "model",
        "code": 404,
    }
    for body in (
        b"{",
        {"model": "m"},
        {"model": "m", "prompt": 5},
        {"model": "m", "prompt": "x", "max_tokens": "many"},
    ):
        status, answer = running.request("POST", "/v1/completions", body)
        assert (status, answer["error"]["code"]) == (400, 400), body
    for extra in (
        {"max_tokens": 0},
        {"max_tokens": 101},
        {"temperature": -1},
        {"n": 0},
        {"stream_options": {"include_usage": True}},
    ):
        assert running.complete("m", **extra)[0] == 400, extra
    assert running.request("POST", "/v1/chat/completions", {"model": "m"})[0] == 400
    status, answer = running.complete("m", prompt=list(range(200)))
    assert status == 400 and "maximum context length is 100 tokens" in answer["error"]["message"]
    plain = running.request(
        "POST", "/v1/completions", {"model": "m", "prompt": "x"}, headers={"Content-Type": "text/plain"}
    )
    assert plain[0] == 400 and "Unsupported Media Type" in plain[1]["error"]["message"]


@pytest.mark.parametrize("given", ["argument", "environment"])
def test_api_key(bench: Bench, given: str) -> None:
    words = ("--api-key", "hush") if given == "argument" else ()
    env = {} if given == "argument" else {"VLLM_API_KEY": "hush"}
    running = bench.serve("small", "--served-model-name", "m", *words, **env).ready()
    for path in ("/health", "/metrics", "/version", "/load"):
        assert running.request("GET", path)[0] == 200
    assert running.request("GET", "/v1/models") == (401, {"error": "Unauthorized"})
    assert running.request("GET", "/v1/models", headers={"Authorization": "Bearer wrong"})[0] == 401
    assert running.request("GET", "/v1/models", headers={"Authorization": "Bearer hush"})[0] == 200
    assert running.complete("m")[0] == 401
    assert "hush" not in running.log.replace("--api-key hush", "")


def test_metrics(bench: Bench) -> None:
    bench.standin.behave(throttle={"tokens_per_s": 20})
    running = bench.serve("small", "--served-model-name", "m", "--max-num-seqs", "2").ready()
    assert 'vllm:num_requests_running{engine="0",model_name="m"} 0.0' in running.request("GET", "/metrics")[1]
    with ThreadPoolExecutor(3) as pool:
        answers = [pool.submit(running.complete, "m", max_tokens=20) for _each in range(3)]
        eventually(
            lambda: (_metric(running, "num_requests_running"), _metric(running, "num_requests_waiting")) == (2, 1)
        )
        told = running.request("GET", "/metrics")[1]
        assert 'vllm:num_requests_waiting_by_reason{engine="0",model_name="m",reason="capacity"} 1.0' in told
        assert 0 < _metric(running, "kv_cache_usage_perc") < 1
        assert running.request("GET", "/load")[1]["server_load"] == 3
        assert [answer.result()[0] for answer in answers] == [200] * 3
    assert _metric(running, "num_requests_running") == _metric(running, "num_requests_waiting") == 0
    assert _metric(running, "generation_tokens_total") == 60
    assert _metric(running, "prompt_tokens_total") == 3
    assert _metric(running, "request_success_total") == 3
    assert _metric(running, "time_to_first_token_seconds_count") == 3
    assert _metric(running, "e2e_request_latency_seconds_sum") > 3 * 0.9


def test_metrics_have_the_names_kinds_and_labels_of_the_real_ones(bench: Bench) -> None:
    recorded = (Path(__file__).parent / "data" / "vllm-0.32.0-metrics.txt").read_text(encoding="utf-8").splitlines()[1:]
    real = {name: (kind, labels) for name, kind, labels in (line.split() for line in recorded)}
    text = bench.serve("small", "--served-model-name", "m").ready().request("GET", "/metrics")[1]
    kinds = dict(re.findall(r"^# TYPE (\S+) (\w+)$", text, re.M))
    assert len(kinds) >= 20
    for name, kind in kinds.items():
        lines = [line for line in text.splitlines() if line.startswith((name + "{", name + "_bucket{"))]
        labels = {",".join(re.findall(r'[{,](\w+)="', line)) for line in lines}
        assert (kind, labels) == (real[name][0], {real[name][1]}), name


def test_addresses(bench: Bench) -> None:
    running = bench.serve("small", "--host", "::1")
    eventually(lambda: running.lines("Application startup complete"))
    assert running.request("GET", "/health", host="::1")[0] == 200
    with pytest.raises(ConnectionRefusedError):
        running.request("GET", "/health")
    assert f"Starting vLLM server on http://[::1]:{running.port}" in running.log
    running.signal()
    running.ends()
    path = bench.directory / "vllm.sock"
    running = bench.serve("small", "--uds", str(path))
    eventually(lambda: running.lines("Application startup complete"))
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(str(path))
        client.sendall(b"GET /health HTTP/1.0\r\n\r\n")
        assert client.recv(100).startswith(b"HTTP/1.1 200 OK")
    assert f"Starting vLLM server on unix:{path}" in running.log


def _make_certificate(directory: Path) -> tuple[Path, Path]:
    """(certificate, key) of a server on the loopback that vouches for itself."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "localhost")])
    now = datetime.datetime.now(datetime.UTC)
    certificate = (
        x509.CertificateBuilder(name, name, key.public_key(), 1, now, now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), False)
        .sign(key, hashes.SHA256())
    )
    paths = directory / "tls.crt", directory / "tls.key"
    paths[0].write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    form = serialization.PrivateFormat.PKCS8
    paths[1].write_bytes(key.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption()))
    return paths


def test_tls(bench: Bench, tmp_path: Path) -> None:
    certificate, key = _make_certificate(tmp_path)
    running = bench.serve("small", "--ssl-certfile", str(certificate), "--ssl-keyfile", str(key))
    eventually(lambda: running.lines("Uvicorn running on"))
    assert f"Starting vLLM server on https://0.0.0.0:{running.port}" in running.log
    trust = ssl.create_default_context(cafile=str(certificate))
    connection = http.client.HTTPSConnection("127.0.0.1", running.port, timeout=5, context=trust)
    connection.request("GET", "/version")
    assert json.loads(connection.getresponse().read()) == {"version": "0.33.0"}
    connection.close()


def test_nobody_answers_before_the_load_is_done(bench: Bench) -> None:
    running = bench.serve("small", STANDIN_LOAD_SECONDS="1")
    refused = 0
    while not running.lines("Starting vLLM server on"):
        try:
            socket.create_connection(("127.0.0.1", running.port), 1).close()
        except ConnectionRefusedError:
            refused += 1
        time.sleep(0.02)
    assert refused > 10
    running.ready()


def test_many_requests(bench: Bench) -> None:
    """Some hundred requests a second, streams among them, on keep-alive connections."""
    running = bench.serve("small", "--served-model-name", "m", "--disable-uvicorn-access-log").ready()

    def client(_number: int) -> int:
        connection = http.client.HTTPConnection("127.0.0.1", running.port, timeout=30)
        good = 0
        for each in range(25):
            body = json.dumps({"model": "m", "prompt": "x", "max_tokens": 8, "stream": bool(each % 2)})
            connection.request("POST", "/v1/completions", body, {"Content-Type": "application/json"})
            response = connection.getresponse()
            text = response.read()
            good += response.status == 200 and (b"[DONE]" in text if each % 2 else b"usage" in text)
        connection.close()
        return good

    started = time.monotonic()
    with ThreadPoolExecutor(16) as pool:
        assert sum(pool.map(client, range(16))) == 400
    assert 400 / (time.monotonic() - started) > 100
    assert _metric(running, "generation_tokens_total") == 3200


def test_a_client_that_leaves_is_forgotten(bench: Bench) -> None:
    bench.standin.behave(throttle={"tokens_per_s": 5})
    running = bench.serve("small", "--served-model-name", "m").ready()
    events = _stream(running, "/v1/completions", {"model": "m", "prompt": "x", "max_tokens": 500})
    next(events)
    with pytest.raises(TimeoutError):
        running.request("POST", "/v1/completions", {"model": "m", "prompt": "x", "max_tokens": 500}, timeout=0.3)
    assert _metric(running, "num_requests_running") >= 1
    events.close()  # type: ignore[attr-defined]
    eventually(lambda: _metric(running, "num_requests_running") == 0)


def test_sleep_and_wake_up(bench: Bench) -> None:
    running = bench.serve("minimax", "-tp", "4", VLLM_SERVER_DEV_MODE="1").ready()
    awake = bench.used_mib()[0]
    assert running.request("POST", "/sleep?level=1") == (200, {"status": "sleeping", "level": 1})
    assert running.request("GET", "/is_sleeping")[1] == {"is_sleeping": True}
    assert _sleep_states(running) == {"awake": 0.0, "weights_offloaded": 1.0, "discard_all": 0.0}
    assert max(bench.used_mib()) < 2_000
    assert running.request("POST", "/wake_up")[1]["status"] == "awake"
    assert _sleep_states(running) == {"awake": 1.0, "weights_offloaded": 0.0, "discard_all": 0.0}
    assert bench.used_mib()[0] == awake
    bench.standin.behave(sleep_keeps_memory=True)
    assert running.request("POST", "/sleep")[0] == 200
    assert bench.used_mib()[0] == awake


# --- behaviours


def test_health(bench: Bench) -> None:
    running = bench.serve("small", "--served-model-name", "m").ready()
    for status in (500, 503):
        bench.standin.behave(health=status)
        assert running.request("GET", "/health")[0] == status
    bench.standin.behave(health="hang")
    with pytest.raises(TimeoutError):
        running.request("GET", "/health", timeout=0.3)
    assert running.complete("m")[0] == 200
    bench.standin.clear()
    assert running.request("GET", "/health")[0] == 200


def test_health_ok_dead_engine(bench: Bench) -> None:
    bench.standin.behave(health_ok_dead_engine=True, watchdog_seconds=0.1)
    running = bench.serve("minimax", "-tp", "4", "--served-model-name", "m").ready()
    assert running.complete("m")[0] == 200, "its engine lives"
    os.kill(running.pids("VLLM::EngineCore")[0], signal.SIGKILL)
    eventually(lambda: not running.pids("VLLM::"))
    time.sleep(0.3)
    assert running.request("GET", "/health")[0] == 200
    assert running.request("GET", "/v1/models")[0] == 200
    with pytest.raises(TimeoutError):
        running.request("POST", "/v1/completions", {"model": "m", "prompt": "x"}, timeout=0.5)
    assert running.process.poll() is None


def test_completions(bench: Bench) -> None:
    running = bench.serve("small", "--served-model-name", "m").ready()
    bench.standin.behave(completions="hang")
    with pytest.raises(TimeoutError):
        running.request("POST", "/v1/completions", {"model": "m", "prompt": "x"}, timeout=0.3)
    bench.standin.behave(completions="error")
    assert running.complete("m")[0] == 500
    bench.standin.behave(completions="empty")
    assert running.complete("m")[1]["choices"][0]["text"] == ""
    bench.standin.behave("other", completions="error")
    bench.standin.behave("*", completions="ok")
    assert running.complete("m")[0] == 200  # what is said of another model is nothing to this one


def test_wrong_served_name(bench: Bench) -> None:
    bench.standin.behave("m", wrong_served_name="z")
    running = bench.serve("small", "--served-model-name", "m").ready()
    assert [card["id"] for card in running.request("GET", "/v1/models")[1]["data"]] == ["z"]
    assert running.complete("m")[0] == 404
    bench.standin.behave("m", wrong_served_name=None)
    assert running.complete("m")[0] == 200


def test_models_early(bench: Bench) -> None:
    running = bench.serve("small", "--served-model-name", "m", STANDIN_MODELS_EARLY="true", STANDIN_LOAD_SECONDS="1.5")

    def models() -> Any:
        try:
            return running.request("GET", "/v1/models")[0] == 200
        except OSError:
            return False

    eventually(models)
    assert not running.lines("Loading weights took")
    assert running.request("GET", "/health")[0] == 503
    assert running.complete("m")[0] == 503
    running.ready()
    assert running.complete("m")[0] == 200


def test_throttle(bench: Bench) -> None:
    throttle = {"tokens_per_s": 80, "max_tokens_per_s": 200, "ttft_s": 0.1}
    bench.standin.behave(throttle=throttle)
    running = bench.serve("small", "--served-model-name", "m").ready()
    started = time.monotonic()
    running.complete("m", max_tokens=40)
    assert 0.1 + 39 / 80 - 0.05 < time.monotonic() - started < 1.0
    started = time.monotonic()
    with ThreadPoolExecutor(5) as pool:
        list(pool.map(lambda _each: running.complete("m", max_tokens=40), range(5)))
    assert 0.1 + 5 * 39 / 200 - 0.1 < time.monotonic() - started < 1.8


def test_serving_lines(bench: Bench) -> None:
    bench.standin.behave(serving_lines=["NCCL WARN one", "NCCL WARN two"])
    running = bench.serve("small").ready()
    assert running.lines("NCCL WARN") == ["NCCL WARN one", "NCCL WARN two"]
    bench.standin.behave(serving_lines=["Xid 79"])
    running.request("GET", "/health")
    assert running.lines("Xid 79") == ["Xid 79"]


@pytest.mark.parametrize("victim", ["VLLM::EngineCore", "VLLM::Worker_TP2"])
def test_engine_death(bench: Bench, victim: str) -> None:
    """A health of 503 for a moment, 500 for who waits, and exit code 0."""
    bench.standin.behave(watchdog_seconds=1.0, throttle={"tokens_per_s": 5})
    running = bench.serve("minimax", "-tp", "4", "--served-model-name", "m").ready()
    os.kill(running.pids(victim)[0], signal.SIGKILL)
    eventually(lambda: running.request("GET", "/health")[0] == 503)
    assert running.ends() == 0
    assert running.lines(
        "EngineDeadError: EngineCore encountered an issue. See stack trace (above) for the root cause."
    )
    if "Worker" in victim:
        assert running.lines("Worker proc VllmWorker-2 died unexpectedly (exit code: -9), shutting down executor.")
    assert not running.tree()


def test_engine_death_in_a_request(bench: Bench) -> None:
    bench.standin.behave(watchdog_seconds=30, throttle={"tokens_per_s": 5})
    running = bench.serve("minimax", "-tp", "4", "--served-model-name", "m").ready()
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(running.complete, "m", max_tokens=200)
        eventually(lambda: _metric(running, "num_requests_running") == 1)
        os.kill(running.pids("VLLM::EngineCore")[0], signal.SIGKILL)
        status, answer = waiting.result()
    assert status == 500
    assert answer["error"]["message"] == "The server had an error while processing your request."
    assert running.ends(5) == 0  # at once: not at the watchdog's next look


def test_a_server_may_outlive_its_engine(bench: Bench) -> None:
    bench.standin.behave(watchdog_seconds=0.1)
    running = bench.serve("minimax", "-tp", "4", VLLM_KEEP_ALIVE_ON_ENGINE_DEATH="1").ready()
    os.kill(running.pids("VLLM::EngineCore")[0], signal.SIGKILL)
    eventually(lambda: running.request("GET", "/health")[0] == 503)
    time.sleep(0.5)
    assert running.request("GET", "/health")[0] == 503
    running.signal()
    assert running.ends() == 0


def test_a_stopped_engine_lets_requests_hang(bench: Bench) -> None:
    running = bench.serve("minimax", "-tp", "4", "--served-model-name", "m").ready()
    engine = running.pids("VLLM::EngineCore")[0]
    os.kill(engine, signal.SIGSTOP)
    with pytest.raises(TimeoutError):
        running.request("POST", "/v1/completions", {"model": "m", "prompt": "x"}, timeout=0.5)
    assert running.request("GET", "/health")[0] == 200
    os.kill(engine, signal.SIGCONT)
    assert running.complete("m")[0] == 200


@pytest.mark.parametrize("code", [0, 17])
def test_dies_after(bench: Bench, code: int) -> None:
    bench.standin.behave(dies_after={"seconds": 0.5, "exit_code": code, "lines": ["Xid 31"]}, watchdog_seconds=0.1)
    running = bench.serve("small").ready()
    started = time.monotonic()
    assert running.ends() == code
    assert 0.2 < time.monotonic() - started < 3
    assert running.lines("Xid 31") and running.lines("EngineCore encountered a fatal error.")
    assert not running.tree()


def test_twelve_servers_at_once(bench: Bench) -> None:
    """As many as a lab of twelve hosts has, eight workers each, in little memory."""
    words = ("-tp", "8", "--gpu-memory-utilization", "0.05", "--kv-cache-memory-bytes", "1G", "--max-num-seqs", "16")
    servers = [
        bench.serve("small", *words, "--max-model-len", "4096", "--served-model-name", "m", STANDIN_LOAD_SECONDS="1")
        for _each in range(12)
    ]
    for server in servers:
        server.ready(60)
    assert [server.complete("m")[0] for server in servers] == [200] * 12
    trees = [server.tree() for server in servers]
    assert sum(map(len, trees)) == 12 * 11
    assert sum(_own_kib(pid) for tree in trees for pid in tree) < 12 * 11 * 6 * 1024


def _own_kib(pid: int) -> int:
    """Memory of a process, what it shares counted in parts."""
    text = Path(f"/proc/{pid}/smaps_rollup").read_text()
    return next(int(line.split()[1]) for line in text.splitlines() if line.startswith("Pss:"))
