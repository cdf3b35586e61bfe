# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The nvidia-smi backend: CSV for memory (see smi_memory.py), XML for what CSV does not carry (see smi_details.py)."""

from __future__ import annotations

import os
import shutil
import time
from typing import FrozenSet, Optional, Set

from .._core.runner import Runner
from . import raw
from .limits import reading_limit
from .smi_command import Command
from .smi_details import add_details
from .smi_memory import MemoryReader

# Where it is when PATH does not say (a unit's PATH is short).
_PLACES = ("/usr/bin/nvidia-smi", "/usr/local/bin/nvidia-smi", "/usr/lib/wsl/lib/nvidia-smi", "/run/current-system/sw/bin/nvidia-smi")


class SmiCollector:
    """Reads the driver through nvidia-smi. Keeps what does not change: the fields that it does not know, the CUDA version."""

    def __init__(self, runner: Runner, timeout: float, proc_root: str = "/proc") -> None:
        self._runner = runner
        self._timeout = timeout
        self._proc_root = proc_root
        self._refused: Set[str] = set()
        self._cuda_version: Optional[str] = None

    def read(self, only: Optional[FrozenSet[int]], processes: bool, depth: int, end: Optional[float] = None) -> raw.RawReading:
        """One reading; arguments as for the NVML backend. ``end`` (monotonic): when it has to be over, by default limits.reading_limit()
        from now; a command that is killed then may take a second more."""
        end = time.monotonic() + reading_limit(self._timeout) if end is None else end
        reading = raw.RawReading(backend="nvidia_smi")
        binary = find_smi()
        if binary is None:
            reading.failure = raw.Failure("library_missing", "nvidia-smi was not found on this host", absent=True)
            return reading
        command = Command(self._runner, binary, self._timeout, end)
        rows, reading.count, reading.failure, reading.notes = MemoryReader(command, self._refused, depth, self._proc_root).read(only)
        if reading.failure is not None:
            return reading
        rows.sort(key=lambda row: row.gpu.index)
        reading.gpus = [row.gpu for row in rows]
        reading.driver_version = next((row.driver_version for row in rows if row.driver_version), None)
        reading.unread["driver_version"] = rows[0].version_code if rows else raw.NO_GPUS
        if depth == raw.FULL and not any(gpu.code == raw.SUCCESS for gpu in reading.gpus):
            reading.unread["cuda_version"] = reading.gpus[0].code if reading.gpus else raw.NO_GPUS
        for_version = self._cuda_version is None and depth == raw.FULL
        found = add_details(command, reading, only, processes, for_version, self._proc_root)
        self._cuda_version = self._cuda_version or found
        reading.cuda_version = self._cuda_version
        return reading


def find_smi() -> Optional[str]:
    """The nvidia-smi of this host; None when there is none."""
    found = shutil.which("nvidia-smi")
    if found is not None:
        return found
    return next((place for place in _PLACES if os.access(place, os.X_OK)), None)
