# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The same declaration again while its server is slow, busy, silent or dead: what serves, or may serve, is never restarted."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from e2e.adhoc import module
from e2e.direct import SMALL, UNIT, service

from ansible_collections.gpufleet.vllm.plugins.module_utils._server.http import Server
from lab import Host, Lab

LOOK_S = 12.0  # docs/service.md: no look at a running server takes longer
REST_S = 15.0  # the rest of a run takes half a second on a host of its own, and much longer on a machine that many use
ENGINE = "kill -9 $(pgrep -f '^VLLM::EngineCore')"


@pytest.fixture(scope="module", params=["gpu01", "gpu03"], ids=["bookworm", "trixie"])
def machine(lab: Lab, request: pytest.FixtureRequest) -> Host:
    """A host with each systemd, clean once."""
    chosen = lab.hosts[request.param]
    chosen.reset()
    return chosen


@pytest.fixture
def host(machine: Host) -> Host:
    """The service runs and answers at once."""
    machine.vllm.clear()
    machine.vllm.behave("*", load_seconds=0.2)
    done = service(machine)
    assert done["ready"] and done["warnings"] == [], done
    return machine


def again(host: Host, **parameters: Any) -> tuple[dict[str, Any], float, bool]:
    """Another run: its result, the seconds that it took on the host, and whether the process is a new one."""
    before = host.systemctl_show(UNIT, ["InvocationID", "MainPID"])
    done = service(host, **parameters)
    return done, done["timings"]["total"], host.systemctl_show(UNIT, ["InvocationID", "MainPID"]) != before


@contextmanager
def asked(host: Host, tokens: int) -> Iterator[None]:
    """A client has a long answer made for it until the block ends."""
    server = Server(host.address, SMALL["port"])
    body = {"model": "small", "prompt": "Hello", "max_tokens": tokens}

    def ask() -> None:
        try:
            server.request("POST", "/v1/completions", 60.0, body)
        except OSError:
            return

    thread = threading.Thread(target=ask, daemon=True)
    thread.start()
    end = time.monotonic() + 20
    while server.metrics().get("num_requests_running") != 1.0:
        assert time.monotonic() < end, "the client's request never ran"
        time.sleep(0.1)
    yield
    thread.join(90)


def test_one_that_answers_costs_a_moment(host: Host) -> None:
    done, seconds, restarted = again(host)
    assert done["ready"] and done["actions"] == [] and done["warnings"] == [] and not restarted
    assert seconds < LOOK_S


def test_a_slow_one_is_told_of_and_never_restarted(host: Host) -> None:
    """Its counters stand still as they would in an engine that hangs: the first part of an answer takes a minute and a half."""
    host.vllm.behave("small", throttle={"ttft_s": 90.0})
    planned, seconds, _restarted = again(host, check=True)
    assert planned["actions"] == [] and seconds < LOOK_S + REST_S
    done, seconds, restarted = again(host)
    assert not done["failed"] and not done["changed"] and done["actions"] == [] and not restarted
    assert not done["ready"], "nothing was seen to come of it"
    for said in (planned["warnings"], done["warnings"]):
        assert len(said) == 1 and "It may be busy" in said[0] and "state: restarted" in said[0], said
    assert seconds < LOOK_S + REST_S
    _done, seconds, restarted = again(host, ready_timeout=2)
    assert not restarted and seconds < 2.0 + REST_S


def test_through_ansible_a_slow_one_is_a_warning_and_no_change(host: Host) -> None:
    host.vllm.behave("small", throttle={"ttft_s": 90.0})
    before = host.systemctl_show(UNIT, ["InvocationID"])
    done = module(host, "vllm_service", **SMALL)
    assert not done["failed"] and not done["changed"], done["shown"]
    assert "vllm-small.service did not answer this run" in " ".join(done["shown"].split()), done["shown"]
    assert host.systemctl_show(UNIT, ["InvocationID"]) == before


def test_one_that_makes_tokens_for_others_is_said_to_work(host: Host) -> None:
    """One request at a time: whoever comes second waits until the first has its whole answer."""
    service(host, args={**SMALL["args"], "max_num_seqs": 1})
    host.vllm.behave("small", throttle={"tokens_per_s": 10.0})
    with asked(host, 400):
        done, seconds, restarted = again(host, args={**SMALL["args"], "max_num_seqs": 1})
        assert done["actions"] == [] and not restarted and seconds < LOOK_S + REST_S
        assert "its engine works" in done["warnings"][0] and "1 requests running" in done["warnings"][0], done["warnings"]


@pytest.mark.parametrize("behaviour", [{"completions": "error"}, {"health": 503}], ids=["completions-500", "health-503"])
def test_wrong_answers_are_reason_enough(host: Host, behaviour: dict[str, Any]) -> None:
    host.vllm.behave("small", **behaviour)
    planned, seconds, _restarted = again(host, check=True)
    assert [entry["action"] for entry in planned["actions"]] == ["stop", "prove_free", "start"]
    assert "it runs but does not serve" in planned["actions"][0]["reason"] and seconds < LOOK_S + REST_S


def test_silence_of_one_whose_engine_runs_is_not(host: Host) -> None:
    for behaviour in ({"completions": "hang"}, {"health": "hang"}):
        host.vllm.clear()
        host.vllm.behave("small", **behaviour)
        done, seconds, restarted = again(host)
        assert done["actions"] == [] and len(done["warnings"]) == 1 and not restarted, done
        assert seconds < LOOK_S + REST_S


def test_silence_of_one_whose_engine_is_gone_is(host: Host) -> None:
    """Some versions answer /health with 200 when their engine is dead, and keep every request waiting."""
    host.vllm.behave("small", health_ok_dead_engine=True)
    host.run(ENGINE)
    time.sleep(1.0)
    planned, _seconds, _restarted = again(host, check=True)
    assert "its engine is gone: nobody holds memory on GPU 4" in planned["actions"][0]["reason"], planned
    # It stays set: a server that may notice ends by itself at its next look, and systemd would be the one who restarts it.
    done, _seconds, restarted = again(host)
    assert done["ready"] and restarted, done


def test_a_frozen_one_is_thawed_and_stopped(host: Host) -> None:
    """systemd refuses to stop a unit that somebody has frozen."""
    host.run(["systemctl", "freeze", UNIT])
    done = service(host, state="stopped")
    assert not done["failed"] and done["changed"], done
    assert host.systemctl_show(UNIT, ["ActiveState", "FreezerState"]) == {"ActiveState": "inactive", "FreezerState": "running"}
