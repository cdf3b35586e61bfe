# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A driver of which one GPU hangs, read again and again without waiting for that GPU each time."""

from __future__ import annotations

from dataclasses import replace
from typing import Dict, Optional, Sequence, Tuple

from .._gpu.reader import GpuReader
from .._gpu.types import Gpu, Snapshot

# What one call of the driver may take of the whole time: a hung GPU is waited for once, and the others still get their time. Of a short
# time it may take more, since a busy host and a driver without persistence mode are slow, and not hung.
_SHARE = 4.0
_LEAST_CALL_S = 3.0
_LONGEST_CALL_S = 60.0


def call_limit(timeout: float) -> float:
    """How long a single call of the driver may take in a reclaim of ``timeout`` seconds."""
    return min(_LONGEST_CALL_S, max(timeout / _SHARE, min(_LEAST_CALL_S, timeout / 2.0)))


class PatientReader(GpuReader):
    """Asks a GPU that has hung once no more, and answers for it with what was seen then.

    Only as long as another GPU answers: where all hang, it is the driver, or the look at its processes.
    """

    def __init__(self, reader: GpuReader) -> None:
        self._reader = reader
        self._all: Tuple[int, ...] = ()
        self._hung: Dict[int, Gpu] = {}

    def snapshot(self, gpus: Optional[Sequence[str]] = None, processes: bool = True) -> Snapshot:
        """As :meth:`GpuReader.snapshot`; a selection is by index once a GPU has hung."""
        left_out = [index for index in self._hung if not gpus or str(index) in gpus]
        if not left_out:
            found = self._reader.snapshot(gpus, processes)
            self._remember(found, whole=not gpus)
            return found
        rest = [index for index in self._all if index not in left_out and (not gpus or str(index) in gpus)]
        remembered = [self._hung[index] for index in left_out]
        if not rest:
            detail = "; ".join("GPU %d: %s" % (gpu.index, gpu.error) for gpu in remembered)
            return Snapshot(False, reason="driver_hung", reason_detail=detail, processes_reliable=False, gpus=tuple(remembered))
        found = self._reader.snapshot([str(index) for index in rest], processes)
        if not found.available:
            return found
        self._remember(found, whole=False)
        return replace(
            found,
            gpus=tuple(sorted((*found.gpus, *remembered), key=lambda gpu: gpu.index)),
            processes_reliable=found.processes_reliable and all(gpu.processes_reliable for gpu in remembered),
        )

    def close(self) -> None:
        self._reader.close()

    def _remember(self, found: Snapshot, whole: bool) -> None:
        if whole and found.available:
            self._all = tuple(gpu.index for gpu in found.gpus)
        answered = any(not gpu.unanswered for gpu in found.gpus)
        if found.available and self._all and (answered or self._hung):
            self._hung.update({gpu.index: gpu for gpu in found.gpus if gpu.unanswered})
