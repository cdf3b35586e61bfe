# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Who started a process: the text of /proc/PID/cgroup read for cgroup v1, the hybrid form and v2."""

from __future__ import annotations

import re
from typing import List, Optional, Tuple

from .jobs import find_job
from .types import CgroupOwner

# What systemd can put in a cgroup of its own. Slices only group.
_UNIT_SUFFIXES = (".service", ".scope", ".socket", ".mount", ".swap")

_ID = "(?P<id>[0-9a-f]{64})"

# How container runtimes name the cgroup of a container, one path component each. The first match from the root decides, also among these
# and the jobs of schedulers (jobs.py).
_CONTAINER_COMPONENTS: Tuple[Tuple[str, str], ...] = (
    ("docker", "docker-%s\\.scope$" % _ID),
    ("podman", "libpod-(?:conmon-|payload-)?%s(?:\\.scope)?$" % _ID),
    ("containerd", "(?:.*:)?cri-containerd[-:]%s(?:\\.scope)?$" % _ID),
    ("containerd", "(?:nerdctl|containerd)-%s\\.scope$" % _ID),
    ("cri-o", "crio-(?:conmon-)?%s(?:\\.scope)?$" % _ID),
    ("lxc", "lxc\\.(?:payload|monitor)\\.(?P<id>.+)$"),
    ("systemd-nspawn", "systemd-nspawn@(?P<id>.+)\\.service$"),
    ("libvirt", "machine-(?:qemu|lxc)(?:\\\\x2d|-)(?P<id>.+)\\.scope$"),
    ("systemd-nspawn", "machine-(?P<id>.+)\\.scope$"),
)

# Runtimes that use plain directories: the component after these is the container (or, for Kubernetes, a bare 64-digit id).
_CONTAINER_PARENTS = {"docker": "docker", "lxc": "lxc", "lxc.payload": "lxc", "libpod_parent": "podman"}
_BARE_ID = _ID + "$"
_USER_MANAGER = r"user@(\d+)\.service$"
_USER_SLICE = r"user-(\d+)\.slice$"
_SESSION = r"session-(.+)\.scope$"


def owner_of(text: str) -> CgroupOwner:
    """Read /proc/PID/cgroup. An unknown or empty text gives an owner without any field set."""
    parts = _parts(systemd_path(text))
    container, runtime, depth = _container(parts)
    job = find_job(parts[:depth])
    if job is not None:
        container, runtime, depth = job
    elif container is None:
        # In cgroup v1 a scheduler has a tree of its own in the other hierarchies, while systemd's still names the daemon's unit.
        jobs = (find_job(_parts(path)) for path in _paths(text))
        container, runtime, _depth = next((job for job in jobs if job is not None), (None, None, 0))
    # What stands below a container is the container's own systemd, which means nothing to this host.
    outside = parts[:depth]
    manager_uid: Optional[int] = None
    uid: Optional[int] = None
    unit: Optional[str] = None
    scope: Optional[str] = None
    session: Optional[str] = None
    slices: List[str] = []
    for part in outside:
        manager = re.match(_USER_MANAGER, part)
        if manager:
            manager_uid = uid = int(manager.group(1))
            continue
        if part.endswith(".slice"):
            slices.append(part)
            user_slice = re.match(_USER_SLICE, part)
            if user_slice:
                uid = int(user_slice.group(1))
            continue
        if not part.endswith(_UNIT_SUFFIXES):
            continue
        if part.endswith(".scope"):
            scope = part
            found = re.match(_SESSION, part)
            if found:
                session = found.group(1)
                break
            if part == "init.scope":
                break
        unit = part
        break
    return CgroupOwner(
        unit=unit,
        user_unit=unit is not None and manager_uid is not None,
        uid=uid,
        slice=slices[-1] if slices else None,
        scope=scope or _container_scope(parts, depth),
        container=container,
        runtime=runtime,
        session=session,
    )


def _parts(path: str) -> List[str]:
    return [_unescape(part) for part in path.split("/") if part not in ("", "..", ".")]


def _paths(text: str) -> List[str]:
    """The path in every hierarchy."""
    fields = (line.split(":", 2) for line in text.splitlines())
    return [each[2] for each in fields if len(each) == 3]


def systemd_path(text: str) -> str:
    """The path in the hierarchy that systemd manages: v1's name=systemd, else v2's, else the deepest of the others."""
    named = unified = ""
    others: List[str] = []
    for line in text.splitlines():
        fields = line.split(":", 2)
        if len(fields) != 3:
            continue
        path = fields[2]
        if path.endswith(" (deleted)"):
            path = path[: -len(" (deleted)")]
        if fields[1] == "name=systemd":
            named = path
        elif fields[0] == "0" and fields[1] == "":
            unified = path
        else:
            others.append(path)
    for path in (named, unified):
        if path.strip("/"):
            return path
    return max(others, key=lambda path: path.count("/") if path.strip("/") else -1, default="")


def _container(parts: List[str]) -> Tuple[Optional[str], Optional[str], int]:
    """(id or name, runtime, number of components before it); without a container (None, None, all of them)."""
    kubernetes = False
    for position, part in enumerate(parts):
        kubernetes = kubernetes or part.startswith("kubepods")
        for runtime, pattern in _CONTAINER_COMPONENTS:
            found = re.match(pattern, part)
            if found:
                return _plain(found.group("id")), runtime, position
        parent = parts[position - 1] if position else ""
        if parent in _CONTAINER_PARENTS:
            return _plain(part), _CONTAINER_PARENTS[parent], position
        if re.match(_BARE_ID, part):
            return part, "kubernetes" if kubernetes else "unknown", position
    return None, None, len(parts)


def _container_scope(parts: List[str], depth: int) -> Optional[str]:
    return parts[depth] if depth < len(parts) and parts[depth].endswith(".scope") else None


def _unescape(part: str) -> str:
    """systemd puts ``_`` before a name that the kernel would take for a file of its own."""
    return part[1:] if part.startswith("_") else part


def _plain(name: str) -> str:
    """Undo systemd's ``\\xNN`` escapes in a machine name."""
    return re.sub(r"\\x([0-9a-f]{2})", lambda found: chr(int(found.group(1), 16)), name)
