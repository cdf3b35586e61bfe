# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""swap_model.yml on real systemd hosts, over SSH: the old model out, the memory proven free, the new model in."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from chaos.catalogue import entries_with
from e2e.playbook import ROOT, Ran, playbook

from lab import Host, Lab

OLD, NEW = "minimax-m2.5", "kimi-k2.5-int4"
OLD_UNIT, NEW_UNIT = f"vllm-{OLD}.service", f"vllm-{NEW}.service"
ORPHAN_MIB = 96801
PROPERTIES = ("ActiveState", "SubState", "InvocationID", "NRestarts", "MainPID", "NeedDaemonReload")


def swap(model: str, *arguments: str, **more: Any) -> Ran:
    return playbook("swap_model", "-e", f"model={model}", *arguments, **more)


def complete(host: Host, model: str, port: int = 8000) -> str:
    """One real completion from the outside, as a user of the fleet would ask for it."""
    body = json.dumps({"model": model, "prompt": "Hello", "max_tokens": 4}).encode()
    request = urllib.request.Request(
        f"http://{host.address}:{port}/v1/completions", data=body, headers={"Content-Type": "application/json"}
    )
    with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=10) as response:
        answer = json.load(response)
    assert answer["model"] == model
    return str(answer["choices"][0]["text"])


def unit(host: Host, name: str) -> dict[str, str]:
    """A unit as systemd has it, and under ``boot`` what the disk says of its start at boot."""
    boot = host.run(["systemctl", "is-enabled", name], check=False).stdout.strip()
    return {**host.systemctl_show(name, PROPERTIES), "boot": boot}


def reloads(host: Host) -> int:
    return host.journal(None, "_PID=1", "-o", "cat").count("Reloading")


def fingerprint(host: Host) -> str:
    """Everything that a check mode must not change."""
    return str(host.run(
        "find /etc/systemd/system /etc/vllm /usr/local/lib/gpufleet /var/lib/vllm /var/lib/gpufleet /run/gpufleet "
        "-printf '%p %y %m %u %s %T@\\n' 2>/dev/null | sort; cat /etc/passwd; ls /proc | grep -c '^[0-9]*$' > /dev/null; "
        f"systemctl show -p InvocationID,ActiveState,UnitFileState {OLD_UNIT} {NEW_UNIT}"
    ).stdout)


@pytest.fixture
def fleet(lab: Lab) -> Iterator[dict[str, Host]]:
    """Three clean hosts."""
    lab.reset()
    yield lab.hosts


@pytest.fixture
def serving(fleet: dict[str, Host]) -> dict[str, Host]:
    """Three hosts that serve the old model."""
    swap(OLD, "-e", "batch=3").expect()
    for host in fleet.values():
        complete(host, OLD)
    return fleet


def test_a_fleet_swaps_and_a_second_run_touches_nothing(serving: dict[str, Host], tmp_path: Path) -> None:
    before = {name: fingerprint(host) for name, host in serving.items()}

    plan = swap(NEW, "--check", "--diff").expect()
    assert {name: fingerprint(host) for name, host in serving.items()} == before, plan.out
    for text in (f"stop {OLD_UNIT}", f"start {NEW_UNIT}", "tensor-parallel-size: 8", "prove GPU"):
        assert text in plan.out, plan.out
    for host in serving.values():
        host.gpu.reset_calls()

    done = swap(NEW, reports=tmp_path).expect()
    assert done.report is not None
    for name, host in serving.items():
        old, new = unit(host, OLD_UNIT), unit(host, NEW_UNIT)
        assert (old["ActiveState"], old["boot"]) == ("inactive", "disabled")
        assert (new["ActiveState"], new["SubState"], new["boot"]) == ("active", "running", "enabled")
        complete(host, NEW)
        result = done.report["hosts"][name]
        assert result["changed"] and result["ready"] and result["served_models"] == [NEW]
        assert [entry["unit"] for entry in result["replaced"]] == [OLD_UNIT]
        _free_before_the_start(host)

    invocations = {name: unit(host, NEW_UNIT)["InvocationID"] for name, host in serving.items()}
    reloaded = {name: reloads(host) for name, host in serving.items()}
    again = swap(NEW).expect()
    assert set(again.changed.values()) == {0}, again.out
    assert {name: unit(host, NEW_UNIT)["InvocationID"] for name, host in serving.items()} == invocations
    assert {name: reloads(host) for name, host in serving.items()} == reloaded
    assert min(reloaded.values()) > 0, "the count of reloads counts nothing"


def _free_before_the_start(host: Host) -> None:
    """The driver had let go of the old model's memory on every GPU before the new server's process began."""
    begun = int(host.systemctl_show(NEW_UNIT, ["ExecMainStartTimestampMonotonic"])["ExecMainStartTimestampMonotonic"]) / 1e6
    freed: dict[int, float] = {}
    for release in host.gpu.releases():
        freed[release.gpu] = max(freed.get(release.gpu, 0.0), release.freed_at)
    assert set(freed) >= {0, 1, 2, 3}
    assert max(freed.values()) < begun


def test_an_old_server_that_ignores_sigterm_is_ended_and_replaced(serving: dict[str, Host]) -> None:
    for host in serving.values():
        host.vllm.behave(OLD, ignore_sigterm=True, workers_ignore_sigterm=True)
    done = swap(NEW, "-e", "batch=3", *entries_with(NEW, stop_timeout=3)).expect()
    for host in serving.values():
        assert unit(host, OLD_UNIT)["ActiveState"] in ("inactive", "failed"), done.out
        complete(host, NEW)
        _free_before_the_start(host)


def _hold_96801_mib(fleet: dict[str, Host]) -> None:
    """The old server's workers each hold as much as the founding story's did, and outlive their server."""
    for host in fleet.values():
        host.vllm.behave(OLD, worker_mib=ORPHAN_MIB, orphan_workers=True, load_seconds=0.3)
        host.run(["systemctl", "kill", "--signal=KILL", OLD_UNIT])
    _wait_serving(fleet, OLD)
    for host in fleet.values():
        # Out of the unit's cgroup, where a stop of the unit does not reach them.
        strays = "/sys/fs/cgroup/strays"
        host.run(f"mkdir {strays} && for pid in $(pgrep -f '^VLLM::Worker'); do echo $pid > {strays}/cgroup.procs; done")
        assert all(host.gpu.used_mib(index) >= ORPHAN_MIB for index in range(4)), "the workers hold less than they should"


def test_orphaned_workers_that_hold_96801_mib_each_are_ended(serving: dict[str, Host]) -> None:
    _hold_96801_mib(serving)
    for host in serving.values():
        host.run(["systemctl", "stop", OLD_UNIT])
        assert all(host.gpu.used_mib(index) >= ORPHAN_MIB for index in range(4)), "nothing was orphaned"
    done = swap(NEW, "-e", "batch=3").expect()
    assert "end pid" in done.out
    for host in serving.values():
        complete(host, NEW)
        _free_before_the_start(host)


def test_workers_orphaned_by_the_stop_itself_are_ended(serving: dict[str, Host]) -> None:
    _hold_96801_mib(serving)
    swap(NEW, "-e", "batch=3").expect()
    for host in serving.values():
        complete(host, NEW)
        _free_before_the_start(host)


def test_what_cannot_work_is_refused_while_the_old_model_serves_on(serving: dict[str, Host]) -> None:
    before = {name: unit(host, OLD_UNIT)["InvocationID"] for name, host in serving.items()}
    refused = swap("minimax-m2.5-tp8").expect(rc=2)
    assert "1536" in refused.out and "192" in refused.out and "128" in refused.out, refused.out
    for name, host in serving.items():
        assert unit(host, OLD_UNIT)["InvocationID"] == before[name]
        complete(host, OLD)
        assert not host.exists("/etc/systemd/system/vllm-minimax-m2.5-tp8.service")


def test_a_new_model_that_dies_at_load_is_rolled_back_and_the_rest_of_the_fleet_is_left_alone(
    serving: dict[str, Host], tmp_path: Path
) -> None:
    first, *rest = serving
    serving[first].vllm.behave(NEW, oom_warmup=True)
    before = {name: unit(host, OLD_UNIT)["InvocationID"] for name, host in serving.items()}
    done = swap(NEW, reports=tmp_path).expect(rc=2)
    assert done.report is not None
    result = done.report["hosts"][first]
    assert result["rolled_back"] is True
    assert result["diagnosis"]["kind"] == "oom_warmup"
    assert result["diagnosis"]["evidence"] and result["diagnosis"]["advice"]
    complete(serving[first], OLD)
    assert unit(serving[first], OLD_UNIT)["boot"] == "enabled"
    assert unit(serving[first], NEW_UNIT)["ActiveState"] != "active"
    for name in rest:
        assert done.report["hosts"][name] == {"untouched": True, "serving_before": [OLD]}
        assert unit(serving[name], OLD_UNIT)["InvocationID"] == before[name]
        complete(serving[name], OLD)


def test_a_new_model_that_dies_soon_after_it_served_is_undone_while_it_is_watched(serving: dict[str, Host], tmp_path: Path) -> None:
    first, *rest = serving
    models = yaml.safe_load((ROOT / "inventories" / "lab" / "group_vars" / "gpu_hosts.yml").read_text(encoding="utf-8"))["vllm_models"]
    watched = json.dumps({"vllm_models": {NEW: {**models[NEW], "steady_time": 5}}})
    serving[first].vllm.behave(NEW, dies_after=1)
    done = swap(NEW, "-e", watched, reports=tmp_path).expect(rc=2)
    assert done.report is not None
    assert [row["result"] for row in done.report["rows"]] == ["rolled back", *("untouched" for _name in rest)]
    assert "did not go on serving" in done.report["hosts"][first]["msg"] and unit(serving[first], OLD_UNIT)["boot"] == "enabled"
    complete(serving[first], OLD)
    serving[first].vllm.clear()
    done = swap(NEW, "-e", watched, "-e", f"target={first}", reports=tmp_path).expect()
    assert done.report is not None and done.report["rows"][0]["phases_s"]["steady"] >= 5 > done.report["rows"][0]["downtime_s"]
    complete(serving[first], NEW)


def test_a_host_that_does_not_answer_stops_the_swap_and_stands_in_the_report(serving: dict[str, Host], tmp_path: Path) -> None:
    first, lost, *_rest = serving
    before = {name: unit(host, OLD_UNIT)["InvocationID"] for name, host in serving.items()}
    serving[lost].cut_network()
    try:
        done = swap(NEW, reports=tmp_path, env={"ANSIBLE_TIMEOUT": "5", "ANSIBLE_SSH_ARGS": "-o ControlMaster=no"}).expect(rc=2)
    finally:
        serving[lost].restore_network()
    assert done.report is not None
    assert done.report["hosts"][lost]["unreachable"] is True
    assert done.report["hosts"][first] == {"untouched": True, "serving_before": [OLD]}
    for name, host in serving.items():
        assert unit(host, OLD_UNIT)["InvocationID"] == before[name]
        complete(host, OLD)


def test_a_connection_lost_in_the_middle_is_told_and_the_same_command_completes_the_swap(
    serving: dict[str, Host], tmp_path: Path
) -> None:
    first, *rest = serving
    serving[first].vllm.behave(NEW, load_seconds=8)
    running = subprocess.Popen(
        [str(Path(sys.executable).parent / "ansible-playbook"), "playbooks/swap_model.yml", "-i", "inventories/lab", "-e", f"model={NEW}",
         "-e", f"report_dir={tmp_path}", "-e", "vllm_swap_reconnect_timeout=3"],
        cwd=ROOT, env={**os.environ, "ANSIBLE_NOCOLOR": "1", "ANSIBLE_SSH_ARGS": "-o ControlMaster=no -o ServerAliveInterval=1"},
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )
    serving[first].run(f"for i in $(seq 600); do systemctl is-active -q {NEW_UNIT} && exit 0; sleep 0.05; done; exit 1")
    serving[first].cut_network()
    out = running.communicate(timeout=120)[0]
    serving[first].restore_network()
    assert running.returncode == 2, out
    assert "unreachable" in out and "Run the same command again" in " ".join(out.split()), out
    assert json.loads(next(tmp_path.glob("*.json")).read_text())["hosts"][first]["unreachable"] is True
    for name in rest:
        complete(serving[name], OLD)
    _wait_serving({first: serving[first]}, NEW)
    swap(NEW).expect()
    for host in serving.values():
        complete(host, NEW)
    assert set(swap(NEW).expect().changed.values()) == {0}


def _wait_serving(fleet: dict[str, Host], model: str) -> None:
    for host in fleet.values():
        deadline = time.monotonic() + 60
        while True:
            try:
                complete(host, model)
                break
            except OSError:
                assert time.monotonic() < deadline, f"{host.name} does not serve {model}"
                time.sleep(0.2)
