# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Services as they are deployed that start at once on one GPU: one after the other, until the first is ready or dead."""

from __future__ import annotations

import base64
import json
import socket
import time
from collections.abc import Callable
from typing import Any

import pytest
from e2e.adhoc import module
from e2e.programs import Programs

from ansible_collections.gpufleet.vllm.plugins.module_utils._guard.zipapp import build_guard
from ansible_collections.gpufleet.vllm.plugins.module_utils._unit.render import LOCK_DIR, wanted_files
from ansible_collections.gpufleet.vllm.plugins.module_utils._unit.spec import GuardSpec, ServiceSpec
from lab import Host, Lab

GUARD = GuardSpec().path
LOAD_S = 3.0


def service(name: str, port: int, **changes: Any) -> ServiceSpec:
    """A service that takes a third of GPU 4, under a user of its own."""
    values: dict[str, Any] = {"name": name, "model": "/models/Qwen3-0.6B", "served_name": name, "gpus": (4,), "port": port,
                              "args": {"gpu_memory_utilization": 0.3}, "user": "daemon", "group": "daemon"}
    return ServiceSpec(**{**values, **changes})


FIRST, SECOND = service("first", 8001), service("second", 8002, user="games", group="games")


@pytest.fixture(params=["gpu01", "gpu03"], ids=["bookworm", "trixie"])
def machine(lab: Lab, request: pytest.FixtureRequest) -> Host:
    """A clean host with each systemd, whose servers load for a while."""
    return ready(lab.hosts[request.param])


@pytest.fixture
def one(lab: Lab) -> Host:
    """A clean host whose servers load for a while."""
    return ready(lab.hosts["gpu02"])


def ready(host: Host) -> Host:
    """Make the host clean, with the guard on it."""
    host.reset()
    host.vllm.behave("*", load_seconds=LOAD_S)
    encoded = base64.b64encode(build_guard()).decode("ascii")
    host.run(f"mkdir -p {GUARD.rsplit('/', 1)[0]} && base64 -d > {GUARD} && chmod 755 {GUARD}", input=encoded)
    return host


def write(host: Host, *services: ServiceSpec) -> None:
    """Put the services' files on the host."""
    for each in services:
        for entry in wanted_files(each):
            if entry.content is not None:
                host.write(entry.path, entry.content.decode("utf-8"), entry.mode)
    host.run("systemctl daemon-reload")


def wait_for(look: Callable[[], Any], timeout: float = 60.0) -> Any:
    """What ``look`` returns as soon as it is something."""
    end = time.monotonic() + timeout
    while time.monotonic() < end:
        if found := look():
            return found
        time.sleep(0.1)
    raise AssertionError(f"nothing within {timeout:.0f} s")


def state(host: Host, unit: str) -> str:
    """Its ActiveState."""
    return host.systemctl_show(unit, ("ActiveState",))["ActiveState"]


def started(host: Host, unit: str) -> float:
    """When its server was started, seconds of CLOCK_MONOTONIC; 0 when it was not yet."""
    return int(host.systemctl_show(unit, ("ExecMainStartTimestampMonotonic",))["ExecMainStartTimestampMonotonic"] or 0) / 1e6


def said(host: Host, unit: str) -> str:
    """What the guard told the journal."""
    out = host.run(["journalctl", "--unit", unit, "--output=cat", "--no-pager", "--boot"]).stdout
    return "\n".join(line for line in out.splitlines() if line.startswith("gpu-guard:"))


def answers(host: Host, port: int) -> bool:
    """Whether the server is ready."""
    try:
        with socket.create_connection((host.address, port), timeout=5):
            return True
    except OSError:
        return False


def members(host: Host, unit: str) -> list[str]:
    """The command lines in the unit's cgroup."""
    group = host.systemctl_show(unit, ("ControlGroup",))["ControlGroup"]
    procs = f"$(cat $(find /sys/fs/cgroup -path '*{group}/cgroup.procs' | head -1))"
    return host.run(f"for p in {procs}; do tr '\\0' ' ' </proc/$p/cmdline; echo; done").stdout.splitlines()


def test_two_at_once_go_one_after_the_other(machine: Host) -> None:
    write(machine, FIRST, SECOND)
    machine.run(["systemctl", "start", "--no-block", FIRST.unit, SECOND.unit])
    wait_for(lambda: answers(machine, 8001) and answers(machine, 8002))
    order = sorted((FIRST, SECOND), key=lambda each: started(machine, each.unit))
    between = started(machine, order[1].unit) - started(machine, order[0].unit)
    assert LOAD_S <= between < LOAD_S + 8, f"{between:.2f} s between the two, of which the first one loads {LOAD_S:g} s"
    assert said(machine, order[0].unit) == ""
    waited = said(machine, order[1].unit)
    assert f"{order[1].unit} waits: {order[0].unit} is still starting on GPU 4" in waited and "the memory is free after" in waited
    for each in order:
        left = members(machine, each.unit)
        assert left and not [line for line in left if "gpu-guard" in line], f"nothing of the guard stays in the unit: {left}"
    began = time.monotonic()
    machine.run(["systemctl", "stop", FIRST.unit, SECOND.unit])
    assert time.monotonic() - began < 10
    assert machine.run(f"ls -A {LOCK_DIR}").stdout == "", "a stopped unit leaves no claim"


def test_on_different_gpus_nobody_waits(one: Host) -> None:
    beside = service("beside", 8003, gpus=(5,))
    write(one, FIRST, beside)
    one.run(["systemctl", "start", "--no-block", FIRST.unit, beside.unit])
    wait_for(lambda: started(one, FIRST.unit) and started(one, beside.unit))
    assert abs(started(one, FIRST.unit) - started(one, beside.unit)) < LOAD_S
    assert (said(one, FIRST.unit), said(one, beside.unit)) == ("", "")


def test_a_server_that_is_killed_while_it_loads_lets_the_next_one_go(machine: Host) -> None:
    machine.vllm.behave("*", load_seconds=300)
    write(machine, FIRST, SECOND)
    machine.run(["systemctl", "start", FIRST.unit])
    machine.run(["systemctl", "start", "--no-block", SECOND.unit])
    wait_for(lambda: "first.service is still starting" in said(machine, SECOND.unit))
    time.sleep(1)
    assert started(machine, SECOND.unit) == 0
    main = machine.systemctl_show(FIRST.unit, ("MainPID",))["MainPID"]
    machine.run(f"kill -9 {main}")
    killed = float(machine.run("cut -d' ' -f1 /proc/uptime").stdout)
    wait_for(lambda: started(machine, SECOND.unit))
    assert started(machine, SECOND.unit) - killed < 15
    # systemd starts the first one again, and now it is the one that waits
    wait_for(lambda: "second.service is still starting" in said(machine, FIRST.unit))


def test_a_guard_that_is_killed_holds_nobody_up(one: Host) -> None:
    """The first one has its turn on GPU 4 and waits for memory of GPU 5."""
    hog = Programs(one).service("hog", gpus=(5,), mib=90000)
    both = service("first", 8001, gpus=(4, 5))
    write(one, both, SECOND)
    one.run(["systemctl", "start", "--no-block", both.unit])
    wait_for(lambda: f"held by pid {hog.pid}" in said(one, both.unit))
    one.run(["systemctl", "start", "--no-block", SECOND.unit])
    wait_for(lambda: "first.service is still starting on GPU 4" in said(one, SECOND.unit))
    one.run(f"kill -9 {one.systemctl_show(both.unit, ('ControlPID',))['ControlPID']}")
    wait_for(lambda: started(one, SECOND.unit), timeout=10)


def test_who_waits_too_long_is_told_for_whom(one: Host) -> None:
    """The other one is a unit of somebody else's who uses the guard too: vllm_service would refuse beside one of its own."""
    guard = f"/usr/bin/python3 {GUARD} --unit trainer.service --gpus 4 --utilization 0.3 --port 8001 --lock-dir {LOCK_DIR}"
    one.write("/etc/systemd/system/trainer.service", "[Service]\nType=exec\nUser=games\nRuntimeDirectory=gpufleet/locks/trainer.service\n"
              f"ExecStartPre={guard}\nExecStart=/usr/bin/sleep 1000\n")
    one.run("systemctl daemon-reload && systemctl start trainer.service")
    began = time.monotonic()
    result = module(one, "vllm_service", name="second", model="/models/Qwen3-0.6B", gpus=[4], port=8002,
                    args={"gpu_memory_utilization": 0.3}, guard={"timeout": 3}, ready_timeout=60)
    assert result["failed"] and time.monotonic() - began < 40 and "diagnosis" in result, result["msg"]
    assert result["diagnosis"]["kind"] == "memory_not_free", result["diagnosis"]
    assert "trainer.service is still starting on GPU 4, after 3 s of waiting" in result["diagnosis"]["summary"]
    assert any("(LOCKED)" in line and "trainer.service" in line for line in result["diagnosis"]["evidence"])
    assert "trainer.service" in result["msg"]
    assert state(one, "trainer.service") == "active", "the one that was there first is left alone"


def test_another_user_cannot_stand_in_the_way(one: Host) -> None:
    write(one, FIRST)
    one.run(["systemctl", "start", FIRST.unit])
    shown = one.run(f"stat -c '%a %U' /run/gpufleet {LOCK_DIR} {LOCK_DIR}/{FIRST.unit} {LOCK_DIR}/{FIRST.unit}/claim").stdout.splitlines()
    assert shown == ["755 root", "755 root", "755 daemon", "644 daemon"]
    as_other = "setpriv --reuid nobody --clear-groups --"
    mine, theirs = f"{LOCK_DIR}/{SECOND.unit}", f"{LOCK_DIR}/{FIRST.unit}"
    hostile = (f"touch {LOCK_DIR}/x", f"mkdir {mine}", f"ln -s /etc/passwd {mine}", f"touch {theirs}/claim.new", f"rm {theirs}/claim",
               f"mv {theirs} {LOCK_DIR}/y")
    for attempt in hostile:
        assert one.run(f"{as_other} {attempt}", check=False).returncode != 0, attempt
    # any lock that others can take could be kept by them: there is none to take
    one.run(f"systemd-run --quiet --uid=nobody flock {LOCK_DIR} sleep 600")
    one.run(f"systemd-run --quiet --uid=nobody flock {LOCK_DIR}/{FIRST.unit}/claim sleep 600")
    wait_for(lambda: answers(one, 8001))
    write(one, SECOND)
    one.run(["systemctl", "start", SECOND.unit])
    assert "is still starting" not in said(one, SECOND.unit) and "warning" not in said(one, SECOND.unit)
    claim = json.loads(one.run(f"cat {LOCK_DIR}/{SECOND.unit}/claim").stdout)
    assert claim["ticket"] == 2
