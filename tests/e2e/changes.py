# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Changes of servers that are disturbed on purpose: beginning them, waiting for a moment of theirs, and looking at what is left.

Whatever stops a change at a moment does so on the host itself, where it cannot be late: a busy machine makes these tests slower, not
different.
"""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import signal
import subprocess
from collections.abc import Iterator
from typing import Any

from e2e.remote import begun, core

from lab import Host
from lab.errors import HostCommandError

UNIT = "gpufleet-change.service"
DIRECTORY = "/var/lib/gpufleet/change"
RECORD = DIRECTORY + "/record.json"
PROGRESS = "/run/gpufleet/progress.json"
PROGRAM = "/usr/local/lib/gpufleet/change.pyz"
SECRET = "sk-tell-nobody-7341"
_BASE: dict[str, Any] = {
    "model": "/models/Qwen3-0.6B", "gpus": ["4"], "port": 8001, "args": {"max_model_len": 40960, "gpu_memory_utilization": 0.5},
    "replace": "conflicting", "enabled": True, "stop_timeout": 20,
}  # fmt: skip
OLD: dict[str, Any] = {**_BASE, "name": "old"}
NEW: dict[str, Any] = {**_BASE, "name": "new", "secrets": {"VLLM_API_KEY": SECRET}}
OLD_UNIT, NEW_UNIT = "vllm-old.service", "vllm-new.service"

_CHANGE = """
from core._core.errors import GpuFleetError
from core._job.change import change
from core._service.parameters import to_request
from core._service.ports import Ports

asked = given["parameters"]
wait = asked.pop("wait", True)
try:
    result = change(asked, to_request(asked), Ports(), given["check"], wait)
except GpuFleetError as exc:
    result = dict({"changed": False, "actions": []}, **exc.result, msg=exc.msg, failed=True)
result = dict({"failed": False}, **result)
"""

# Between the word to systemd and systemd there is a pause, for as long as there is a file of the word's name.
_SYSTEMCTL = """#!/bin/sh
for word in "$@"; do case "$word" in enable|stop|daemon-reload) while [ -e "/run/hold-$word" ]; do sleep 0.02; done; break;; esac; done
exec /usr/bin/systemctl "$@"
"""
_HOLDS = {"staging": "daemon-reload", "stopping": "stop", "committing": "enable"}


def service(host: Host, check: bool = False, **parameters: Any) -> dict[str, Any]:
    """What the module does on the host, without Ansible in between; ``failed`` is there in any case."""
    done: dict[str, Any] = core(host, _CHANGE, parameters=parameters, check=check)
    return done


def begin(host: Host, **parameters: Any) -> subprocess.Popen[str]:
    """The same, on its way, in a process of its own over SSH."""
    return begun(host, _CHANGE, parameters=parameters, check=False)


def ended(running: subprocess.Popen[str]) -> dict[str, Any]:
    """What came of it."""
    out, err = running.communicate(timeout=120)
    assert "@@" in out, out + err
    result: dict[str, Any] = json.loads(out.rpartition("@@")[2])
    return result


def kill(running: subprocess.Popen[str]) -> None:
    """End a command of this machine, and all that it has started."""
    os.killpg(running.pid, signal.SIGKILL)
    running.communicate()


def inside(host: Host, script: str, seconds: float = 90.0) -> str:
    """Try again and again, on the host, until the script says yes; what it printed then."""
    late = f"end=$(($(date +%s%N) + {int(seconds * 1e9)}))"
    loop = f"{late}; until {script}; do [ $(date +%s%N) -lt $end ] || exit 99; sleep 0.02; done 2>/dev/null"
    try:
        return host.enter(loop, timeout=seconds + 30).stdout
    except HostCommandError as error:
        raise AssertionError(f"not within {seconds:g} s: {script}\n{host.journal(UNIT)}\n{error}") from error


def at_stage(name: str) -> str:
    """A script that says yes when the change has come to this stage."""
    return f"grep -q '\"stage\": \"{name}\"' {RECORD}"


@contextlib.contextmanager
def stage(host: Host, name: str) -> Iterator[None]:
    """The change that is begun inside stays in this stage until the end, or a reboot. Must be entered before it begins."""
    word = _HOLDS[name]
    host.write("/usr/local/sbin/systemctl", _SYSTEMCTL, mode=0o755)
    host.enter(["touch", f"/run/hold-{word}"])
    try:
        yield
    finally:
        if host.is_running():
            host.enter(["rm", "-f", f"/run/hold-{word}"])


@contextlib.contextmanager
def loading(host: Host) -> Iterator[None]:
    """The new server is being loaded, and does not go on before this ends, however slow everything else is."""
    inside(host, f"{at_stage('starting')} && systemctl is-active -q {NEW_UNIT} && systemctl freeze {NEW_UNIT}")
    try:
        assert host.exists(RECORD), "it was over before anybody looked"
        yield
    finally:
        host.enter(["systemctl", "thaw", NEW_UNIT], check=False)  # a roll-back has removed it


def kill_for_good(host: Host) -> None:
    """The job is gone and does not come back by itself, as after the last of the starts that systemd makes."""
    drop_in = f"/run/systemd/system/{UNIT}.d"
    host.write(f"{drop_in}/once.conf", "[Service]\nRestart=no\n")
    host.enter(f"systemctl daemon-reload && systemctl kill --signal=KILL {UNIT}")
    host.enter(f"until systemctl is-failed -q {UNIT}; do sleep 0.05; done; rm -r {drop_in}; systemctl daemon-reload", timeout=30)


def at_rest(host: Host, seconds: float = 90.0) -> None:
    """Wait until no change is under way."""
    inside(host, f"test ! -e {RECORD}", seconds)


_ASK = """
import json, sys, urllib.request as u
for name, key in (("old", ""), ("new", %r)):
    body = json.dumps({"model": name, "prompt": "x", "max_tokens": 1}).encode()
    head = {"Content-Type": "application/json", "Authorization": "Bearer " + key}
    try:
        answer = json.load(u.urlopen(u.Request("http://127.0.0.1:8001/v1/completions", data=body, headers=head), timeout=5))
    except (OSError, ValueError):
        continue
    if answer["model"] == name:
        sys.exit(print(name))
sys.exit(1)
""" % SECRET


def serving(host: Host, seconds: float = 60.0) -> str:
    """The one that serves: loaded, and answering a completion."""
    return inside(host, f"/usr/bin/python3 -c {shlex.quote(_ASK)}", seconds).strip()


def boot_state(host: Host, unit: str) -> str:
    """Whether it starts at boot, in systemd's word."""
    return host.enter(["systemctl", "is-enabled", unit], check=False).stdout.strip()


def completes(host: Host) -> None:
    """The same command again ends with the new one, and then finds nothing to do."""
    last = service(host, **NEW)
    if last.get("changed"):
        assert not last["failed"] and last["ready"], last
        last = service(host, **NEW)
    assert not last["failed"] and not last["changed"] and last["actions"] == [], last
    assert serving(host) == "new"
    assert (boot_state(host, NEW_UNIT), boot_state(host, OLD_UNIT)) == ("enabled", "disabled")
    assert not host.exists(RECORD)


def prepared(host: Host, load_seconds: float) -> Host:
    """A fresh host that serves the old one; the new one takes so long to load."""
    if not host.is_running():
        host.boot()
    host.reset()
    host.vllm.behave("old", load_seconds=0.2)
    host.vllm.behave("new", load_seconds=load_seconds)
    done = service(host, **OLD)
    assert not done["failed"] and done["ready"], done
    return host
