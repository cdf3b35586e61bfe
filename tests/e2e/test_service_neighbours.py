# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Two services on one host, on GPUs 0 to 3 and 4 to 7: whatever happens to one, the other serves on."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from e2e.direct import SMALL, service

from ansible_collections.gpufleet.vllm.plugins.module_utils._server.http import Server
from lab import Host, Lab

ARGS = {**SMALL["args"], "tensor_parallel_size": 4}
LEFT: dict[str, Any] = {"name": "left", "gpus": ["0", "1", "2", "3"], "port": 8001, "args": ARGS}
RIGHT: dict[str, Any] = {"name": "right", "gpus": ["4", "5", "6", "7"], "port": 8002, "args": ARGS}
PROPERTIES = ("ActiveState", "InvocationID", "MainPID", "NRestarts", "ExecMainStartTimestampMonotonic")


@pytest.fixture(params=["gpu01", "gpu03"], ids=["bookworm", "trixie"])
def machine(lab: Lab, request: pytest.FixtureRequest) -> Host:
    """A clean host with each systemd."""
    chosen = lab.hosts[request.param]
    chosen.reset()
    chosen.vllm.behave("*", load_seconds=0.2)
    return chosen


@contextmanager
def asked_all_along(host: Host, name: str, port: int) -> Iterator[list[bool]]:
    """One request after the other to a server until the block ends; whether each was answered."""
    answers: list[bool] = []
    over = threading.Event()

    def ask() -> None:
        server = Server(host.address, port)
        while not over.is_set():
            answers.append(server.complete(name, 5.0).ok)
            over.wait(0.02)

    thread = threading.Thread(target=ask)
    thread.start()
    try:
        yield answers
    finally:
        over.set()
        thread.join()


def test_one_never_touches_the_other(machine: Host) -> None:
    for declared in (LEFT, RIGHT):
        assert not service(machine, **declared)["failed"]
    before = machine.systemctl_show("vllm-left.service", PROPERTIES)
    steps: list[dict[str, Any]] = [
        {"state": "restarted"},
        {"args": {**ARGS, "max_num_seqs": 32}},
        {"env": {"A": "b"}, "unit_options": {"Service": {"Nice": 3}}, "enabled": True},
        {"replace": "conflicting", "secrets": {"VLLM_API_KEY": "sk-1"}},
        {"state": "stopped"},
        {"state": "started"},
        {"state": "absent"},
        {"state": "started", "replace": "conflicting"},
    ]
    with asked_all_along(machine, "left", 8001) as answers:
        for step in steps:
            done = service(machine, **{**RIGHT, **step})
            assert not done["failed"] and done["changed"], (step, done)
            assert done["replaced"] == []
    assert machine.systemctl_show("vllm-left.service", PROPERTIES) == before
    assert len(answers) > 50 and all(answers), f"{answers.count(False)} of {len(answers)} requests were not answered"


def test_a_failure_on_one_side_stays_there(machine: Host) -> None:
    for declared in (LEFT, RIGHT):
        assert not service(machine, **declared)["failed"]
    before = machine.systemctl_show("vllm-left.service", PROPERTIES)
    with asked_all_along(machine, "left", 8001) as answers:
        machine.vllm.behave("right", oom_warmup=True)
        failed = service(machine, **{**RIGHT, "args": {**ARGS, "max_num_seqs": 1024}})
        assert failed["failed"], failed
        machine.vllm.behave("right", oom_warmup=None)
        assert not service(machine, **RIGHT)["failed"]
    assert machine.systemctl_show("vllm-left.service", PROPERTIES) == before
    assert len(answers) > 20 and all(answers)


def test_one_port_on_two_addresses_is_no_rivalry(machine: Host) -> None:
    for declared in ({**LEFT, "host": "127.0.0.1"}, {**RIGHT, "host": "127.0.0.2", "port": 8001}):
        done = service(machine, **declared)
        assert not done["failed"] and done["ready"], done
    refused = service(machine, **{**RIGHT, "host": "0.0.0.0", "port": 8001})
    assert refused["failed"] and "vllm-left.service is in the way: it has port 8001" in refused["msg"], refused
