# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Processes that outlive the command that starts them, each in a control group of the lab's own."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from lab import cgroup
from lab.errors import LabError

_START_SECONDS = 10.0
_JOIN = 'for group in $1; do echo "$$" > "$group/cgroup.procs"; done; shift; exec "$@"'


def systemd_runs_here() -> bool:
    """Whether systemd is this machine's PID 1, and so the owner of its control groups."""
    return Path("/run/systemd/system").is_dir()


def directories(lab_id: str, name: str) -> list[Path]:
    """A group's directories, cgroup v2 first: below systemd's ``system.slice`` if it runs here, else below our own."""
    found = sorted(cgroup.hierarchies(), key=lambda hierarchy: hierarchy.version, reverse=True)
    if systemd_runs_here():
        return [h.mount / "system.slice" / f"{scope_name(lab_id, name)}.scope" for h in found]
    return [cgroup.own_directory(h) / f"gpufleet-lab-{lab_id}" / name for h in found]


def scope_name(lab_id: str, name: str) -> str:
    """The name of the transient scope that a group is under systemd, without ``.scope``."""
    return f"gpufleet-lab-{lab_id}-{name}"


def spawn(
    argv: Sequence[str],
    *,
    lab_id: str,
    name: str,
    group: Sequence[Path],
    log: Path,
    environment: Mapping[str, str] | None = None,
    subgroups: Sequence[str] = (),
) -> subprocess.Popen[bytes]:
    """Start ``argv`` in the group ``name``, in a session of its own, with its output appended to ``log``.

    ``subgroups`` are made below each directory of the group for the process to use.
    """
    command: list[str] = list(argv)
    if systemd_runs_here():
        scope = ["systemd-run", "--scope", "--quiet", "--collect", "--slice=system.slice", "--property=Delegate=yes"]
        gate = 'until [ -e "$1" ]; do sleep 0.02; done; shift; exec "$@"'
        ready = log.with_name(f".{name}.go")
        ready.unlink(missing_ok=True)
        command = [*scope, f"--unit={scope_name(lab_id, name)}", "--", "sh", "-c", gate, "sh", str(ready), *argv]
        process = _popen(command, log, environment)
        _wait_for(group[0], process, log)
        others = [directory for directory in group[1:] if not directory.is_dir()]
        cgroup.create([*others, *(directory / sub for directory in group for sub in subgroups)])
        cgroup.join(others, process.pid)
        ready.touch()
        return process
    cgroup.create([*group, *(directory / sub for directory in group for sub in subgroups)])
    command = ["sh", "-c", _JOIN, "sh", " ".join(map(str, group)), *argv]
    return _popen(command, log, environment)


def _popen(command: Sequence[str], log: Path, environment: Mapping[str, str] | None) -> subprocess.Popen[bytes]:
    with log.open("ab") as output:
        return subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            env={**os.environ, **(environment or {})},
        )


def _wait_for(directory: Path, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + _START_SECONDS
    while not directory.is_dir():
        if process.poll() is not None or time.monotonic() > deadline:
            text = log.read_text(encoding="utf-8", errors="replace")[-2000:]
            raise LabError(f"systemd made no scope {directory.name}:\n{text}")
        time.sleep(0.01)


def end(group: Sequence[Path]) -> None:
    """Kill all that runs in the group and remove its directories."""
    unified = group[0]
    if unified.is_dir():
        cgroup.kill(unified)
    for directory in group:
        cgroup.remove(directory)


def alive(group: Sequence[Path]) -> bool:
    """Whether any process runs in the group."""
    return bool(cgroup.pids(group[0]))
