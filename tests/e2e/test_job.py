# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A change outlives whoever began it; meanwhile the same request follows it, another is refused, and everybody may watch."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from e2e.changes import (
    DIRECTORY,
    NEW,
    OLD,
    PROGRAM,
    PROGRESS,
    RECORD,
    SECRET,
    UNIT,
    at_rest,
    begin,
    boot_state,
    completes,
    ended,
    inside,
    kill,
    loading,
    prepared,
    service,
    serving,
)
from e2e.playbook import ROOT

from lab import Host, Lab

FOLLOWER = f"/usr/bin/[p]ython3 {PROGRAM} attend"
# The brackets keep a pattern from finding the very shell that looks for it.
SESSIONS = "pkill -KILL -f '[s]shd-session: |[s]shd: root'"


@pytest.fixture(params=["gpu01", "gpu03"], ids=["bookworm", "trixie"])
def host(lab: Lab, request: pytest.FixtureRequest) -> Iterator[Host]:
    """A host of each distribution that serves the old one; the new one takes its time to load."""
    yield prepared(lab.hosts[request.param], 1.0)


def by_ansible(host: Host, *words: str, **parameters: Any) -> subprocess.Popen[str]:
    """Ansible on its way, over a connection of its own."""
    env = {**os.environ, "ANSIBLE_CALLBACK_RESULT_FORMAT": "json", "ANSIBLE_NOCOLOR": "1", "ANSIBLE_SSH_ARGS": "-o ControlMaster=no"}
    command = [str(Path(sys.executable).parent / "ansible"), host.name, "-i", "inventories/lab", "-m", "gpufleet.vllm.vllm_service"]
    return subprocess.Popen(
        [*command, "-a", json.dumps(parameters), *words],
        cwd=ROOT, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True,
    )  # fmt: skip


def told(running: subprocess.Popen[str]) -> dict[str, Any]:
    """What Ansible printed as the result."""
    out = running.communicate(timeout=120)[0]
    assert running.returncode == 0 and "=>" in out, out
    result: dict[str, Any] = json.JSONDecoder().raw_decode(out.rpartition("=>")[2].lstrip())[0]
    return result


def test_the_controller_may_die(host: Host) -> None:
    running = by_ansible(host, **NEW)
    with loading(host):
        kill(running)
    at_rest(host)
    completes(host)


@pytest.mark.parametrize("murder", [SESSIONS, f"pkill -KILL -f '{FOLLOWER}'"], ids=["every connection", "the follower on the host"])
def test_whoever_follows_it_may_lose_it_and_hears_its_end_all_the_same(host: Host, murder: str) -> None:
    running = by_ansible(host, **NEW)
    with loading(host):
        inside(host, f"pgrep -f '{FOLLOWER}'")
        inside(host, murder)
    done = told(running)
    assert done["ready"] and done["changed"] and done["job"]["attached"] is False, done
    completes(host)


def test_a_module_that_waits_itself_may_be_killed(host: Host) -> None:
    running = by_ansible(host, "-B", "120", "-P", "1", **NEW)
    with loading(host):
        inside(host, "pkill -KILL -f '[A]nsiballZ_vllm_service'")
        kill(running)
    at_rest(host)
    completes(host)


def test_another_change_is_refused_with_who_and_since_when_and_the_same_one_follows(host: Host) -> None:
    first = by_ansible(host, **NEW)
    with loading(host):
        inside(host, f"grep -q '\"phase\": \"load\"' {PROGRESS}")
        for check in (False, True):
            refused = service(host, check, **{**OLD, "state": "restarted"})
            for part in ("vllm_service started new", "begun by root from", "since 20", "phase load"):
                assert refused["failed"] and part in refused["msg"], refused
        stopped = service(host, name="old", state="stopped")
        assert stopped["failed"] and "vllm_service started new" in stopped["msg"], stopped
        planned = service(host, True, **NEW)
        assert not planned["failed"] and [entry["action"] for entry in planned["actions"]] == ["follow"], planned
        second = by_ansible(host, **NEW)
        inside(host, f"test $(pgrep -fc '{FOLLOWER}') -ge 2")
    one, two = told(first), told(second)
    for result in (one, two):
        assert result["ready"] and result["changed"], result
    assert one["job"]["id"] == two["job"]["id"] and (one["job"]["attached"], two["job"]["attached"]) == (False, True)
    assert one["actions"] == two["actions"] and one["timings"] == two["timings"]
    completes(host)


def test_two_at_the_very_same_moment_are_one_change(host: Host) -> None:
    both = [begin(host, **NEW), begin(host, **NEW)]
    results = [ended(running) for running in both]
    assert [result["failed"] for result in results] == [False, False], results
    assert len({result["job"]["id"] for result in results}) == 1, results
    assert sorted(result["job"]["attached"] for result in results) == [False, True]
    completes(host)


def test_what_is_not_waited_for_can_be_followed_and_its_end_read(host: Host) -> None:
    planned = service(host, True, **NEW)
    begun = service(host, wait=False, **NEW)
    assert begun["changed"] and not begun["ready"] and begun["actions"] == planned["actions"], begun
    job = begun["job"]["id"]
    # nobody has to be root to follow
    news: list[dict[str, Any]] = []
    while not (news and news[-1].get("done")):
        after = news[-1]["seq"] if news else 0
        command = f"runuser -u nobody -- {PROGRAM} follow {job} --after {after} --for 30"
        news.append(json.loads(host.enter(command).stdout))
        assert news[-1]["seq"] > after
    assert news[-1]["outcome"] == "done" and "load" in [each["phase"] for each in news], news
    result = json.loads(host.enter([PROGRAM, "result", job]).stdout)
    assert result["done"] and result["result"]["ready"] and result["result"]["files"] == planned["files"]
    assert [entry["action"] for entry in result["result"]["actions"]] == [entry["action"] for entry in planned["actions"]]
    assert json.loads(host.enter([PROGRAM, "result", "nobody"]).stdout) == {"id": "nobody", "done": False, "unknown": True}
    completes(host)


def test_secrets_are_in_no_argument_no_readable_file_and_no_journal(host: Host) -> None:
    running = begin(host, **NEW)
    with loading(host):
        assert host.enter(["stat", "-c", "%a %U", RECORD, DIRECTORY]).stdout.split() == ["600", "root", "700", "root"]
        commands = f"tr '\\0' ' ' < /proc/$(systemctl show -p MainPID --value {UNIT})/cmdline; systemctl show {UNIT}; "
        shown = host.enter(commands + f"cat {PROGRESS} /run/gpufleet/change.lock; ps -eo args").stdout
        assert "phase" in shown and f"{PROGRAM} run" in shown and SECRET not in shown
    done = ended(running)
    assert not done["failed"] and SECRET not in str(done)
    assert SECRET not in host.enter(["journalctl", "--no-pager", "-a"]).stdout
    readable = host.enter(f"grep -rlF {SECRET} /var/lib/gpufleet /run/gpufleet /etc /usr/local || true").stdout.split()
    assert readable == ["/etc/vllm/new.env"]
    assert host.enter(["stat", "-c", "%a", f"{DIRECTORY}/last.json"]).stdout.strip() == "600"


FULL = (
    f"mount -t tmpfs -o size=16k,mode=700 tmpfs {DIRECTORY}"
    f" && {{ dd if=/dev/zero of={DIRECTORY}/filler bs=1k count=64 2>/dev/null; true; }}"
)
READ_ONLY = f"mount --bind {DIRECTORY} {DIRECTORY} && mount -o remount,bind,ro {DIRECTORY}"


@pytest.mark.parametrize(("provoke", "said"), [(FULL, "No space left on device"), (READ_ONLY, "Read-only file system")],
                         ids=["full", "read-only"])
def test_what_cannot_be_written_down_is_not_begun(host: Host, provoke: str, said: str) -> None:
    host.enter(provoke)
    before = host.systemctl_show("vllm-old.service", ["InvocationID", "MainPID"])
    refused = service(host, **NEW)
    assert refused["failed"] and said in refused["msg"] and DIRECTORY in refused["msg"], refused
    assert "Nothing was touched" in refused["msg"], refused
    assert serving(host) == "old" and host.systemctl_show("vllm-old.service", ["InvocationID", "MainPID"]) == before
    assert not host.exists("/etc/vllm/new.yaml") and boot_state(host, "vllm-old.service") == "enabled"
    left = host.enter(["ls", "-A", DIRECTORY]).stdout.split()
    assert left in (["filler"], ["last.json"]), left
    host.enter(["umount", DIRECTORY])
    completes(host)
