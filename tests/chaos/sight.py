# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What is to be seen of a host from outside: what serves, what runs, what starts at boot, which files there are, how far a change is."""

from __future__ import annotations

import json
import time
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lab import Host, LabError

PORT = 8000
CHANGE_UNIT = "gpufleet-change.service"
RECORD = "/var/lib/gpufleet/change/record.json"
LAST = "/var/lib/gpufleet/change/last.json"
PROGRESS = "/run/gpufleet/progress.json"
# Each look is half a dozen processes, on a machine that many hosts share.
_LOOK_S = 0.5
# A module on its way, as Ansible sends it or as the program that it leaves there takes it. The brackets keep it from finding itself.
_MODULE = "cat /proc/[0-9]*/cmdline 2>/dev/null | tr '\\0' ' ' | grep -qE 'Ansiball[Z]_|change.py[z] module'"
# What a change writes, but for what came of it. Where a unit starts at boot is looked at by itself.
_FILES = (
    "find /etc/vllm /usr/local/lib/gpufleet /var/lib/gpufleet /etc/systemd/system -not -type d -not -path '*.wants/*' "
    "-not -name last.json 2>/dev/null | grep -e vllm -e gpufleet | sort | while read -r path; do "
    'printf "%s %s " "$path" "$(stat -c "%a %U:%G" "$path")"; sha256sum < "$path"; done'
)


def unit_of(model: str) -> str:
    """The unit of a model of the lab's catalogue."""
    return f"vllm-{model}.service"


def complete(host: Host, model: str, timeout: float = 5.0) -> str | None:
    """None when the host answers a real completion as this model, else what it said instead."""
    body = json.dumps({"model": model, "prompt": "Hello", "max_tokens": 4}).encode()
    request = urllib.request.Request(
        f"http://{host.address}:{PORT}/v1/completions", data=body, headers={"Content-Type": "application/json"}
    )
    try:
        with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=timeout) as response:
            answer = json.load(response)
    except (OSError, ValueError) as exc:
        return f"{type(exc).__name__}: {exc}"
    reason = answer["choices"][0]["finish_reason"]
    return None if answer["model"] == model and reason in ("length", "stop") else f"answered as {answer['model']}, {reason}"


def serves(host: Host, models: tuple[str, ...]) -> list[str]:
    """Which of the models answer."""
    return [model for model in models if complete(host, model) is None]


@dataclass(frozen=True)
class Sight:
    """A host at one moment. ``active`` and ``enabled`` by model; ``change`` is the state of the change's unit.

    ``asked``: whether a module is at work. It lives on when its controller is killed, and may be about to begin a change.
    """

    active: Mapping[str, str]
    enabled: Mapping[str, bool]
    change: str
    record: bool
    asked: bool = False

    @property
    def moving(self) -> bool:
        """Whether something is under way."""
        return self.asked or self.record or self.change in ("active", "activating", "deactivating", "reloading") or any(
            state in ("activating", "deactivating", "reloading") for state in self.active.values()
        )

    @property
    def running(self) -> list[str]:
        """The models whose unit runs."""
        return [model for model, state in self.active.items() if state == "active"]


def look(host: Host, models: tuple[str, ...]) -> Sight:
    """One look, in one command on the host."""
    units = [*map(unit_of, models), CHANGE_UNIT]
    script = (
        f"test -e {RECORD} && echo record || echo none; {_MODULE} && echo asked || echo none; "
        f"for unit in {' '.join(units)}; do echo $(systemctl show --property=ActiveState --value -- $unit); "
        "echo $(systemctl --root=/ is-enabled $unit 2>/dev/null); done"
    )
    record, asked, *lines = host.enter(["sh", "-c", script], check=False).stdout.split("\n")
    states = dict(zip(units, lines[0::2], strict=False))
    boot = dict(zip(units, lines[1::2], strict=False))
    return Sight(
        {model: states.get(unit_of(model), "") for model in models},
        {model: boot.get(unit_of(model), "").strip() == "enabled" for model in models},
        states.get(CHANGE_UNIT, ""),
        record == "record",
        asked == "asked",
    )


def files(host: Host) -> dict[str, str]:
    """Every file that a change may write, with its mode, owner and checksum."""
    listing = host.enter(["sh", "-c", _FILES]).stdout.splitlines()
    return {path: rest for path, _space, rest in (line.partition(" ") for line in listing)}


def invocations(host: Host, models: tuple[str, ...]) -> dict[str, str]:
    """systemd's id of each unit's present run: another one means that it was started anew."""
    return {model: host.systemctl_show(unit_of(model), ["InvocationID"])["InvocationID"] for model in models}


class Window:
    """A view into a host's files from outside, without a process in the host: fast enough to see phases go by."""

    def __init__(self, host: Host) -> None:
        self._root = Path(f"/proc/{host.outside_pid(1)}/root")

    def phase(self) -> str | None:
        """The phase of the change that is under way or was last, None before the first."""
        try:
            return str(json.loads((self._root / PROGRESS.lstrip("/")).read_text(encoding="utf-8"))["phase"])
        except (OSError, ValueError, KeyError):
            return None

    def record(self) -> bool:
        """Whether a change has begun and has not ended."""
        return (self._root / RECORD.lstrip("/")).exists()


def last(host: Host) -> Mapping[str, Any]:
    """What came of the last change of the host, empty when there is nothing."""
    try:
        return dict(json.loads(host.read(LAST))["result"])
    except (LabError, ValueError, KeyError):
        return {}


def wait_for_rest(host: Host, models: tuple[str, ...], timeout: float, steady: float = 2.0) -> float | None:
    """Wait until nothing has moved for ``steady`` seconds, and what runs has come to serve or has gone.

    The seconds until it came to rest, None when it did not in ``timeout``.
    """
    begun = time.monotonic()
    since: float | None = None
    before: Sight | None = None
    while True:
        now = look(host, models)
        loading = [model for model in now.running if complete(host, model) is not None]
        moment = time.monotonic()
        if now.moving or loading or now != before:
            since = None if now.moving or loading else moment
        elif since is None:
            since = moment
        if since is not None and moment - since >= steady:
            return since - begun
        if moment - begun > timeout:
            return None
        before = now
        time.sleep(_LOOK_S)
