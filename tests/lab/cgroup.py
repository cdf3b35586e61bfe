# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Control groups of the lab: every process that it starts lives in one, so that all can be found and ended.

Where systemd runs this machine, a transient scope with ``Delegate=yes`` is the group's home. Elsewhere a group is made
below the launching process's own, in each hierarchy: in a hybrid machine that is cgroup v2 and every v1 controller.
"""

from __future__ import annotations

import errno
import os
import signal
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from lab.errors import LabError

_KILL_SECONDS = 10.0


@dataclass(frozen=True)
class Hierarchy:
    """One mounted cgroup hierarchy: its v1 controllers (empty for v2) and where it is mounted."""

    mount: Path
    controllers: tuple[str, ...]
    version: int


def parse_hierarchies(mountinfo: str) -> list[Hierarchy]:
    """The hierarchies in the text of ``/proc/self/mountinfo``; a hierarchy that is mounted twice counts once."""
    found: dict[tuple[int, tuple[str, ...]], Hierarchy] = {}
    for line in mountinfo.splitlines():
        left, _dash, right = line.partition(" - ")
        fields, tail = left.split(), right.split()
        if len(fields) < 5 or len(tail) < 3 or tail[0] not in ("cgroup", "cgroup2") or fields[3] != "/":
            continue
        if tail[0] == "cgroup2":
            entry = Hierarchy(Path(fields[4]), (), 2)
        else:
            options = [option for option in tail[2].split(",") if option not in ("rw", "ro", "xattr", "clone_children")]
            names = tuple(sorted(option for option in options if not option.startswith(("release_agent=", "noprefix"))))
            entry = Hierarchy(Path(fields[4]), names, 1)
        found.setdefault((entry.version, entry.controllers), entry)
    return list(found.values())


def hierarchies() -> list[Hierarchy]:
    """The cgroup hierarchies that are mounted on this machine."""
    return parse_hierarchies(Path("/proc/self/mountinfo").read_text(encoding="utf-8"))


def find_unified() -> Hierarchy | None:
    """The cgroup v2 hierarchy, or None."""
    return next((hierarchy for hierarchy in hierarchies() if hierarchy.version == 2), None)


def find_v1(controller: str) -> Hierarchy | None:
    """The v1 hierarchy with ``controller``, or None."""
    return next((h for h in hierarchies() if h.version == 1 and controller in h.controllers), None)


def parse_memberships(text: str) -> dict[tuple[str, ...], str]:
    """``/proc/PID/cgroup`` as controllers -> path; cgroup v2 has the empty tuple."""
    result: dict[tuple[str, ...], str] = {}
    for line in text.splitlines():
        _number, names, path = line.split(":", 2)
        result[tuple(sorted(names.split(","))) if names else ()] = path
    return result


def own_directory(hierarchy: Hierarchy, pid: int | str = "self") -> Path:
    """The directory of a process's group in ``hierarchy``."""
    memberships = parse_memberships(Path(f"/proc/{pid}/cgroup").read_text(encoding="utf-8"))
    path = memberships.get(hierarchy.controllers, "/")
    # A path that begins with /.. lies outside this process's cgroup namespace: the mount's root is as near as one gets.
    return hierarchy.mount if path.startswith("/..") else hierarchy.mount / path.lstrip("/")


def create(directories: Iterable[Path]) -> None:
    """Make the directories, parents too; a v1 cpuset is filled from its parent, without which it takes no task."""
    for directory in directories:
        for level in [*reversed(directory.parents), directory]:
            if level.is_dir():
                continue
            level.mkdir(mode=0o755, exist_ok=True)
            for name in ("cpuset.cpus", "cpuset.mems"):
                source, target = level.parent / name, level / name
                if source.exists() and target.exists() and not target.read_text(encoding="ascii").strip():
                    target.write_text(source.read_text(encoding="ascii"), encoding="ascii")


def join(directories: Iterable[Path], pid: int) -> None:
    """Move a process into the groups."""
    for directory in directories:
        (directory / "cgroup.procs").write_text(str(pid), encoding="ascii")


def tree(directory: Path) -> Iterator[Path]:
    """The group and those below it, the deepest first."""
    for path, _directories, _files in os.walk(directory, topdown=False):
        yield Path(path)


def pids(directory: Path) -> list[int]:
    """The processes in the group and below it; none if the group is gone."""
    found: set[int] = set()
    for level in tree(directory):
        try:
            text = (level / "cgroup.procs").read_text(encoding="ascii")
        except OSError as error:
            if error.errno in (errno.ENOENT, errno.ENODEV):
                continue
            raise
        found.update(int(word) for word in text.split())
    # 0 stands for a process of a PID namespace that isn't ours.
    return sorted(found - {0})


def kill(directory: Path) -> None:
    """SIGKILL everything in the group at once, as when power fails, and wait until it is empty."""
    deadline = time.monotonic() + _KILL_SECONDS
    switch = directory / "cgroup.kill"
    while True:
        left = pids(directory)
        if not left:
            return
        if time.monotonic() > deadline:
            raise LabError(f"processes in {directory} survive SIGKILL: {', '.join(map(str, left))}")
        if switch.exists():
            switch.write_text("1", encoding="ascii")
        else:
            for pid in left:
                try:
                    os.kill(pid, signal.SIGKILL)
                except ProcessLookupError:
                    continue
        time.sleep(0.005)


def remove(directory: Path) -> None:
    """Remove an empty group with those below it; one that is gone already is fine."""
    deadline = time.monotonic() + _KILL_SECONDS
    while directory.is_dir():
        try:
            for level in tree(directory):
                level.rmdir()
        except FileNotFoundError:
            continue
        except OSError as error:
            # The kernel lets go of a dead process's group a moment after the process.
            if error.errno != errno.EBUSY or time.monotonic() > deadline:
                raise LabError(f"can't remove the cgroup {error.filename}: {error.strerror}") from error
            time.sleep(0.01)
