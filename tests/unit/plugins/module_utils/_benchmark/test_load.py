# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The load generator as a program of its own, against a server on loopback that streams."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from typing import Any, Dict, List

import pytest

from ansible_collections.gpufleet.vllm.plugins.module_utils._benchmark import builtin, load
from ansible_collections.gpufleet.vllm.tests.unit.plugins.module_utils._benchmark.streaming import Streaming, streaming


@pytest.fixture
def server() -> Iterator[Streaming]:
    with streaming() as started:
        yield started


def run(server: Streaming, check: bool = True, **more: Any) -> Dict[str, Any]:
    """What the program answers to an order."""
    order = {
        "url": server.url, "model": "m", "concurrency": 2, "requests": 6, "warmup": 2, "input_tokens": 20, "output_tokens": 5,
        "seed": 1, "nonce": 7, "timeout": 20.0, **more,
    }  # fmt: skip
    env = {"http_proxy": "http://127.0.0.1:9", "HTTP_PROXY": "http://127.0.0.1:9", "PATH": "/usr/bin:/bin"}
    argv = [sys.executable, load.__file__]
    done = subprocess.run(argv, input=json.dumps(order), capture_output=True, text=True, env=env, timeout=60, check=False)
    if check:
        assert done.returncode == 0, done.stdout + done.stderr
    answer: Dict[str, Any] = json.loads(done.stdout)
    return dict(answer, rc=done.returncode)


def kinds(told: Dict[str, Any]) -> List[str]:
    return sorted(each.get("kind", "") for each in told["requests"])


def test_every_request_is_told_with_its_times(server: Streaming) -> None:
    told = run(server)
    assert len(told["requests"]) == 6 and told["prompts"] == "token_ids" and told["processes"] == 1
    for each in told["requests"]:
        assert (each["input_tokens"], each["output_tokens"], len(each["gaps"])) == (20, 5, 4)
        assert 0 < each["ttft"] < each["end"] - each["start"]
        assert sum(each["gaps"]) == pytest.approx(each["end"] - each["start"] - each["ttft"], abs=1e-6)
        assert "error" not in each
    samples, duration = builtin.samples_of(told["requests"])
    assert duration is not None and duration > 0 and samples[0].e2e is not None


def test_as_many_as_wanted_are_busy_and_the_warm_up_is_not_counted(server: Streaming) -> None:
    server.token_s = 0.02
    told = run(server, concurrency=3, requests=9, warmup=4)
    assert server.most_busy == 3
    assert len(server.bodies) == 13 and len(told["requests"]) == 9


def test_the_server_is_asked_for_exactly_the_load(server: Streaming) -> None:
    run(server)
    for body in server.bodies:
        assert body["max_tokens"] == 5 and body["ignore_eos"] is True and body["temperature"] == 0 and body["stream"] is True
        assert body["stream_options"] == {"include_usage": True} and len(body["prompt"]) == 20


def test_prompts_are_chosen_by_the_seed_and_begin_anew_in_every_run(server: Streaming) -> None:
    run(server, concurrency=1)
    first = [body["prompt"] for body in server.bodies]
    assert len({tuple(prompt) for prompt in first}) == len(first), "no two alike"
    server.bodies.clear()
    run(server, concurrency=1, nonce=8)
    again = [body["prompt"] for body in server.bodies]
    assert [prompt[8:] for prompt in again] == [prompt[8:] for prompt in first]
    assert all(one[:8] != other[:8] for one, other in zip(first, again, strict=True))
    server.bodies.clear()
    run(server, concurrency=1, seed=2)
    assert [body["prompt"][8:] for body in server.bodies] != [prompt[8:] for prompt in first]


def test_without_a_tokenizer_the_words_are_counted_by_the_server(server: Streaming) -> None:
    server.tokenize = False
    told = run(server)
    assert told["prompts"] == "words"
    assert {each["input_tokens"] for each in told["requests"]} == {20}, "two tokens a word: ten words"
    assert all(len(body["prompt"].split()) == 10 for body in server.bodies)


def test_failures_are_told_by_kind_and_stop_nothing(server: Streaming) -> None:
    ways = ["ok", "http_500", "cut", "error", "empty", "not_json", "short", "ok"]
    server.behave = lambda number: ways[number % len(ways)]
    told = run(server, warmup=0, requests=8, concurrency=2)
    assert kinds(told) == ["", "", "", "cut", "cut", "empty", "http_500", "server_error"]
    samples, duration = builtin.samples_of(told["requests"])
    assert sorted(sample.kind for sample in samples if sample.error) == ["cut", "cut", "empty", "http_500", "server_error"]
    good = [sample.output_tokens for sample in samples if not sample.error]
    assert sorted(good, key=str) == [2, 5, 5], "that one is too short is judged later"


def test_a_silent_server_is_not_waited_for(server: Streaming) -> None:
    server.behave = lambda number: "hang"
    told = run(server, warmup=0, requests=2, timeout=0.4)
    assert kinds(told) == ["timeout", "timeout"]
    assert all(each["end"] - each["start"] < 1.4 for each in told["requests"])


def test_pieces_are_counted_where_the_server_counts_nothing(server: Streaming) -> None:
    server.behave = lambda number: "no_usage"
    told = run(server, requests=2)
    assert all((each["output_tokens"], each["counted"]) == (5, "pieces") and "input_tokens" not in each for each in told["requests"])


def test_the_key_goes_with_every_request(server: Streaming) -> None:
    server.key = "sk-secret"
    assert kinds(run(server, api_key="sk-secret")) == [""] * 6
    assert kinds(run(server, api_key="wrong")) == ["http_401"] * 6


def test_a_server_that_is_not_there_is_a_reason_and_no_traceback(server: Streaming) -> None:
    server.port = 1
    told = run(server, check=False)
    assert told["rc"] == 4 and "/tokenize gave no answer" in told["refused"]


def test_many_streams_are_shared_between_processes(server: Streaming) -> None:
    # In a process of its own: one that has threads must not be forked.
    program = "import runpy, sys; sys.argv = ['load']; load = runpy.run_path(%r); load['run'].__globals__['_STREAMS_PER_PROCESS'] = 2; "
    program += "load['os'].cpu_count = lambda: 8; sys.exit(load['main']())"
    order = {"url": server.url, "model": "m", "concurrency": 5, "requests": 11, "warmup": 3, "input_tokens": 10, "output_tokens": 2,
             "seed": 0, "nonce": 0, "timeout": 20.0}  # fmt: skip
    argv = [sys.executable, "-c", program % load.__file__]
    done = subprocess.run(argv, input=json.dumps(order), capture_output=True, text=True, timeout=60, check=False)
    told = json.loads(done.stdout)
    assert told["processes"] == 3 and len(told["requests"]) == 11 and len(server.bodies) == 14
    assert len({tuple(body["prompt"]) for body in server.bodies}) == 14, "each number once, whichever process takes it"


def test_without_requests_it_says_so() -> None:
    # -S leaves the site directories out, where the library is
    done = subprocess.run([sys.executable, "-I", "-S", load.__file__], input=json.dumps({
        "url": "http://127.0.0.1:1", "model": "m", "concurrency": 1, "requests": 1, "warmup": 0, "input_tokens": 1, "output_tokens": 1,
        "seed": 0, "nonce": 0, "timeout": 1}), capture_output=True, text=True, timeout=60, check=False)  # fmt: skip
    assert done.returncode == 3
    assert "has no library requests" in json.loads(done.stdout)["refused"]
