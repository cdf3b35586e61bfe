# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Readers of the driver that belong to this collection: they hold every GPU's node while they look, and no memory.

Loaded by each reading, so that it loads nothing itself.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, AbstractSet, Optional

if TYPE_CHECKING:
    from .types import ProcessInfo

# What they call themselves: the kernel keeps 15 characters.
READER_NAME = "gpufleet-reader"
# Every CUDA program holds this node, and no program that only reads the driver does.
_CUDA_NODE = "nvidia-uvm"


def take_reader_name() -> None:
    """Call this process so."""
    try:
        with open("/proc/self/comm", "w", encoding="ascii") as handle:
            handle.write(READER_NAME)
    except OSError:
        pass  # no such /proc here: then it is shown like any other


def only_reads(info: ProcessInfo, nodes: Optional[AbstractSet[str]]) -> bool:
    """Whether this is such a reader (of a guard that waits, of a module at work), said of a process that no list of the driver shows.

    Anybody can take the name. So it counts only with what can't be faked: the ``nodes`` that it holds open or mapped are known,
    and the one through which CUDA has memory is not among them.
    """
    return info.comm == READER_NAME and nodes is not None and not any(node.startswith(_CUDA_NODE) for node in nodes)
