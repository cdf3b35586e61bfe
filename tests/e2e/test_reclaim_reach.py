# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""How far gpu_reclaim reaches: loops in scopes, helpers of services, units over several GPUs, GPUs that hang, names that are nobody's."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from e2e.playbook import playbook
from e2e.programs import Programs
from e2e.reclaims import put_right, reclaim

from lab import Host, Lab


@pytest.fixture(scope="module")
def cleaned(lab: Lab) -> Host:
    """gpu01, fresh at the beginning of this file."""
    lab.hosts["gpu01"].reset()
    return lab.hosts["gpu01"]


@pytest.fixture
def on(cleaned: Host) -> Iterator[Programs]:
    """Programs on gpu01, all of them ended afterwards and the driver's scenario put back."""
    yield Programs(cleaned)
    put_right(cleaned)


def until_held(on: Programs, gpu: int, mib: int = 50000) -> None:
    """Wait until a GPU is in use."""
    deadline = time.monotonic() + 15
    while on.host.gpu.used_mib(gpu) < mib:
        assert time.monotonic() < deadline
        time.sleep(0.05)


def loop(on: Programs, scope: str) -> int:
    """A shell in a scope that starts a program on GPU 0 again whenever it ends; the shell's pid."""
    script = f"echo $$ >/run/{scope}.out; while :; do /usr/bin/python3 {on.client} --gpu 0 --mib 50000; done"
    on.host.run(f"systemd-run --quiet --scope --unit={scope} sh -c '{script}' </dev/null >/dev/null 2>&1 &")
    until_held(on, 0)
    return int(on.host.run(f"cat /run/{scope}.out").stdout)


def test_a_loop_in_a_scope_is_stopped_as_a_unit_and_check_mode_says_so(on: Programs) -> None:
    shell = loop(on, "job-loop")
    planned = reclaim(on.host, "--check", scope="all")
    result = reclaim(on.host, scope="all")
    assert result["freed"] and result["signalled"] == planned["signalled"] == []
    assert [each["unit"] for each in result["stopped_units"]] == [each["unit"] for each in planned["stopped_units"]] == ["job-loop.scope"]
    assert planned["stopped_units"][0]["processes"] == result["stopped_units"][0]["processes"]
    assert not on.alive(shell)
    assert reclaim(on.host, scope="all")["changed"] is False


def test_a_loop_in_a_login_session_is_named_and_the_session_lives(on: Programs) -> None:
    shell = loop(on, "session-99")
    # The next one is up within the settle time, also on a busy machine.
    result = reclaim(on.host, scope="all", settle=6, timeout=60)
    assert result["failed"] and result["stopped_units"] == [] and on.alive(shell)
    assert f"was started by sh (pid {shell}) meanwhile, which may start another: end that first" in result["msg"]
    on.host.run(["kill", "-9", str(shell)])


def test_a_named_service_is_stopped_although_its_own_logger_is_a_gpu_tool(on: Programs) -> None:
    logger = f"/usr/bin/python3 {on.client} --gpu 0 --mib 1 --name nvidia-smi"
    on.host.write(
        "/run/systemd/system/train.service",
        f"[Service]\nExecStart=/bin/sh -c '{logger} & exec /usr/bin/python3 {on.client} --gpu 0 --mib 50000'\nRestart=always\n",
    )
    on.host.run("systemctl daemon-reload; systemctl start train")
    until_held(on, 0, 50001)
    for arguments in ({"scope": "all"}, {"scope": "services", "services": ["train"], "protect": ["process:nvidia-smi"]}):
        left = reclaim(on.host, timeout=6, **arguments)
        assert left["failed"] and not left["changed"] and "train.service" in left["msg"]
    planned = reclaim(on.host, "--check", scope="services", services=["train"])
    result = reclaim(on.host, scope="services", services=["train"])
    assert result["freed"] and result["signalled"] == []
    assert {each["name"] for each in planned["stopped_units"][0]["processes"]} == {"python3", "nvidia-smi"}
    assert [(each["unit"], each["result"]) for each in result["stopped_units"]] == [("train.service", "stopped")]


def test_what_ends_with_a_unit_on_gpus_that_were_not_selected_is_named(on: Programs) -> None:
    beside = f"/usr/bin/python3 {on.client} --gpu 2 --mib 50000"
    on.host.write(
        "/run/systemd/system/train.service",
        f"[Service]\nExecStart=/bin/sh -c '{beside} & exec /usr/bin/python3 {on.client} --gpu 3 --mib 50000'\n",
    )
    on.host.run("systemctl daemon-reload; systemctl start train")
    until_held(on, 2)
    until_held(on, 3)
    planned = reclaim(on.host, "--check", "--diff", scope="all", gpus=[3])
    (unit,) = planned["stopped_units"]
    assert sorted(each["gpus"] for each in unit["processes"]) == [[2], [3]]
    assert "-GPU 2: pid " in planned["shown"] and "(with train.service)" in planned["shown"]
    ran = playbook("gpu_cleanup", "--check", "--limit", "localhost,gpu01", "-e", json.dumps({"scope": "all", "gpu_reclaim_gpus": [3]}))
    assert "train.service with python3 pid" in ran.expect(0).out and "on GPU 2 (would stop)" in ran.out
    result = reclaim(on.host, scope="all", gpus=[3])
    assert result["freed"] and result["stopped_units"][0]["processes"] == unit["processes"]


@pytest.mark.parametrize("call", ["nvmlDeviceGetMemoryInfo*", "nvmlDeviceGetComputeRunningProcesses*", "nvmlDeviceGetHandleByIndex*"])
def test_a_hung_gpu_that_is_not_selected_fails_nobody(on: Programs, call: str) -> None:
    worker = on.orphan([3])
    on.host.gpu.hang(call, gpu=0)
    result = reclaim(on.host, gpus=[3], timeout=8)
    print(f"{call}: {result['timings']['total']} s")
    assert result["freed"] and [each["pid"] for each in result["signalled"]] == [worker.pid], result.get("msg")
    assert result["timings"]["total"] < 8
    assert "GPU 0, which was not selected, does not answer" in result["warned"] and "driver_hung" in result["warned"]


def test_a_hung_gpu_that_is_selected_is_named_and_the_others_are_freed_in_time(on: Programs) -> None:
    worker = on.orphan([3])
    on.host.gpu.hang("nvmlDeviceGetMemoryInfo*", gpu=0)
    result = reclaim(on.host, gpus=[0, 3], timeout=8)
    assert result["failed"] and not result["freed"] and [each["pid"] for each in result["signalled"]] == [worker.pid]
    assert "GPU 0 can't be read (error: memory: driver_hung" in result["msg"] and result["timings"]["total"] < 10
    assert "driver_hung" in reclaim(on.host, gpus=[0], timeout=8)["msg"]


@pytest.mark.parametrize(("users", "words"), [
    ([""], "leave `users` out"), (["root,vllm"], "give a list: users: [root, vllm]"), (["-1"], "a number from 0 up"),
])
def test_users_that_cannot_be_users_are_refused(on: Programs, users: list[str], words: str) -> None:
    worker = on.orphan([0])
    result = reclaim(on.host, users=users)
    assert result["failed"] and words in result["msg"] and on.alive(worker.pid)


def test_a_user_that_the_host_does_not_know_is_said(on: Programs, tmp_path: Path) -> None:
    worker = on.orphan([0])
    result = reclaim(on.host, users=["alcie"], timeout=5)
    assert result["failed"] and not result["changed"] and on.alive(worker.pid)
    assert "User alcie: `users` names it, but this host has neither such an account" in result["msg"]
    variables: dict[str, Any] = {"gpu_reclaim_users": ["alcie"], "gpu_reclaim_timeout": 6}
    ran = playbook("gpu_cleanup", "--limit", "localhost,gpu01", "-e", json.dumps(variables), reports=tmp_path).expect(2)
    (row,) = (ran.report or {})["rows"]
    assert row["result"] == "NO SUCH USER" and "there is no user alcie on this host" in row["left"]


def test_a_service_that_no_host_has_fails_the_clean_up(lab: Lab, on: Programs, tmp_path: Path) -> None:
    lab.hosts["gpu02"].reset()
    times = {"scope": "services", "gpu_reclaim_timeout": 8, "gpu_reclaim_settle": 0.3}
    hosts = ("--limit", "localhost,gpu01,gpu02")
    for flags in (("--check",), ()):
        ran = playbook(
            "gpu_cleanup", *flags, *hosts, "-e", json.dumps({**times, "gpu_reclaim_services": ["vllm-reel"]}), reports=tmp_path
        ).expect(2)
        assert ran.out.count("NO SUCH UNIT") == 2 and "there is no unit vllm-reel.service on this host" in ran.out


def test_check_mode_shows_a_reset_and_touches_nothing(on: Programs, tmp_path: Path) -> None:
    on.host.gpu.set(6, held_mib=7000)
    planned = reclaim(on.host, "--check", timeout=4, reset="if_needed")
    assert planned["changed"] and planned["resets"] == [{"gpu": 6, "done": False, "detail": "it would be reset"}]
    arguments = ("--check", "--limit", "localhost,gpu01", "-e", json.dumps({"gpu_reclaim_reset": "if_needed"}))
    ran = playbook("gpu_cleanup", *arguments, reports=tmp_path)
    assert "GPU 6 (would reset)" in ran.expect(0).out and "would free" in ran.out
    assert on.host.gpu.used_mib(6) >= 7000
    assert reclaim(on.host, "--check", timeout=4)["resets"] == []
