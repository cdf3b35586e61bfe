# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Processes that not even SIGKILL ends: the v1 freezer holds them until they are thawed (cgroup v2's lets SIGKILL in)."""

from __future__ import annotations

import contextlib
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

from lab import cgroup
from lab.errors import LabError

_FREEZE_SECONDS = 5.0


def _own_mount(state: Path) -> Path:
    return state / "freezer"


def _hierarchy(state: Path) -> cgroup.Hierarchy:
    """The v1 freezer's hierarchy; on a machine that runs on cgroup v2 alone it is mounted below the lab's state."""
    found = cgroup.find_v1("freezer")
    if found is not None:
        return found
    mount = _own_mount(state)
    mount.mkdir(exist_ok=True)
    result = subprocess.run(
        ["mount", "-t", "cgroup", "-o", "freezer", "freezer", str(mount)], capture_output=True, text=True, check=False
    )
    if result.returncode != 0:
        raise LabError(f"the kernel has no v1 freezer, which unkillable processes need: {result.stderr.strip()}")
    found = cgroup.find_v1("freezer")
    if found is None:
        raise LabError(f"the v1 freezer was mounted at {mount} but isn't there")
    return found


def _set(directory: Path, state: str) -> None:
    switch = directory / "freezer.state"
    switch.write_text(state, encoding="ascii")
    deadline = time.monotonic() + _FREEZE_SECONDS
    while switch.read_text(encoding="ascii").strip() != state:
        if time.monotonic() > deadline:
            raise LabError(f"{directory} doesn't become {state}")
        time.sleep(0.01)


def group(lab_id: str, state: Path, host: str) -> Path:
    """Where a host's frozen processes are, whether or not there are any."""
    found = cgroup.find_v1("freezer")
    home = cgroup.own_directory(found) if found is not None else _own_mount(state)
    return home / f"gpufleet-lab-{lab_id}" / f"{host}.frozen"


@contextlib.contextmanager
def frozen(directory: Path, state: Path, pid: int) -> Iterator[None]:
    """Hold the process ``pid`` (this machine's number) frozen, in a group of its own in ``directory``."""
    hierarchy = _hierarchy(state)
    home = cgroup.own_directory(hierarchy, pid)
    own = directory / str(pid)
    cgroup.create([own])
    cgroup.join([own], pid)
    _set(own, "FROZEN")
    try:
        yield
    finally:
        # A power cut in between has removed the group already.
        if own.is_dir():
            _set(own, "THAWED")
            for left in cgroup.pids(own):
                # A process that was killed while it was frozen ends now.
                with contextlib.suppress(ProcessLookupError):
                    cgroup.join([home], left)
            cgroup.remove(own)


def thaw(directory: Path) -> None:
    """Let everything run again that is frozen in the group and below it; one that is gone is fine."""
    for level in cgroup.tree(directory):
        _set(level, "THAWED")


def unmount(state: Path) -> None:
    """Undo what :func:`frozen` had to mount, if it had to."""
    mount = _own_mount(state)
    if mount.is_mount():
        result = subprocess.run(["umount", str(mount)], capture_output=True, text=True, check=False, timeout=60)
        if result.returncode != 0:
            raise LabError(f"can't unmount {mount}: {result.stderr.strip()}")
