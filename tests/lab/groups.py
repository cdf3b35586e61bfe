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
_GATE = 'until [ -e "$1" ]; do sleep 0.02; done; shift; exec "$@"'
_JOIN = 'for group in $1; do echo "$$" > "$group/cgroup.procs"; done; shift; exec setsid --fork "$@"'


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
) -> None:
    """Start ``argv`` in the group ``name``, as nobody's child, with its output appended to ``log``.

    ``subgroups`` are made below each directory of the group for the process to use. Whether it runs, the group tells.
    """
    if systemd_runs_here():
        _spawn_in_scope(argv, lab_id, name, group, log, environment, subgroups)
        return
    cgroup.create([*group, *(directory / sub for directory in group for sub in subgroups)])
    _run(["sh", "-c", _JOIN, "sh", " ".join(map(str, group)), *argv], log, environment)


def _spawn_in_scope(
    argv: Sequence[str],
    lab_id: str,
    name: str,
    group: Sequence[Path],
    log: Path,
    environment: Mapping[str, str] | None,
    subgroups: Sequence[str],
) -> None:
    """systemd makes the v2 group (and its own v1 one); the process waits at a gate until the rest is made."""
    gate = log.with_name(f".{name}.go")
    gate.unlink(missing_ok=True)
    command = ["systemd-run", "--scope", "--quiet", "--collect", "--slice=system.slice", "--property=Delegate=yes"]
    command += [
        f"--unit={scope_name(lab_id, name)}",
        f"--description=Lab {lab_id}: {name}",
        "--",
        "sh",
        "-c",
        _GATE,
        "sh",
        str(gate),
        *argv,
    ]
    _run(["setsid", "--fork", *command], log, environment)
    deadline = time.monotonic() + _START_SECONDS
    while not alive(group):
        if time.monotonic() > deadline:
            text = log.read_text(encoding="utf-8", errors="replace")[-2000:]
            raise LabError(f"systemd made no scope {group[0].name}:\n{text}")
        time.sleep(0.01)
    others = [directory for directory in group[1:] if not directory.is_dir()]
    cgroup.create([*others, *(directory / sub for directory in group for sub in subgroups)])
    for pid in cgroup.pids(group[0]):
        cgroup.join(others, pid)
    gate.touch()


def _run(command: Sequence[str], log: Path, environment: Mapping[str, str] | None) -> None:
    with log.open("ab") as output:
        result = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env={**os.environ, **(environment or {})},
            check=False,
        )
    if result.returncode != 0:
        raise LabError(f"can't start {command[0]} (status {result.returncode}); see {log}")


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
