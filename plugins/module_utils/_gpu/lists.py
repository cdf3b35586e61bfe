# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The driver's process lists joined: one entry per process."""

from __future__ import annotations

from typing import Dict, List, Optional, Sequence, Tuple

from . import raw

# A pid is at most 2^22 on Linux whatever pid_max says.
_PID_LIMIT = 1 << 22
# Nothing has as much as this; a larger number is a misread or "unknown" (2^64-1, in some units).
ABSURD = 1 << 50


def plausible(pid: int, used: Optional[int], total: Optional[int]) -> bool:
    """Whether an entry of a list can be true on a GPU of ``total`` bytes; None: its total is unknown."""
    if not 1 < pid <= _PID_LIMIT:
        return False
    return used is None or 0 <= used <= (ABSURD if total is None else total)


# One process in one MIG instance: (GPU instance, compute instance, bytes); None each where the driver does not say.
Part = Tuple[Optional[int], Optional[int], Optional[int]]


def merge(entries: Sequence[raw.RawProcess]) -> List[Tuple[int, str, Optional[int]]]:
    """Entries of all lists by pid: (pid, types joined with +, bytes).

    A process in two lists (compute and graphics) shows the same memory in both: the larger counts. One with several MIG
    instances has memory in each: they are added. A part that is not reported makes the whole unknown.
    """
    kinds: Dict[int, List[str]] = {}
    for entry in entries:
        of_pid = kinds.setdefault(entry.pid, [])
        if entry.kind not in of_pid:
            of_pid.append(entry.kind)
    parts = parts_of(entries)
    return [(pid, "+".join(sorted(kinds[pid])), total(parts[pid])) for pid in sorted(kinds)]


def parts_of(entries: Sequence[raw.RawProcess]) -> Dict[int, Tuple[Part, ...]]:
    """Where each process has its memory, by pid, each place once."""
    parts: Dict[int, Dict[Tuple[Optional[int], Optional[int]], Optional[int]]] = {}
    for entry in entries:
        where = (entry.gpu_instance_id, entry.compute_instance_id)
        mine = parts.setdefault(entry.pid, {})
        before = mine.get(where)
        mine[where] = entry.used if before is None else before if entry.used is None else max(before, entry.used)
    return {pid: tuple((where[0], where[1], used) for where, used in mine.items()) for pid, mine in parts.items()}


def total(parts: Sequence[Part]) -> Optional[int]:
    """Bytes of all these parts; None when one is unknown."""
    sizes = [used for _instance, _compute, used in parts]
    return None if None in sizes else sum(size or 0 for size in sizes)
