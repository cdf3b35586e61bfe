# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A driver of which one GPU hangs, read again and again without waiting for that GPU each time."""

from __future__ import annotations

from dataclasses import replace
from typing import Dict, List, Optional, Sequence, Tuple

from .._gpu.reader import GpuReader
from .._gpu.types import Gpu, Snapshot, memory_sums
from .proof import held_mib

# What one call of the driver may take of the whole time: a hung GPU is waited for once, and the others still get their time. Of a short
# time it may take more, since a busy host and a driver without persistence mode are slow, and not hung.
_SHARE = 4.0
_LEAST_CALL_S = 3.0
_LONGEST_CALL_S = 60.0


def call_limit(timeout: float) -> float:
    """How long a single call of the driver may take in a reclaim of ``timeout`` seconds."""
    return min(_LONGEST_CALL_S, max(timeout / _SHARE, min(_LEAST_CALL_S, timeout / 2.0)))


class PatientReader(GpuReader):
    """Asks a GPU that has hung once no more, and answers for it that it does not answer: nothing is known of its memory from then on.

    Where only the list of a GPU's processes hung, its memory is still read each time, and only the list is asked for no more.
    Only as long as another GPU answers: where all hang, it is the driver, or the look at its processes.
    """

    def __init__(self, reader: GpuReader) -> None:
        self._reader = reader
        self._all: Tuple[int, ...] = ()
        self._hung: Dict[int, Gpu] = {}
        # Those of which only the list of processes hung, as they were then.
        self._mute: Dict[int, Gpu] = {}

    def snapshot(self, gpus: Optional[Sequence[str]] = None, processes: bool = True) -> Snapshot:
        """As :meth:`GpuReader.snapshot`; a selection is by index once a GPU has hung."""
        if not any(not gpus or str(index) in gpus for index in (*self._hung, *self._mute)):
            found = self._reader.snapshot(gpus, processes)
            self._remember(found, whole=not gpus)
            return found
        wanted = [index for index in self._all if not gpus or str(index) in gpus]
        mute = [index for index in wanted if index in self._mute]
        open_ = [index for index in wanted if index not in self._mute and index not in self._hung]
        remembered = [self._hung[index] for index in wanted if index in self._hung]
        if not mute and not open_:
            return _driver_hung(remembered)
        known = dict(self._mute)
        groups = [(open_, True), (mute, False)] if processes else [(sorted(open_ + mute), False)]
        readings = [self._reader.snapshot([str(index) for index in group], how) for group, how in groups if group]
        if len(readings) == 2 and readings[0].available and readings[1].reason == "driver_hung":
            # now these hang with their memory too, which is nothing against the driver, since the others answer
            readings.pop()
            for index in mute:
                self._hung[index] = _unknown(self._mute.pop(index))
            remembered += [self._hung[index] for index in mute]
        for found in readings:
            if not found.available:
                return found
            self._remember(found, whole=False)
        fresh = [_without_list(gpu, known[gpu.index]) if gpu.index in mute else gpu for found in readings for gpu in found.gpus]
        whole = tuple(sorted((*fresh, *remembered), key=lambda gpu: gpu.index))
        total, used, free = memory_sums(whole)
        return replace(
            readings[0], gpus=whole, total_mib=total, used_mib=used, free_mib=free,
            processes_reliable=readings[0].processes_reliable and all(gpu.processes_reliable for gpu in whole),
        )

    def close(self) -> None:
        self._reader.close()

    def _remember(self, found: Snapshot, whole: bool) -> None:
        if whole and found.available:
            self._all = tuple(gpu.index for gpu in found.gpus)
        if not found.available or not self._all or all(gpu.unanswered for gpu in found.gpus):
            return
        for gpu in found.gpus:
            if not gpu.unanswered:
                continue
            if _only_list_hung(gpu):
                self._mute[gpu.index] = gpu
            else:
                self._hung[gpu.index] = _unknown(gpu)
                self._mute.pop(gpu.index, None)


def _driver_hung(gpus: List[Gpu]) -> Snapshot:
    detail = "; ".join("GPU %d: %s" % (gpu.index, gpu.error) for gpu in gpus)
    return Snapshot(False, reason="driver_hung", reason_detail=detail, processes_reliable=False, gpus=tuple(gpus))


def _only_list_hung(gpu: Gpu) -> bool:
    """Whether the memory of a GPU that hangs can still be read. On unified memory the list is the measure of that."""
    return not gpu.processes_reliable and gpu.memory_type != "unified" and held_mib(gpu) is not None


def _without_list(fresh: Gpu, then: Gpu) -> Gpu:
    """A reading of the memory of a GPU whose list of processes hung ``then``: who is on it is what was last known, and unproven."""
    error = then.error if fresh.error is None else fresh.error
    return replace(fresh, error=error, processes=then.processes, unanswered=True, processes_reliable=False, unattributed_mib=None)


def _unknown(gpu: Gpu) -> Gpu:
    """A GPU that is asked no more: a figure of before is no sign of what it holds now."""
    parts = tuple(replace(part, state="error", used_mib=None, free_mib=None) for part in gpu.mig_devices)
    state = "error" if gpu.state == "ok" else gpu.state
    return replace(gpu, state=state, used_mib=None, free_mib=None, unattributed_mib=None, mig_devices=parts)
