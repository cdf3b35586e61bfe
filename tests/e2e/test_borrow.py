# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""borrow_gpus.yml on real systemd hosts: what served before serves after, whatever the command did and whoever died meanwhile."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from e2e.adhoc import module
from e2e.changes import (
    OLD,
    OLD_UNIT,
    PROGRESS,
    RECORD,
    UNIT,
    at_rest,
    at_stage,
    boot_state,
    inside,
    prepared,
    service,
    serving,
    stage,
)
from e2e.playbook import ROOT, Ran, playbook
from e2e.programs import Programs

from lab import Host, Lab

SAYS = "echo gpus=$CUDA_VISIBLE_DEVICES order=$CUDA_DEVICE_ORDER uuids=$GPUFLEET_GPU_UUIDS; echo 5%n ${HOME} >&2; echo 187.21 GB/s"
SLEEPS = "echo begun; sleep 3007; echo never"


@pytest.fixture(params=["gpu01", "gpu03"], ids=["bookworm", "trixie"])
def host(lab: Lab, request: pytest.FixtureRequest) -> Iterator[Host]:
    """A host of each distribution that serves on GPU 4."""
    found = prepared(lab.hosts[request.param], 1.0)
    yield found
    found.run("systemctl stop 'gpufleet-borrow-*' 'neighbour*' 2>/dev/null; true", check=False)


def borrow(host: Host, command: Any, *words: str, **more: Any) -> Ran:
    """The playbook on one host; GPU 4 unless ``gpus`` says otherwise."""
    told = {"command": command, "gpus": [4], "gpu_borrow_grace": 2, "gpu_borrow_stop_timeout": 20}
    reports = more.pop("reports", None)
    return playbook("borrow_gpus", "-e", json.dumps({**told, **more}), "-e", f"target={host.name}", *words, reports=reports)


def result_of(ran: Ran, host: Host) -> dict[str, Any]:
    assert ran.report is not None, ran.out
    found: dict[str, Any] = ran.report["hosts"][host.name]
    return found


def at_peace(host: Host) -> None:
    """The old server serves, starts at boot, and nothing of a borrowing is left."""
    assert serving(host) == "old" and boot_state(host, OLD_UNIT) == "enabled" and not host.exists(RECORD)
    units = host.enter("systemctl list-units --all --no-legend 'gpufleet-borrow-*'").stdout
    assert units.strip() == "", units
    assert host.enter("pgrep -f '[s]leep 3007' || true").stdout.split() == []


def marks(host: Host) -> str:
    return str(host.run("find /etc/systemd/system /etc/vllm /var/lib/gpufleet /usr/local/lib/gpufleet -printf '%p %m %u %s %T@\\n' | sort;"
                        f" systemctl show -p InvocationID,ActiveState {OLD_UNIT}").stdout)  # fmt: skip


def test_the_command_runs_on_the_free_gpus_and_what_served_serves_again(host: Host, tmp_path: Path) -> None:
    neighbour = Programs(host).service("neighbour", gpus=(2,), mib=20000, properties=())
    before = marks(host)
    planned = borrow(host, SAYS, "--check", "--diff", reports=tmp_path / "check").expect()
    assert "would run" in planned.out and f"stop {OLD_UNIT}" in planned.out and planned.report is None
    assert marks(host) == before, "check mode touches nothing"

    done = borrow(host, SAYS, reports=tmp_path).expect()
    found = result_of(done, host)
    assert found["outcome"] == "succeeded" and found["rc"] == 0 and found["put_back"] and found["changed"], found
    uuid = found["gpus_before"][0]["uuid"]
    assert found["output"].splitlines() == [f"gpus=4 order=PCI_BUS_ID uuids={uuid}", "5%n /root", "187.21 GB/s"], found["output"]
    assert [(each["name"], each["back"], each["served"]) for each in found["services"]] == [("old", True, True)]
    assert found["gpus_before"][0]["used_mib"] > 10000 and found["left_behind"] == []
    (row,) = done.report["rows"] if done.report else [{}]
    assert (row["result"], row["last_line"], row["services"]) == ("succeeded", "187.21 GB/s", "old serves again")
    assert "187.21 GB/s" in done.out and "bringing back what served before" in done.out
    assert Programs(host).alive(neighbour.pid), "a neighbour on another GPU was touched"
    at_peace(host)

    before = marks(host)
    again = borrow(host, SAYS, reports=tmp_path / "again").expect()
    assert again.changed == {host.name: 0} and marks(host) == before, "a result that stands is not made again"
    (row,) = again.report["rows"] if again.report else [{}]
    assert (row["result"], row["services"]) == ("stands", None) and "its result stands" in row["detail"], row


def test_a_free_gpu_is_really_free_for_the_command(host: Host, tmp_path: Path) -> None:
    """The command sees what the driver says: nothing but itself on the borrowed GPU."""
    words = ["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits", "--id=4"]
    done = borrow(host, words, reports=tmp_path).expect()
    found = result_of(done, host)
    assert int(found["output"].split()[0]) <= 1024, found["output"]
    at_peace(host)


@pytest.mark.parametrize(
    ("command", "word", "said"),
    [
        ("echo about to fail; exit 3", "FAILED", "it ended with exit status 3"),
        (["/opt/no/such/benchmark", "--all"], "FAILED", "a command that isn't there"),
        ("kill -SEGV $$", "KILLED", "ended by signal 11"),
    ],
    ids=["fails", "is not there", "crashes"],
)
def test_a_command_that_fails_fails_the_run_and_the_service_is_back(
    host: Host, tmp_path: Path, command: Any, word: str, said: str
) -> None:
    done = borrow(host, command, reports=tmp_path).expect(2)
    found = result_of(done, host)
    (row,) = done.report["rows"] if done.report else [{}]
    assert row["result"] == word and said in row["detail"] and found["put_back"], row
    at_peace(host)


def test_a_command_that_hangs_is_ended_as_a_whole(host: Host, tmp_path: Path) -> None:
    """It and its children, deaf to SIGTERM as well."""
    hangs = "trap '' TERM; (trap '' TERM; sleep 3007) & echo waiting; wait; sleep 3007"
    done = borrow(host, hangs, reports=tmp_path, gpu_borrow_timeout=3).expect(2)
    found = result_of(done, host)
    assert found["outcome"] == "timed out" and "limit of 3 s" in found["msg"] and found["output"] == "waiting\n", found
    assert found["put_back"] and 3 <= found["seconds"] < 30
    at_peace(host)


def test_what_it_leaves_on_the_gpus_is_ended_and_nobody_elses(host: Host, tmp_path: Path) -> None:
    programs = Programs(host)
    neighbour = programs.service("neighbour", gpus=(2,), mib=20000, name="bench", properties=())
    leaves = f"setsid /usr/bin/python3 {programs.client} --gpu 4 --mib 30000 --name bench --ignore-term & sleep 2; echo done"
    done = borrow(host, leaves, reports=tmp_path).expect()
    found = result_of(done, host)
    assert [each["name"] for each in found["left_behind"]] == ["bench"], found["left_behind"]
    assert found["left_behind"][0]["gpus"][0]["gpu"] == 4 and found["left_behind"][0]["gpus"][0]["used_mib"] >= 30000
    assert not programs.alive(found["left_behind"][0]["pid"]) and programs.alive(neighbour.pid)
    assert "behind" in done.out
    at_peace(host)


def test_what_it_leaves_in_a_unit_of_its_own_is_named_and_the_service_comes_back_without_it(host: Host, tmp_path: Path) -> None:
    """It is nobody's to end: no part of the command any more, and no orphan."""
    again = service(host, **{**OLD, "guard": {"timeout": 4}})
    assert not again["failed"] and again["ready"], again
    holds = f"/usr/bin/python3 {Programs(host).client} --gpu 4 --mib 70000 --name bench"
    done = borrow(host, f"systemd-run --quiet --unit=neighbour-holder {holds}; sleep 3", reports=tmp_path).expect(2)
    found = result_of(done, host)
    (row,) = done.report["rows"] if done.report else [{}]
    assert row["result"] == "NOT PUT BACK" and not found["put_back"], row
    for said in ("On its GPUs: pid", "neighbour-holder.service holds 70,", "on GPU 4", "it comes back by itself"):
        assert said in found["msg"] and said in done.out, found["msg"]
    host.run("systemctl stop neighbour-holder")
    assert serving(host) == "old"
    at_peace(host)


def test_somebody_elses_memory_is_named_and_nothing_is_stopped(host: Host) -> None:
    neighbour = Programs(host).service("neighbour", gpus=(4,), mib=4000, properties=())
    invocation = host.systemctl_show(OLD_UNIT, ("InvocationID",))
    refused = borrow(host, SAYS).expect(2)
    assert "somebody else is on them" in refused.out and str(neighbour.pid) in refused.out and "Nothing was touched" in refused.out
    assert host.systemctl_show(OLD_UNIT, ("InvocationID",)) == invocation and Programs(host).alive(neighbour.pid)
    assert serving(host) == "old"


def begun(host: Host, command: str, **more: Any) -> subprocess.Popen[str]:
    """The playbook on its way, in a process group of its own."""
    told = {"command": command, "gpus": [4], "gpu_borrow_grace": 2, "target": host.name, **more}
    alive = "-o ServerAliveInterval=5 -o ServerAliveCountMax=3"  # nothing else tells of a host whose power failed
    env = {**os.environ, "ANSIBLE_NOCOLOR": "1", "ANSIBLE_SSH_ARGS": "-o ControlMaster=no " + alive}
    words = [str(Path(sys.executable).parent / "ansible-playbook"), "playbooks/borrow_gpus.yml", "-i", "inventories/lab"]
    return subprocess.Popen([*words, "-e", json.dumps(told)], cwd=ROOT, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                            text=True, start_new_session=True)  # fmt: skip


RUNS = f"{at_stage('borrowing')} && pgrep -f '[s]leep 3007'"


def test_the_controller_may_die_and_the_same_command_follows(host: Host) -> None:
    command = "echo only once >> /run/borrow-count; echo begun; while [ ! -e /run/borrow-go ]; do sleep 0.1; done; echo went on"
    with begun(host, command) as running:
        inside(host, f"{at_stage('borrowing')} && test -e /run/borrow-count")
        os.kill(running.pid, signal.SIGKILL)
        refused = module(host, "gpu_borrow", "--check", command="other", gpus=["4"])
        assert refused["failed"] and "gpu_borrow of GPU 4" in refused["msg"] and "since 20" in refused["msg"], refused
        swap = service(host, name="new", model="/models/Qwen3-0.6B", gpus=["4"], port=8001, replace="conflicting")
        assert swap["failed"] and "gpu_borrow of GPU 4" in swap["msg"] and "begun by root from" in swap["msg"], swap
        attached = module(host, "gpu_borrow", command=command, gpus=["4"], grace=2, wait=False)
        assert attached["job"]["attached"], attached
        host.enter("touch /run/borrow-go")
        told = borrow_same(host, command)
        assert told["outcome"] == "succeeded" and "went on" in told["output"] and told["put_back"] and told["job"]["attached"], told
        assert host.read("/run/borrow-count") == "only once\n"
        at_peace(host)


def test_what_nobody_heard_of_is_told_to_the_same_command_and_not_run_again(host: Host) -> None:
    command = "echo run >> /run/borrow-count; while [ ! -e /run/borrow-go ]; do sleep 0.1; done; echo result $(wc -l < /run/borrow-count)"
    with begun(host, command) as running:
        inside(host, f"{at_stage('borrowing')} && test -e /run/borrow-count")
        os.kill(running.pid, signal.SIGKILL)  # its worker lives on, and follows
        host.enter("touch /run/borrow-go")
        at_rest(host)
        inside(host, "! pgrep -f '[c]hange.pyz attend'")
        at_peace(host)
        told = borrow_same(host, command)
        assert told["output"] == "result 1\n" and told["job"]["attached"], told
        again = borrow_same(host, command)
        assert again["output"] == "result 1\n" and not again["changed"] and "stands" in again["detail"], again
        anew = borrow_same(host, command, force=True)
        assert anew["output"] == "result 2\n" and anew["changed"] and not anew["job"]["attached"], anew


def borrow_same(host: Host, command: str, force: bool = False) -> dict[str, Any]:
    """What ``begun`` asks for, by the module through its action plugin."""
    return module(host, "gpu_borrow", command=command, gpus=["4"], grace=2, force=force)


def test_a_job_that_is_killed_finds_its_command_again(host: Host, tmp_path: Path) -> None:
    command = "echo run >> /run/borrow-count; while [ ! -e /run/borrow-go ]; do sleep 0.1; done; wc -l < /run/borrow-count"
    running = begun(host, command)
    inside(host, f"{at_stage('borrowing')} && test -e /run/borrow-count")
    host.enter(f"systemctl kill --signal=KILL {UNIT}")
    inside(host, f"grep -q '\"attempts\": 2' {RECORD}")
    host.enter("touch /run/borrow-go")
    out = running.communicate(timeout=120)[0]
    assert running.returncode == 0 and re.search(r"succeeded\s+4\s+0", out), out
    assert host.read("/run/borrow-count") == "run\n"
    at_peace(host)


def test_a_job_that_is_stopped_ends_the_command_and_puts_back(host: Host) -> None:
    running = begun(host, SLEEPS)
    inside(host, RUNS)
    host.enter(["systemctl", "stop", UNIT], timeout=90)
    at_peace(host)
    out = running.communicate(timeout=120)[0]
    assert running.returncode == 2 and "was asked to end" in out, out


def test_the_power_may_fail(host: Host) -> None:
    running = begun(host, SLEEPS, gpu_borrow_reconnect_timeout=300)
    inside(host, RUNS)
    host.power_cut()
    host.boot(wait=False)
    out = running.communicate(timeout=240)[0]
    assert running.returncode == 2 and "The host went down while its GPUs were borrowed" in out, out
    host.wait_ready()
    at_rest(host)
    at_peace(host)


def test_a_swap_that_is_under_way_is_not_disturbed(host: Host) -> None:
    with stage(host, "stopping"):
        begin = service(host, **{**OLD, "state": "restarted", "wait": False})
        assert begin["job"]["id"], begin
        inside(host, at_stage("stopping"))
        refused = borrow(host, SAYS).expect(2)
        assert "vllm_service restarted old" in refused.out and "begun by" in refused.out
    at_rest(host)
    assert host.exists(PROGRESS) and serving(host) == "old"


def test_a_slip_in_a_name_borrows_nothing(host: Host) -> None:
    invocation = host.systemctl_show(OLD_UNIT, ("InvocationID",))
    for words, said in (
        (["-e", "gpu=4"], "did you mean gpus"), (["-e", '{"command": ""}'], "no command is given"),
        (["-e", "user=nobody"], "did you mean gpu_borrow_user"),
    ):  # fmt: skip
        refused = playbook("borrow_gpus", "-e", '{"command": "true"}', *words, "-e", f"target={host.name}").expect(2)
        assert said in refused.out and "Nothing was touched" in refused.out, refused.out
    assert host.systemctl_show(OLD_UNIT, ("InvocationID",)) == invocation
