# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Which processes hold a GPU's device node open: what `fuser /dev/nvidia*` would find, without killing anybody.

The driver's lists leave out a forked child that only inherited the open node, yet its memory stays until that child ends.
"""

from __future__ import annotations

import os
import re
from typing import Dict, FrozenSet, Iterable, List, Optional, Set

# Nothing else of this room is loaded for it: on a host where nobody holds a GPU, this look is all that is needed.

# Every node through which a process can hold GPU memory. dxg is WSL's, nvhost/nvmap are the integrated devices'.
_NODE = re.compile(
    r"(?P<node>nvidia\d+|nvidiactl|nvidia-uvm(?:-tools)?|nvidia-modeset|nvidia-caps/.+|nvidia-vgpu\d*|dxg|nvmap|nvhost-.+?)"
    r"(?: \(deleted\))?$"
)
_GPU_NODE = re.compile(r"nvidia(\d+)$")


def all_pids(root: str = "/proc") -> List[int]:
    """Every pid that is visible, in ascending order."""
    return sorted(int(name) for name in os.listdir(root) if name.isdigit())


def device_holders(root: str = "/proc", dev: str = "/dev") -> Dict[int, FrozenSet[str]]:
    """pid -> names of the nodes it holds (``nvidia0``, ``nvidiactl``, ``nvidia-caps/nvidia-cap1`` ...).

    Only processes whose descriptors may be read appear; without root these are the caller's own. Processes that hold
    none are left out.
    """
    found: Dict[int, FrozenSet[str]] = {}
    for pid in all_pids(root):
        nodes = nodes_of(pid, root, dev)
        if nodes:
            found[pid] = nodes
    return found


def open_files(pid: int, root: str = "/proc") -> Optional[List[str]]:
    """What its descriptors point at; None when they can't be read (not ours, or it ended)."""
    base = "%s/%d/fd" % (root, pid)
    try:
        descriptors = os.listdir(base)
    except OSError:
        return None
    targets: List[str] = []
    for descriptor in descriptors:
        try:
            targets.append(os.readlink(base + "/" + descriptor))
        except OSError:
            pass  # closed meanwhile
    return targets


def nodes_of(pid: int, root: str = "/proc", dev: str = "/dev") -> Optional[FrozenSet[str]]:
    """The nodes one process holds; None when its descriptors can't be read (not ours, or it ended)."""
    targets = open_files(pid, root)
    if targets is None:
        return None
    prefix = dev + "/"
    nodes: Set[str] = set()
    for target in targets:
        if target.startswith(prefix):
            match = _NODE.match(target, len(prefix))
            if match:
                nodes.add(match.group("node"))
    return frozenset(nodes)


def mapped_nodes(pid: int, root: str = "/proc", dev: str = "/dev") -> FrozenSet[str]:
    """The nodes in a process's memory map: a mapping outlives the descriptor it was made through.

    Costs far more than the descriptors and can block on a process that is stuck in the kernel: ask only for suspects.
    """
    nodes: Set[str] = set()
    prefix = (dev + "/").encode()
    try:
        with open("%s/%d/maps" % (root, pid), "rb") as handle:
            for line in handle:
                start = line.find(prefix)
                if start >= 0:
                    match = _NODE.match(line[start + len(prefix):].decode("utf-8", "replace").rstrip("\n"))
                    if match:
                        nodes.add(match.group("node"))
    except OSError:
        pass  # ended, or not ours to read: no proof either way
    return frozenset(nodes)


def gpu_minors(nodes: Iterable[str]) -> FrozenSet[int]:
    """The N of every ``nvidiaN`` among the nodes."""
    return frozenset(int(match.group(1)) for match in map(_GPU_NODE.match, nodes) if match)
