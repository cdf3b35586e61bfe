# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Taking a lab down: everything that its record names, and nothing else, in an order that works after any crash."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from lab import cgroup, freezer, groups, limits, machine, network, places
from lab.errors import LabError
from lab.places import lab_id
from lab.record import DRAFT, FILE, Record

# All that a lab writes into its state directory.
_OWN_FILES = (FILE, DRAFT, "hosts", "layers", "ssh", "freezer")


def remove_host(record: Record, name: str) -> None:
    """End what runs for the host, delete its files and take it out of the record."""
    names = [f"{name}.{part}" for part in ("frozen", "machine", "driver", "ssh")]
    for group in names:
        _end_group(record, group)
    if record.bridge is not None:
        network.remove_host_link(machine.machine_name(name, record.lab_id), record.bridge)
    directory = record.state / "hosts" / name
    if directory.exists():
        _delete_tree(directory)
    for group in names:
        record.groups.pop(group, None)
    record.hosts.pop(name, None)
    record.save()


def _end_group(record: Record, name: str) -> None:
    directories = [Path(path) for path in record.groups.get(name, ())]
    if name.endswith(".frozen"):
        for directory in directories:
            freezer.thaw(directory)
            cgroup.remove(directory)
        return
    if directories:
        groups.end(directories)


def remove_all(record: Record) -> None:
    """Take the whole lab down. Each step copes with what is gone already, so that it can be run again."""
    # Frozen processes first: they die of no signal.
    for name in sorted(record.groups, key=lambda name: not name.endswith(".frozen")):
        _end_group(record, name)
    parent_name = f"gpufleet-lab-{record.lab_id}"
    for parent in {Path(path).parent for paths in record.groups.values() for path in paths}:
        if parent.name == parent_name:
            cgroup.remove(parent)
    freezer.unmount(record.state)
    if record.bridge is not None:
        # A host's network namespace, and its cable with it, may outlive it for minutes: a connection that nobody
        # answers any more holds it.
        for name in record.hosts:
            network.remove_host_link(machine.machine_name(name, record.lab_id), record.bridge)
        network.remove_bridge(record.bridge)
    limits.restore(places.cache_dir())
    for name in _OWN_FILES[:0:-1]:
        _delete(record.state / name)
    # The record goes last: until here, another run could have finished the work.
    _delete(record.state / FILE)


def remove_strays(state: Path) -> bool:
    """End what a lab left whose record is gone (its directory was deleted while it was up); False if there is nothing.

    Its control groups and its bridge carry an id that follows from the directory's path, so that none of another
    lab's is taken.
    """
    own = lab_id(state)
    found = stray_groups(own)
    for directory in found:
        # Only the v1 freezer's has a switch.
        for switch in directory.rglob("freezer.state"):
            if switch.parent != directory:
                freezer.thaw(switch.parent)
    for directory in found:
        cgroup.kill(directory)
    for directory in found:
        cgroup.remove(directory)
    bridge = network.bridge_name(own)
    links = network.links()
    prefix = network.host_end_name(machine.machine_name("", own))
    for name, link in links.items():
        if any(other.startswith(prefix) for other in (name, *link.get("altnames", ()))):
            network.remove_link(name)
    if bridge in links:
        network.remove_bridge(bridge)
    return bool(found) or bridge in links


def stray_groups(own: str) -> list[Path]:
    """The topmost control groups of the lab with the id ``own``, in every hierarchy."""
    found = []
    for hierarchy in cgroup.hierarchies():
        for directory, below, _files in os.walk(hierarchy.mount):
            mine = [name for name in below if name == f"gpufleet-lab-{own}" or name.startswith(f"gpufleet-lab-{own}-")]
            found += [Path(directory) / name for name in mine]
            below[:] = [name for name in below if name not in mine]
    return found


def _delete(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        _delete_tree(path)
    else:
        path.unlink(missing_ok=True)


def mounts_below(mountinfo: str, directory: Path) -> list[Path]:
    """The mount points at or below ``directory`` in the text of ``/proc/self/mountinfo``, the last mounted first."""
    points = []
    for line in mountinfo.splitlines():
        raw = line.split()[4]
        point = Path(raw.encode("ascii").decode("unicode_escape").encode("latin-1").decode("utf-8", "surrogateescape"))
        if point.is_relative_to(directory):
            points.append(point)
    return points[::-1]


def _delete_tree(directory: Path) -> None:
    """Delete a directory, but never through a mount that somebody made in it."""
    mounted = mounts_below(Path("/proc/self/mountinfo").read_text(encoding="utf-8"), directory)
    if mounted:
        raise LabError(f"{mounted[0]} is mounted below {directory}, and the lab didn't do it: unmount it first")
    shutil.rmtree(directory)
