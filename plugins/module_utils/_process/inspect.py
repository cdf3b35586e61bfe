# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Everything that /proc knows about a set of processes and about who holds the GPUs' nodes, in one look."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import AbstractSet, Callable, Dict, FrozenSet, Iterable, List, Mapping, Optional

from .cgroup import owner_of
from .holders import gpu_minors, mapped_nodes, nodes_of
from .procfs import cgroup_text, in_initial_pid_namespace, pid_max, read_process
from .readers import READER_NAME
from .types import CgroupOwner, ProcessInfo


@dataclass
class Inspection:
    """What was seen. ``infos`` also holds the ancestors; a pid that is missing there does not exist here.

    ``nodes`` says per pid which device nodes it holds: None where that can't be seen. ``holders`` are all processes that hold
    the node of a GPU, whether anybody asked for them or not.
    """

    infos: Dict[int, ProcessInfo] = field(default_factory=dict)
    owners: Dict[int, CgroupOwner] = field(default_factory=dict)
    nodes: Dict[int, Optional[FrozenSet[str]]] = field(default_factory=dict)
    holders: Dict[int, FrozenSet[int]] = field(default_factory=dict)
    initial_pid_namespace: bool = True
    pid_max: int = 1 << 22

    def family(self, pid: int) -> List[ProcessInfo]:
        """The ancestors of a process, nearest first."""
        line: List[ProcessInfo] = []
        info = self.infos.get(pid)
        while info is not None and info.ppid and len(line) < 64:
            info = self.infos.get(info.ppid)
            if info is not None:
                line.append(info)
        return line


def inspect(
    pids: Iterable[int],
    holders: Mapping[int, FrozenSet[str]],
    root: str = "/proc",
    dev: str = "/dev",
    untitled: AbstractSet[int] = frozenset(),
    beat: Callable[[str], None] = lambda step: None,
) -> Inspection:
    """Look at these processes, their ancestors, and all who hold a GPU's node.

    ``holders`` are those found by :func:`.holders.device_holders`. ``untitled`` are processes whose command line must not be
    read (see :func:`.procfs.read_process`). ``beat`` is told what comes next, for the case that it never ends.
    """
    seen = Inspection(initial_pid_namespace=in_initial_pid_namespace(root), pid_max=pid_max(root))
    for pid, nodes in holders.items():
        seen.nodes[pid] = nodes
        minors = gpu_minors(nodes)
        if minors:
            seen.holders[pid] = minors
    for pid in sorted(set(pids) | set(seen.holders)):
        _add(seen, pid, root, untitled, beat)
        if pid in seen.infos:
            seen.owners[pid] = owner_of(cgroup_text(pid, root))
            if pid not in seen.nodes:
                seen.nodes[pid] = _nodes(seen.infos[pid], root, dev, untitled)
            elif seen.infos[pid].comm == READER_NAME:
                # to be believed that it only reads, it must have nothing mapped either
                held = seen.nodes[pid]
                seen.nodes[pid] = None if held is None or pid in untitled else held | mapped_nodes(pid, root, dev)
    return seen


def _add(seen: Inspection, pid: int, root: str, untitled: AbstractSet[int], beat: Callable[[str], None]) -> None:
    while pid > 0 and pid not in seen.infos:
        beat("/proc/%d" % pid)
        info = read_process(pid, root, title=pid not in untitled)
        if info is None:
            return
        seen.infos[pid] = info
        pid = info.ppid


def _nodes(info: ProcessInfo, root: str, dev: str, untitled: AbstractSet[int]) -> Optional[FrozenSet[str]]:
    """The nodes of a process that showed none among its descriptors: mapped ones count, a zombie has nothing left."""
    if info.zombie:
        return None
    nodes = nodes_of(info.pid, root, dev)
    if nodes is None or nodes or info.pid in untitled:
        return nodes
    return mapped_nodes(info.pid, root, dev)
