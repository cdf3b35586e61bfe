# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""gpu_reclaim and units in every state that systemd knows, on real units."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
from e2e.playbook import Ran, playbook
from e2e.programs import Programs
from e2e.reclaims import put_right, reclaim

from lab import Host, Lab

STATES = ("ActiveState", "SubState", "InvocationID", "NRestarts")


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


def unit(on: Programs, name: str, text: str) -> None:
    """Write a unit for this boot."""
    on.host.write(f"/run/systemd/system/{name}", text)
    on.host.run("systemctl daemon-reload")


def holding(on: Programs, gpu: int, more: str = "", mib: int = 50000, before: str = "") -> str:
    """The text of a service that holds memory."""
    return f"[Service]\n{before}ExecStart=/usr/bin/python3 {on.client} --gpu {gpu} --mib {mib}\n{more}\n"


def until(what: Any, seconds: float = 15.0) -> None:
    """Wait until something is true."""
    deadline = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def held(on: Programs, gpu: int) -> None:
    """Wait until a GPU is in use."""
    until(lambda: on.host.gpu.used_mib(gpu) >= 50000)


def stopped(result: dict[str, Any]) -> list[tuple[str, str]]:
    """What was stopped and how."""
    return [(each["unit"], each["result"]) for each in result["stopped_units"]]


@pytest.mark.parametrize("kill_mode", ["process", "none"])
def test_what_a_kill_mode_leaves_behind_is_swept(on: Programs, kill_mode: str) -> None:
    child = f"/usr/bin/python3 {on.client} --gpu 1 --mib 50000 --ignore-term"
    unit(on, "train.service", f"[Service]\nExecStart=/bin/sh -c '{child} & exec sleep 300'\nKillMode={kill_mode}\nRestart=always\n")
    on.host.run("systemctl start train")
    held(on, 1)
    result = reclaim(on.host, scope="services", services=["train"], grace=1)
    assert result["freed"] and not result["failed"]
    assert [name for name, _how in stopped(result)] == ["train.service"]
    assert on.host.run("pgrep -f [c]lient.py", check=False).stdout == ""


def test_a_stop_without_an_end_is_ended(on: Programs) -> None:
    """TimeoutStopSec=infinity, and a stop that somebody else asked for hangs already (deactivating)."""
    unit(on, "train.service", holding(on, 0, "TimeoutStopSec=infinity\nRestart=always").replace("50000", "50000 --ignore-term"))
    on.host.run("systemctl start train")
    held(on, 0)
    on.host.run("systemctl stop --no-block train")
    assert on.host.systemctl_show("train", STATES)["ActiveState"] == "deactivating"
    result = reclaim(on.host, scope="all", grace=1)
    assert result["freed"] and stopped(result) == [("train.service", "killed")]
    assert result["stopped_units"][0]["seconds"] < 4 and on.main_pid("train") == 0


def test_a_unit_that_is_activating_is_stopped_when_it_is_named(on: Programs) -> None:
    before = f"ExecStartPre=/usr/bin/python3 {on.client} --gpu 0 --mib 50000\nTimeoutStartSec=infinity\n"
    unit(on, "train.service", holding(on, 0, "Restart=always", before=before))
    on.host.run("systemctl start --no-block train")
    held(on, 0)
    assert on.host.systemctl_show("train", STATES)["SubState"] == "start-pre"
    left = reclaim(on.host, timeout=5)
    assert left["failed"] and "which is active" in left["msg"] and not left["changed"]
    result = reclaim(on.host, scope="services", services=["train"])
    assert result["freed"] and stopped(result)[0][0] == "train.service"
    assert on.host.systemctl_show("train", STATES)["ActiveState"] in ("inactive", "failed")


def test_a_unit_between_two_restarts_is_stopped_when_it_is_named(on: Programs) -> None:
    unit(on, "train.service", "[Service]\nExecStart=/bin/false\nRestart=always\nRestartSec=60\n")
    on.host.run("systemctl start train", check=False)
    until(lambda: on.host.systemctl_show("train", STATES)["SubState"].startswith("auto-restart"))
    result = reclaim(on.host, scope="services", services=["train"])
    assert result["freed"] and stopped(result) == [("train.service", "stopped")]
    assert on.host.systemctl_show("train", STATES)["ActiveState"] in ("inactive", "failed")


def test_one_instance_of_a_template_goes_and_the_other_stays(on: Programs) -> None:
    unit(on, "train@.service", holding(on, 0).replace("--gpu 0", "--gpu %i"))
    on.host.run("systemctl start train@2 train@3")
    held(on, 2)
    held(on, 3)
    before = on.host.systemctl_show("train@3.service", STATES)
    result = reclaim(on.host, scope="all", gpus=[2])
    assert result["freed"] and stopped(result) == [("train@2.service", "stopped")]
    assert on.host.systemctl_show("train@3.service", STATES) == before
    result = reclaim(on.host, scope="services", services=["train@3"])
    assert result["freed"] and stopped(result) == [("train@3.service", "stopped")]


def test_what_a_timer_starts_again_is_reported_with_the_timer(on: Programs) -> None:
    unit(on, "train.service", holding(on, 0))
    unit(on, "train.timer", "[Timer]\nOnActiveSec=1ms\nOnUnitInactiveSec=300ms\nAccuracySec=1ms\n")
    on.host.run("systemctl start train.timer")
    held(on, 0)
    result = reclaim(on.host, scope="services", services=["train"], settle=2, timeout=25)
    assert result["failed"] and not result["freed"]
    assert "started again each time it is stopped, by train.timer" in result["msg"]
    on.host.run("systemctl stop train.timer")
    assert reclaim(on.host, scope="services", services=["train"])["freed"]


# Connections that wait at the socket, or a file that is there, start the unit again in the moment in which it is down.
ACTIVATED = {
    "socket": ("[Socket]\nListenStream=127.0.0.1:4711\n", "while :; do (exec 3<>/dev/tcp/127.0.0.1/4711) 2>/dev/null; sleep 0.1; done"),
    "path": ("[Path]\nPathExists=/run/train.wanted\n", "touch /run/train.wanted; sleep 600"),
}


@pytest.mark.parametrize("kind", ACTIVATED)
def test_what_a_socket_or_a_path_starts_again_is_reported_with_it(on: Programs, kind: str) -> None:
    text, caller = ACTIVATED[kind]
    unit(on, "train.service", holding(on, 0))
    unit(on, f"train.{kind}", text)
    on.host.run(f"systemctl start train.{kind}")
    on.host.run(["systemd-run", "--quiet", "--unit=train-caller", "bash", "-c", caller])
    held(on, 0)
    result = reclaim(on.host, scope="services", services=["train"], settle=2, timeout=25)
    assert result["failed"] and not result["freed"], result
    assert f"started again each time it is stopped, by train.{kind}" in result["msg"]
    assert on.host.systemctl_show(f"train.{kind}", ("ActiveState",))["ActiveState"] == "active", "it must not have run into its limit"
    on.host.run(f"systemctl stop train-caller train.{kind}; rm -f /run/train.wanted")
    assert reclaim(on.host, scope="services", services=["train"])["freed"]


def test_a_unit_that_takes_an_innocent_one_along_is_left_alone(on: Programs) -> None:
    unit(on, "train.service", holding(on, 0))
    unit(on, "neighbour.service", "[Unit]\nBindsTo=train.service\nAfter=train.service\n" + holding(on, 4))
    on.host.run("systemctl start train neighbour")
    held(on, 4)
    before = on.host.systemctl_show("neighbour", STATES)
    for scope in ({"scope": "all", "gpus": [0]}, {"scope": "services", "services": ["train"]}):
        planned = reclaim(on.host, "--check", **scope)
        assert planned["stopped_units"] == [] and not planned["changed"]
        result = reclaim(on.host, timeout=6, **scope)
        assert result["failed"] and not result["changed"]
        assert "systemd would stop neighbour.service with it" in result["msg"]
    assert on.host.systemctl_show("neighbour", STATES) == before
    result = reclaim(on.host, scope="services", services=["train", "neighbour"])
    assert result["freed"] and {name for name, _how in stopped(result)} == {"train.service", "neighbour.service"}


def test_units_that_are_not_there_or_hold_other_gpus(on: Programs) -> None:
    neighbour = on.service("neighbour", [4])
    result = reclaim(on.host, scope="services", services=["nosuch", "neighbour"], gpus=[0, 1])
    assert (result["failed"], result["freed"], result["changed"]) == (False, True, False)
    reasons = {each["name"]: each["reason"] for each in result["left_alone"]}
    assert reasons == {
        "nosuch.service": "there is no such unit on this host", "neighbour.service": "it holds GPU 4, none of those selected",
    }
    assert on.alive(neighbour.pid)


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("slurm/uid_1000/job_77/step_0", "Slurm's job 77; to end it: scancel 77"),
        ("htcondor/condor_var_lib_condor_execute_slot1_1@gpu01", "slot1_1@gpu01; end the job through its scheduler"),
        ("lsf/cluster1/job.1234.4711.1690000000", "LSF's job 1234; to end it: bkill '1234'"),
        ("kubepods.slice/kubepods-burstable.slice/cri-containerd-" + "ab" * 32 + ".scope", "crictl stop " + "ab" * 6),
        ("kubepods/burstable/pod1/" + "cd" * 32, "delete or scale down its pod"),
    ],
)
def test_jobs_of_schedulers_and_pods_are_named_and_left_alone(on: Programs, path: str, words: str) -> None:
    job = on.job([0])
    on.host.run(f"mkdir -p /sys/fs/cgroup/{path} && echo {job.pid} >/sys/fs/cgroup/{path}/cgroup.procs")
    result = reclaim(on.host, scope="all", timeout=6)
    assert result["failed"] and not result["changed"] and words in result["msg"] and on.alive(job.pid)


def test_the_whole_call_ends_in_time_however_long_the_grace(on: Programs) -> None:
    on.orphan([0], options="--ignore-term")
    begun = time.monotonic()
    result = reclaim(on.host, grace=60, timeout=7, settle=0.3)
    assert result["freed"] and result["signalled"][0]["signals"] == ["TERM", "KILL"]
    assert result["timings"]["total"] < 7
    assert time.monotonic() - begun < 45, "beside the start of Ansible on a busy machine, far below the grace"


def test_a_limit_of_zero_is_held_against_the_driver_not_rounded(on: Programs) -> None:
    result = reclaim(on.host, gpus=[7], max_used_mib=0, timeout=2)
    assert result["failed"] and not result["freed"] and "at most 0 count as free" in result["msg"]


def test_without_root_nothing_is_touched(on: Programs) -> None:
    worker = on.orphan([0])
    on.host.run("id alice 2>/dev/null || useradd --create-home alice")
    result = reclaim(on.host, "--become", "--become-method", "su", "--become-user", "alice")
    assert result["failed"] and "Set become: true" in result["msg"] and on.alive(worker.pid)


def test_a_task_whose_own_ancestor_has_a_gpu_open_spares_it(on: Programs) -> None:
    """A login from within a notebook, or a wrapper around Python that has the driver open."""
    folder, _slash, _name = on.client.rpartition("/")
    on.host.write(
        "/root/wrapped-python",
        f"#!/usr/bin/python3\nimport subprocess, sys\nsys.path.insert(0, '{folder}')\nimport client\n"
        "held = client.Allocation('0', 500, 'C')\nsys.exit(subprocess.call(['/usr/bin/python3', *sys.argv[1:]]))\n",
    )
    on.host.run("chmod +x /root/wrapped-python")
    job = on.job([0])
    result = reclaim(on.host, "-e", "ansible_python_interpreter=/root/wrapped-python", scope="all")
    assert result["freed"] and [each["pid"] for each in result["signalled"]] == [job.pid]
    assert "protected: it runs this task" in {each["reason"] for each in result["left_alone"]}


def serving(on: Programs, load_seconds: float) -> None:
    """Start a whole server by hand; it takes its time to load."""
    on.host.vllm.behave("*", load_seconds=load_seconds, worker_mib=60000)
    on.host.write(
        "/etc/systemd/system/vllm-m.service",
        "[Service]\nExecStart=/opt/vllm/bin/vllm serve /models/MiniMax-M2.5 --served-model-name m"
        " --tensor-parallel-size 4 --max-model-len 8192 --port 8000 --gpu-memory-utilization 0.7\n"
        "Environment=CUDA_VISIBLE_DEVICES=0,1,2,3 HOME=/root HF_HUB_OFFLINE=1\nKillMode=mixed\n",
    )
    on.host.run("systemctl daemon-reload; systemctl start vllm-m")


def test_nothing_is_ended_beside_a_server_that_loads(on: Programs) -> None:
    beside, elsewhere = on.orphan([3], 20000), on.orphan([5], 20000)
    serving(on, load_seconds=60)  # two runs of Ansible fit in, also on a busy machine
    until(lambda: on.host.gpu.used_mib(3) > 20000 + 100)
    before = on.host.systemctl_show("vllm-m", STATES)
    planned = reclaim(on.host, "--check")
    assert [each["pid"] for each in planned["signalled"]] == [elsewhere.pid]
    result = reclaim(on.host, timeout=6)
    assert [each["pid"] for each in result["signalled"]] == [elsewhere.pid] and on.alive(beside.pid)
    assert "not now: vllm-m.service loads its model on GPU 0, 1, 2, 3 since" in result["msg"]
    asked = "python3 -c 'import urllib.request as u; u.urlopen(\"http://127.0.0.1:8000/health\")'"
    until(lambda: on.host.run(asked, check=False).returncode == 0, 150)
    result = reclaim(on.host, accept="in_use")
    assert [each["pid"] for each in result["signalled"]] == [beside.pid]
    assert on.host.systemctl_show("vllm-m", STATES) == before
    # Named itself, it goes while it loads as well.
    on.host.run("systemctl stop vllm-m")
    serving(on, load_seconds=60)
    until(lambda: on.host.gpu.used_mib(3) > 100)
    result = reclaim(on.host, scope="services", services=["vllm-m"])
    assert result["freed"] and stopped(result)[0][0] == "vllm-m.service"


def test_a_swap_under_way_is_not_disturbed(on: Programs) -> None:
    host = on.host
    orphan = on.orphan([7], 20000)
    # It is under way for as long as this test likes, however slow the machine: until the server says that it is well.
    host.vllm.behave("*", load_seconds=2, health=503)
    ran: list[Ran] = []
    arguments = ("--limit", f"localhost,{host.name}", "-e", "model=qwen3-0.6b")
    swap = threading.Thread(target=lambda: ran.append(playbook("swap_model", *arguments)))
    swap.start()
    try:
        until(lambda: host.run("grep -q vllm_service /run/gpufleet/change.lock", check=False).returncode == 0, 90)
        for flags, scope in ((("--check",), "all"), ((), "all"), ((), "orphans")):
            result = reclaim(host, *flags, scope=scope, timeout=6)
            assert swap.is_alive(), "the swap was to be under way:\n" + "".join(each.out for each in ran)
            assert result["failed"] and not result["changed"] and not result["freed"] and on.alive(orphan.pid)
            assert "Another run is changing the services of this host right now: vllm_service started" in result["msg"]
            assert json.loads(json.dumps(result["lock_holder"]))["pid"] > 1 and ", since 20" in result["msg"]
    finally:
        host.vllm.clear()
        swap.join(180)
    ran[0].expect(0)
    assert reclaim(host, accept="in_use")["freed_mib"] == 20000
    host.run("systemctl stop 'vllm-*'; rm -f /etc/systemd/system/vllm-*; rm -rf /etc/vllm; systemctl daemon-reload")
