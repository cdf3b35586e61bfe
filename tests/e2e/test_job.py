# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A change of servers outlives whoever began it, its own death and the host's: something serves, and the same command completes it."""

from __future__ import annotations

import contextlib
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

from lab import Host, Lab
from lab.errors import HostCommandError

UNIT = "gpufleet-change.service"
RECORD = "/var/lib/gpufleet/change/record.json"
PROGRESS = "/run/gpufleet/progress.json"
PROGRAM = "/usr/local/lib/gpufleet/change.pyz"
_BASE: dict[str, Any] = {
    "model": "/models/Qwen3-0.6B", "gpus": [4], "port": 8001, "args": {"max_model_len": 40960, "gpu_memory_utilization": 0.5},
    "replace": "conflicting", "enabled": True, "stop_timeout": 20,
}  # fmt: skip
OLD: dict[str, Any] = {**_BASE, "name": "old"}
NEW: dict[str, Any] = {**_BASE, "name": "new", "secrets": {"VLLM_API_KEY": "sk-tell-nobody-7341"}}
OLD_UNIT, NEW_UNIT = "vllm-old.service", "vllm-new.service"
SLOW_S = 5.0


def service(host: Host, *flags: str, **parameters: Any) -> dict[str, Any]:
    return module(host, "vllm_service", *flags, **parameters)


def begin(host: Host, **parameters: Any) -> subprocess.Popen[str]:
    """The module, on its way, in a process group of its own, over a connection of its own."""
    env = {**os.environ, "ANSIBLE_CALLBACK_RESULT_FORMAT": "json", "ANSIBLE_NOCOLOR": "1", "ANSIBLE_SSH_ARGS": "-o ControlMaster=no",
           "ANSIBLE_PIPELINING": "0"}  # so that the module has a name among processes
    return subprocess.Popen(
        [str(Path(sys.executable).parent / "ansible"), host.name, "-i", "inventories/lab", "-m", "gpufleet.vllm.vllm_service",
         "-a", json.dumps(parameters)],
        cwd=ROOT, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True,
    )  # fmt: skip


def ended(running: subprocess.Popen[str]) -> dict[str, Any]:
    out = running.communicate(timeout=120)[0]
    result: dict[str, Any] = json.JSONDecoder().raw_decode(out.rpartition("=>")[2].lstrip())[0] if "=>" in out else {}
    result["failed"], result["shown"] = running.returncode != 0, out
    return result


def kill(running: subprocess.Popen[str]) -> None:
    os.killpg(running.pid, signal.SIGKILL)
    running.communicate()


def inside(host: Host, script: str, seconds: float = 90.0) -> str:
    """Ask again and again, in the host, until the script says yes; what it printed then."""
    late = f"end=$(($(date +%s%N) + {int(seconds * 1e9)}))"
    loop = f"{late}; until {script}; do [ $(date +%s%N) -lt $end ] || exit 99; sleep 0.02; done 2>/dev/null"
    try:
        return host.enter(loop, timeout=seconds + 30).stdout
    except HostCommandError as error:
        raise AssertionError(f"not within {seconds:g} s: {script}\n{host.journal(UNIT)}\n{error}") from error


def stage(host: Host, name: str) -> None:
    """Wait until the change has come to this stage."""
    inside(host, f"grep -q '\"stage\": \"{name}\"' {RECORD}")


@contextlib.contextmanager
def held(host: Host) -> Iterator[None]:
    """The new server is being loaded, and does not go on before this ends, however slow everything else is."""
    stage(host, "starting")
    inside(host, f"systemctl is-active -q {NEW_UNIT}")
    host.enter(["systemctl", "freeze", NEW_UNIT])
    try:
        assert host.exists(RECORD), "it was over before anybody looked"
        yield
    finally:
        host.enter(["systemctl", "thaw", NEW_UNIT])


def at_rest(host: Host, seconds: float = 60.0) -> None:
    inside(host, f"test ! -e {RECORD}", seconds)


def serving(host: Host, seconds: float = 60.0) -> str:
    """The one unit that serves: loaded, and answering a completion."""
    deadline = time.monotonic() + seconds
    while True:
        for name, key in (("old", ""), ("new", "sk-tell-nobody-7341")):
            body = json.dumps({"model": name, "prompt": "x", "max_tokens": 1})
            python = (
                "import json,sys,urllib.request as u;"
                f"r=u.Request('http://127.0.0.1:8001/v1/completions',data={body!r}.encode(),"
                f"headers={{'Content-Type':'application/json','Authorization':'Bearer {key}'}});"
                "print(json.load(u.urlopen(r,timeout=5))['model'])"
            )
            answer = host.enter(["python3", "-c", python], check=False)
            if answer.returncode == 0 and answer.stdout.strip() == name:
                return name
        assert time.monotonic() < deadline, f"{host.name} serves nothing\n{host.journal(UNIT)}"
        time.sleep(0.2)


def boot(host: Host, unit: str) -> str:
    return host.enter(["systemctl", "is-enabled", unit], check=False).stdout.strip()


def completes(host: Host) -> None:
    """The same command again ends with the new one, and a third time finds nothing to do."""
    again = service(host, **NEW)
    assert not again["failed"] and again["ready"], again["shown"]
    assert serving(host) == "new"
    assert (boot(host, NEW_UNIT), boot(host, OLD_UNIT)) == ("enabled", "disabled")
    third = service(host, **NEW)
    assert not third["failed"] and not third["changed"] and third["actions"] == [], third["shown"]
    assert not host.exists(RECORD)


@pytest.fixture(params=["gpu01", "gpu03"], ids=["bookworm", "trixie"])
def each(lab: Lab, request: pytest.FixtureRequest) -> Iterator[Host]:
    """A host of each distribution that serves the old one; the new one takes its time to load."""
    yield prepared(lab.hosts[request.param])


@pytest.fixture
def one(lab: Lab) -> Iterator[Host]:
    """The same with one host."""
    yield prepared(lab.hosts["gpu02"])


def prepared(host: Host) -> Host:
    if not host.is_running():
        host.boot()
    host.reset()
    host.vllm.behave("old", load_seconds=0.3)
    host.vllm.behave("new", load_seconds=SLOW_S)
    done = service(host, **OLD)
    assert not done["failed"], done["shown"]
    return host


def _session(host: Host, running: subprocess.Popen[str]) -> None:
    host.enter("pkill -KILL -f sshd-session; pkill -KILL -f 'sshd: root'", check=False)
    running.communicate(timeout=60)


def _module(host: Host, running: subprocess.Popen[str]) -> None:
    host.enter("pkill -KILL -f AnsiballZ_vllm_service")
    running.communicate(timeout=60)


def _controller(host: Host, running: subprocess.Popen[str]) -> None:
    kill(running)


@pytest.mark.parametrize("murder", [_controller, _session, _module])
def test_whoever_began_it_may_die(each: Host, murder: Callable[[Host, subprocess.Popen[str]], None]) -> None:
    running = begin(each, **NEW)
    with held(each):
        murder(each, running)
    at_rest(each)
    assert serving(each) == "new"
    completes(each)


def test_the_module_may_die_between_the_record_and_the_start_of_the_job(one: Host) -> None:
    # a condition that does not hold: the record is made, and nothing comes of the start
    drop_in = f"/run/systemd/system/{UNIT}.d"
    one.write(f"{drop_in}/never.conf", "[Unit]\nConditionPathExists=/nowhere\n")
    one.enter(["systemctl", "daemon-reload"])
    refused = service(one, **NEW)
    assert refused["failed"] and UNIT in refused["msg"], refused["shown"]
    one.enter(f"rm -r {drop_in} && systemctl daemon-reload")
    assert one.exists(RECORD) and serving(one) == "old"
    planned = service(one, "--check", **NEW)
    assert [entry["action"] for entry in planned["actions"]] == ["follow"], planned["shown"]
    done = service(one, **NEW)
    assert not done["failed"] and done["job"]["attached"] and done["changed"], done["shown"]
    completes(one)


@pytest.mark.parametrize("when", ["begun", "staging", "stopping", "starting", "committing"])
def test_the_job_may_be_killed_in_every_phase(each: Host, when: str) -> None:
    running = begin(each, **NEW)
    stage(each, when)
    each.enter(f"systemctl kill --signal=KILL {UNIT}", check=False)
    done = ended(running)
    assert not done["failed"] and done["ready"] and done["changed"], done["shown"]
    assert [entry["name"] for entry in done["replaced"]] == ["old"], done["shown"]
    assert "start" in [entry["action"] for entry in done["actions"]]
    completes(each)


def test_a_job_that_is_killed_again_and_again_goes_back(one: Host) -> None:
    running = begin(one, **NEW)
    stage(one, "starting")
    for _death in range(2):
        pid = inside(one, f"systemctl show -p MainPID --value {UNIT} | grep -v '^0$'").split()[-1]
        attempts = int(inside(one, f"grep -o '\"attempts\": [0-9]*' {RECORD}").split()[-1])
        one.enter(["kill", "-KILL", pid])
        inside(one, f"grep -q '\"attempts\": {attempts + 1}' {RECORD}")
    done = ended(running)
    assert done["failed"] and done["rolled_back"] and "killed" in done["msg"], done["shown"]
    assert serving(one) == "old" and boot(one, OLD_UNIT) == "enabled"
    assert not one.exists("/etc/systemd/system/vllm-new.service")
    completes(one)


@pytest.mark.parametrize(("when", "expected"), [("stopping", "old"), ("starting", "old"), ("committing", "new")])
def test_the_power_may_fail_in_every_phase(each: Host, when: str, expected: str) -> None:
    running = begin(each, **NEW)
    if when == "stopping":
        each.vllm.behave("old", ignore_sigterm=True)
    stage(each, when)
    each.power_cut()
    kill(running)
    each.boot(wait=False)
    each.wait_ready()
    at_rest(each, 90)
    assert serving(each) == expected
    assert boot(each, "vllm-%s.service" % expected) == "enabled"
    each.vllm.behave("old", ignore_sigterm=None)
    completes(each)


def test_an_orderly_reboot_in_the_middle_leaves_it_to_the_next_boot(one: Host) -> None:
    running = begin(one, **NEW)
    stage(one, "starting")
    one.reboot()
    kill(running)
    at_rest(one, 90)
    assert serving(one) == "old"
    assert "the host is going down" in one.enter(["journalctl", "--no-pager", "-u", UNIT]).stdout
    completes(one)


def test_stopping_the_job_undoes_the_change(each: Host) -> None:
    running = begin(each, **NEW)
    stage(each, "starting")
    inside(each, f"systemctl is-active -q {NEW_UNIT}")
    each.enter(["systemctl", "stop", UNIT], timeout=90)
    assert serving(each, 1) == "old", "stop returned before the old one served"
    done = ended(running)
    assert done["failed"] and done["rolled_back"] and "asked to end" in done["msg"], done["shown"]
    assert not each.exists("/etc/systemd/system/vllm-new.service")
    completes(each)


def test_another_change_is_refused_with_who_and_since_when_and_the_same_one_follows(each: Host) -> None:
    first = begin(each, **NEW)
    with held(each):
        for flags in ((), ("--check",)):
            refused = service(each, *flags, **{**OLD, "state": "restarted"})
            for part in ("vllm_service started new", "begun by root from", "since 20", "phase load"):
                assert refused["failed"] and part in refused["msg"], refused["shown"]
        stopped = service(each, name="old", state="stopped")
        assert stopped["failed"] and "vllm_service started new" in stopped["msg"], stopped["shown"]
        planned = service(each, "--check", **NEW)
        assert not planned["failed"] and [entry["action"] for entry in planned["actions"]] == ["follow"], planned["shown"]
        second = begin(each, **NEW)
        inside(each, "test $(pgrep -fc AnsiballZ_vllm_service) -ge 2")
        time.sleep(10)  # the second has found the record by then, also on a busy machine
    one, two = ended(first), ended(second)
    for result in (one, two):
        assert not result["failed"] and result["ready"] and result["changed"], result["shown"]
    assert one["job"]["id"] == two["job"]["id"] and (one["job"]["attached"], two["job"]["attached"]) == (False, True)
    assert one["actions"] == two["actions"] and one["timings"] == two["timings"]
    completes(each)


def test_two_at_the_very_same_moment_are_one_change(each: Host) -> None:
    both = [begin(each, **NEW), begin(each, **NEW)]
    results = [ended(running) for running in both]
    assert [result["failed"] for result in results] == [False, False], results[0]["shown"] + results[1]["shown"]
    assert len({result["job"]["id"] for result in results}) == 1
    assert sorted(result["job"]["attached"] for result in results) == [False, True]
    completes(each)


def test_what_is_not_waited_for_can_be_followed_and_its_end_read(each: Host) -> None:
    planned = service(each, "--check", **NEW)
    begun = service(each, wait=False, **NEW)
    assert begun["changed"] and not begun["ready"] and begun["actions"] == planned["actions"], begun["shown"]
    job = begun["job"]["id"]
    # nobody has to be root to follow
    news: list[dict[str, Any]] = []
    while not (news and news[-1].get("done")):
        after = news[-1]["seq"] if news else 0
        command = f"runuser -u nobody -- {PROGRAM} follow {job} --after {after} --for 30"
        news.append(json.loads(each.enter(command).stdout))
        assert news[-1]["seq"] > after
    assert [phase for phase in ("stop", "settle", "load", "done") if phase not in [each_["phase"] for each_ in news]] == []
    assert news[-1]["outcome"] == "done" and any(each_.get("gpu_used_mib") for each_ in news), news
    result = json.loads(each.enter([PROGRAM, "result", job]).stdout)
    assert result["done"] and result["result"]["ready"] and result["result"]["files"] == planned["files"]
    assert [entry["action"] for entry in result["result"]["actions"]] == [entry["action"] for entry in planned["actions"]]
    assert json.loads(each.enter([PROGRAM, "result", "nobody"]).stdout) == {"id": "nobody", "done": False, "unknown": True}
    completes(each)


def test_secrets_are_in_no_argument_no_readable_file_and_no_journal(each: Host) -> None:
    running = begin(each, **NEW)
    stage(each, "starting")
    secret = NEW["secrets"]["VLLM_API_KEY"]
    assert each.enter(["stat", "-c", "%a %U", RECORD, "/var/lib/gpufleet/change"]).stdout.split() == ["600", "root", "700", "root"]
    for command in ("tr '\\0' ' ' < /proc/$(systemctl show -p MainPID --value %s)/cmdline" % UNIT, f"systemctl show {UNIT}",
                    f"cat {PROGRESS} /run/gpufleet/change.lock", "ps -eo args"):
        assert secret not in each.enter(command).stdout, command
    done = ended(running)
    assert not done["failed"] and secret not in done["shown"]
    assert secret not in each.enter(["journalctl", "--no-pager", "-a"]).stdout
    readable = each.enter("grep -rlF %s /var/lib/gpufleet /run/gpufleet /etc /usr/local || true" % secret).stdout.split()
    assert readable == ["/etc/vllm/new.env"]
    assert each.enter(["stat", "-c", "%a", "/var/lib/gpufleet/change/last.json"]).stdout.strip() == "600"


def test_the_unit_is_one_that_systemd_takes_without_a_word(each: Host) -> None:
    assert each.enter(f"systemd-analyze verify --man=no /etc/systemd/system/{UNIT} 2>&1").stdout == ""
    assert boot(each, UNIT) == "enabled"
    each.reboot()
    assert each.systemctl_show(UNIT, ["ActiveState", "ConditionResult"]) == {"ActiveState": "inactive", "ConditionResult": "no"}
