# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""vllm_service on real hosts: every state from every state, and nothing but what is declared."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from e2e.adhoc import module
from e2e.playbook import ROOT
from e2e.programs import Programs

from lab import Host, Lab

UNIT = "vllm-small.service"
SMALL: dict[str, Any] = {
    "name": "small", "model": "/models/Qwen3-0.6B", "gpus": [4], "port": 8001,
    "args": {"max_model_len": 40960, "gpu_memory_utilization": 0.5},
}
OTHER: dict[str, Any] = {**SMALL, "name": "other", "gpus": [5], "port": 8002}
FILES = "find /etc/systemd/system /etc/vllm /usr/local/lib/gpufleet -printf '%p %y %m %u %s %T@\\n' 2>/dev/null | sort"


def service(host: Host, *flags: str, **parameters: Any) -> dict[str, Any]:
    return module(host, "vllm_service", *flags, **{**SMALL, **parameters})


def show(host: Host, unit: str = UNIT) -> dict[str, str]:
    return host.systemctl_show(unit, ["ActiveState", "SubState", "InvocationID", "MainPID", "NRestarts"])


def _wait_on(host: Host, condition: str) -> None:
    """Wait until a command of the host ends well; a busy machine may take most of a minute until Ansible gets there."""
    host.run(f"end=$(($(date +%s) + 50)); until {condition} 2>/dev/null; do [ $(date +%s) -lt $end ] || exit 1; sleep 0.1; done")


def actions(result: dict[str, Any]) -> list[str]:
    return [entry["action"] for entry in result["actions"]]


@pytest.fixture(params=["gpu01", "gpu03"], ids=["bookworm", "trixie"])
def each(lab: Lab, request: pytest.FixtureRequest) -> Iterator[Host]:
    """A clean host with each systemd."""
    host = lab.hosts[request.param]
    host.reset()
    host.vllm.behave("*", load_seconds=0.3)
    yield host


@pytest.fixture
def one(lab: Lab) -> Iterator[Host]:
    """A clean host."""
    host = lab.hosts["gpu02"]
    host.reset()
    host.vllm.behave("*", load_seconds=0.3)
    yield host


def test_the_life_of_a_service(each: Host) -> None:
    """Create, repeat, change, stop, start, restart, remove; each in check mode, for real, and again."""
    steps: list[tuple[dict[str, Any], str, bool]] = [
        ({}, "started", True),
        ({"args": {**SMALL["args"], "max_num_seqs": 64}}, "started", True),
        ({"enabled": True}, "started", True),
        ({"enabled": True}, "stopped", False),
        ({}, "started", True),
        ({"env": {"GREETING": "a b%c $d \"e\""}}, "present", True),
        ({"env": {"GREETING": "a b%c $d \"e\""}}, "started", True),
        ({}, "absent", False),
    ]
    for parameters, state, running in steps:
        files, before = each.run(FILES).stdout, show(each)
        planned = service(each, "--check", "--diff", state=state, **parameters)
        assert (each.run(FILES).stdout, show(each)) == (files, before), f"check mode changed something for {state}"
        assert not planned["failed"], planned["shown"]
        done = service(each, state=state, **parameters)
        assert not done["failed"], done["shown"]
        assert (planned["changed"], actions(planned), planned["files"]) == (done["changed"], actions(done), done["files"])
        assert done["changed"], f"nothing was done for {state} {parameters}"
        after = show(each)
        assert (after["ActiveState"] == "active") is running, (state, parameters, after)
        again = service(each, state=state, **parameters)
        assert not again["changed"] and actions(again) == [], again["shown"]
        assert show(each) == after, "a second run touched the process"
    assert each.run("ls /etc/vllm /etc/systemd/system | grep small", check=False).stdout == ""


def test_a_restart_is_a_new_process_and_a_readiness_that_was_seen(one: Host) -> None:
    service(one)
    before = show(one)
    done = service(one, state="restarted")
    assert done["changed"] and done["ready"] and done["served_models"] == ["small"]
    assert show(one)["InvocationID"] != before["InvocationID"]
    assert done["timings"]["downtime"] > 0


def test_a_process_older_than_its_files_is_restarted(one: Host) -> None:
    """A run that died between writing and restarting leaves such a process behind."""
    service(one)
    before = show(one)
    time.sleep(1.1)
    one.run(["touch", "/etc/vllm/small.yaml"])
    done = service(one)
    assert done["changed"] and "older than" in done["actions"][0]["reason"]
    assert show(one)["InvocationID"] != before["InvocationID"]


def test_a_server_with_a_dead_engine_is_started_anew(one: Host) -> None:
    service(one)
    one.vllm.behave("small", completions="error")
    planned = service(one, "--check")
    assert planned["changed"] and "does not serve" in planned["actions"][0]["reason"], planned["shown"]
    one.vllm.behave("small", completions="ok")
    before = show(one)
    assert not service(one)["changed"]
    assert show(one) == before


def test_two_services_on_disjoint_gpus_never_touch_each_other(one: Host) -> None:
    service(one)
    assert not module(one, "vllm_service", **OTHER)["failed"]
    first = show(one)
    assert not module(one, "vllm_service", **{**OTHER, "state": "restarted"})["failed"]
    assert not module(one, "vllm_service", **{**OTHER, "state": "absent"})["failed"]
    assert show(one) == first


def test_a_neighbour_in_the_way_is_left_alone_unless_it_may_be_replaced(one: Host) -> None:
    service(one)
    before = show(one)
    for parameters, why in (({"gpus": [4, 5], "port": 8002}, "GPU 4"), ({"port": 8001}, "port 8001")):
        refused = module(one, "vllm_service", **{**OTHER, **parameters})
        assert refused["failed"] and why in refused["msg"] and "replace: conflicting" in refused["msg"], refused["shown"]
        assert show(one) == before
    done = module(one, "vllm_service", **{**OTHER, "port": 8001, "replace": "conflicting"})
    assert [entry["unit"] for entry in done["replaced"]] == [UNIT], done["shown"]
    assert show(one)["ActiveState"] == "inactive"


def test_secrets_are_nowhere_but_in_their_file(one: Host) -> None:
    secret = "sk-tell-nobody-7341"
    done = service(one, "-vvv", "--diff", secrets={"VLLM_API_KEY": secret})
    assert not done["failed"] and done["ready"], done["shown"]
    assert secret not in done["shown"]
    assert one.run(["stat", "-c", "%a %U", "/etc/vllm/small.env"]).stdout.strip() == "600 root"
    pid = show(one)["MainPID"]
    for where in (f"tr '\\0' ' ' < /proc/{pid}/cmdline", f"systemctl show {UNIT}", "journalctl --no-pager -a",
                  f"cat /etc/systemd/system/{UNIT} /etc/vllm/small.yaml"):
        assert secret not in one.run(where).stdout, where
    changed = service(one, "-vvv", "--diff", secrets={"VLLM_API_KEY": secret + "-new"})
    assert changed["changed"] and secret not in changed["shown"]


def _unit_file(host: Host) -> None:
    host.write(f"/etc/systemd/system/{UNIT}", "[Service]\nExecStart=/bin/sleep 1000\n")
    host.run(["systemctl", "daemon-reload"])


def _vendors_unit(host: Host) -> None:
    host.run("mkdir -p /usr/lib/systemd/system")
    host.write(f"/usr/lib/systemd/system/{UNIT}", "[Service]\nExecStart=/bin/sleep 1000\n")
    host.run(["systemctl", "daemon-reload"])


def _transient_unit(host: Host) -> None:
    host.run(["systemd-run", f"--unit={UNIT}", "/bin/sleep", "1000"])


@pytest.mark.parametrize("provoke", [_unit_file, _vendors_unit, _transient_unit])
def test_a_unit_that_is_not_ours_is_left_alone_wherever_it_comes_from(one: Host, provoke: Callable[[Host], None]) -> None:
    provoke(one)
    one.run(["systemctl", "start", UNIT])
    before = show(one)
    for state in ("started", "stopped", "absent", "present"):
        refused = service(one, state=state)
        assert refused["failed"] and "did not write it" in refused["msg"], refused["shown"]
    assert show(one) == before and before["ActiveState"] == "active"


def test_files_that_are_not_ours_are_left_alone(one: Host) -> None:
    one.run(["mkdir", "-p", "/etc/vllm"])
    one.write("/etc/vllm/small.env", "TOKEN=theirs\n")
    refused = service(one)
    assert refused["failed"] and "/etc/vllm/small.env" in refused["msg"], refused["shown"]
    gone = service(one, state="absent")
    assert not gone["failed"] and not gone["changed"]
    assert one.read("/etc/vllm/small.env") == "TOKEN=theirs\n"


def test_what_would_stop_a_good_server_for_nothing_is_refused_or_left_out(one: Host) -> None:
    service(one)
    before = show(one)
    itself = service(one, replace=[UNIT, "vllm-nobody"])
    assert not itself["failed"] and not itself["changed"], itself["shown"]
    faults: list[tuple[dict[str, Any], str]] = [
        ({"args": {"gpu_memory_utilization": 0}}, "above 0 and at most 1"),
        ({"args": {"gpu_memory_utilization": True}}, "above 0 and at most 1"),
        ({"args": {"gpu_memory_utilization": "high"}}, "gpu_memory_utilization"),
        ({"env": {"VLLM_WORKER_SHUTDOWN_TIMEOUT_SECONDS": "inf"}}, "cannot be used"),
        ({"guard": {"timeout": 0}}, "guard.timeout"),
        ({"port": 80}, "below 1024"),
        ({"replace": ["ssh"]}, "never stopped"),
        ({"replace": ["vllm-*"]}, "patterns are not taken"),
        ({"unit_options": {"Service": {"Nicer": "5"}}}, "Nicer"),
    ]
    for parameters, said in faults:
        refused = service(one, **parameters)
        assert refused["failed"] and said in refused["msg"], refused["shown"]
        assert "Traceback" not in refused["shown"]
    one.run(["touch", "-d", "+1 hour", "/etc/vllm/small.yaml"])
    assert not service(one)["changed"], "a time that is yet to come is no reason for a restart"
    assert show(one) == before


def test_a_gpu_that_fell_off_the_bus_does_not_move_the_others_up(one: Host) -> None:
    everything = {**SMALL, "gpus": "all", "args": {"tensor_parallel_size": 8, "gpu_memory_utilization": 0.5}}
    uuids = [one.gpu.current.gpus[index].uuid for index in (4,)]
    one.gpu.preset("fewer_gpus_than_pci")
    refused = module(one, "vllm_service", **everything)
    assert refused["failed"] and "PCI bus" in refused["msg"], refused["shown"]
    assert not service(one, "--check", gpus=uuids)["failed"]


def test_a_directory_that_the_service_cannot_look_into_is_opened_and_counted(one: Host) -> None:
    service(one)
    one.run("chmod 700 /etc/vllm && rm -r /var/lib/gpufleet")
    planned = service(one, "--check")
    assert planned["changed"] and set(actions(planned)) == {"make_directory"}
    done = service(one)
    assert done["changed"] and actions(done) == actions(planned)
    assert not service(one)["changed"]


def test_a_masked_service_is_as_good_as_stopped(one: Host) -> None:
    service(one)
    service(one, state="stopped")
    one.run(f"mv /etc/systemd/system/{UNIT} /root/ && systemctl mask {UNIT} && systemctl daemon-reload")
    assert not service(one, state="stopped")["failed"]
    refused = service(one)
    assert refused["failed"] and "systemctl unmask" in refused["msg"], refused["shown"]


def test_absent_leaves_nothing(one: Host) -> None:
    service(one, unit_options={"Service": {"Nice": "5"}}, secrets={"A_TOKEN": "x y"}, enabled=True)
    assert one.exists(f"/etc/systemd/system/{UNIT}.d/50-options.conf")
    service(one, state="absent")
    assert one.run("find /etc -name '*small*'").stdout == ""


def test_a_change_is_finished_though_its_controller_and_its_connection_die(one: Host) -> None:
    service(one, enabled=True)
    one.vllm.behave("other", load_seconds=4)
    env = {**os.environ, "ANSIBLE_PIPELINING": "0", "ANSIBLE_SSH_ARGS": "-o ControlMaster=no"}
    controller = subprocess.Popen(
        [str(Path(sys.executable).parent / "ansible"), one.name, "-i", "inventories/lab", "-m", "gpufleet.vllm.vllm_service",
         "-a", json.dumps({**OTHER, "port": 8001, "replace": "conflicting"})],
        cwd=ROOT, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True,
    )
    _wait_on(one, f"! systemctl is-active -q {UNIT}")
    os.killpg(controller.pid, signal.SIGKILL)
    controller.wait()
    # Its place at boot is what a change hands over last.
    _wait_on(one, "systemctl is-enabled -q vllm-other.service")
    again = module(one, "vllm_service", **{**OTHER, "port": 8001, "replace": "conflicting"})
    assert not again["failed"] and again["ready"] and "start" not in actions(again), again["shown"]


def test_memory_that_somebody_else_holds_is_named_and_nothing_is_begun(one: Host) -> None:
    Programs(one).service("training", gpus=[4], mib=90000)
    refused = service(one)
    assert refused["failed"] and "memory" in refused["msg"], refused["shown"]
    for part in ("GPU 4", "training.service", "90,000 MiB", "user root"):
        assert part in refused["msg"], refused["msg"]
    assert not one.exists(f"/etc/systemd/system/{UNIT}")
    assert one.systemctl_show("training.service", ["ActiveState"])["ActiveState"] == "active"


def test_a_port_that_somebody_else_has_is_named(one: Host) -> None:
    one.run("systemd-run --unit=web /usr/bin/python3 -m http.server 8001")
    one.run("for i in $(seq 50); do ss -ltn | grep -q :8001 && exit 0; sleep 0.1; done; exit 1")
    refused = service(one)
    assert refused["failed"] and "port 8001" in refused["msg"], refused["shown"]


@pytest.mark.parametrize(("behaviour", "kind"), [
    ({"oom_warmup": True}, "oom_warmup"),
    ({"oom_load": True}, "oom_load"),
    ({"fp8_block": True}, "quant_block"),
])
def test_a_first_deployment_that_dies_says_why_and_leaves_nothing(one: Host, behaviour: dict[str, Any], kind: str) -> None:
    one.vllm.behave("small", load_seconds=0.3, **behaviour)
    failed = service(one)
    assert failed["failed"] and failed["diagnosis"]["kind"] == kind, failed["shown"]
    assert failed["diagnosis"]["evidence"] and failed["diagnosis"]["advice"]
    assert failed["rolled_back"] and not one.exists(f"/etc/systemd/system/{UNIT}")
    assert show(one)["ActiveState"] in ("inactive", "failed")


def test_a_bad_argument_is_refused_before_anything_is_touched_and_names_itself(one: Host) -> None:
    refused = service(one, args={"max_model_length": 100})
    assert refused["failed"] and not refused["changed"] and not refused["rolled_back"], refused["shown"]
    assert "max_model_length is unknown; the nearest is max_model_len" in refused["msg"], refused["msg"]
    assert [check["id"] for check in refused["preflight"]["checks"] if check["status"] == "fail"] == ["arguments"]
    assert not one.exists(f"/etc/systemd/system/{UNIT}")


def test_a_bad_argument_is_seen_in_a_second_where_nothing_was_checked(one: Host) -> None:
    failed = service(one, args={"max_model_length": 100}, preflight="skip")
    assert failed["failed"] and failed["diagnosis"]["kind"] == "bad_argument", failed["shown"]
    assert "max" in " ".join(failed["diagnosis"]["evidence"])
    assert failed["timings"]["load"] < 10


def test_a_second_change_at_the_same_time_is_refused_with_who_and_since_when(one: Host) -> None:
    one.vllm.behave("small", load_seconds=40)
    first = subprocess.Popen(
        [
            str(Path(sys.executable).parent / "ansible"), one.name, "-i", "inventories/lab", "-m", "gpufleet.vllm.vllm_service",
            "-a", json.dumps(SMALL),
        ],
        cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )
    try:
        _wait_on(one, f"systemctl is-active -q {UNIT}")
        second = module(one, "vllm_service", **OTHER)
        out = first.communicate(timeout=120)[0]
    except BaseException:
        first.kill()
        print(first.communicate()[0])
        raise
    assert second["failed"] and "vllm_service started small" in second["msg"] and "since" in second["msg"], second["shown"]
    assert first.returncode == 0, out


def test_a_changed_declaration_that_cannot_work_brings_the_old_one_back(one: Host) -> None:
    service(one)
    files = one.run("cat /etc/vllm/small.yaml").stdout
    before = show(one)
    bad = {**SMALL["args"], "max_num_sequences": 32}
    refused = service(one, args=bad)
    assert refused["failed"] and not refused["changed"] and "max_num_sequences is unknown" in refused["msg"], refused["shown"]
    assert show(one) == before
    failed = service(one, args=bad, preflight="skip")
    assert failed["failed"] and failed["rolled_back"], failed["shown"]
    assert show(one)["InvocationID"] != before["InvocationID"]
    assert one.run("cat /etc/vllm/small.yaml").stdout == files
    assert not service(one)["changed"]
