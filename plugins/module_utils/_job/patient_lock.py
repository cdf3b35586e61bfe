# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The host's lock for one who may wait for it: the job, which begins while the module that asked for it still holds the lock."""

from __future__ import annotations

from .._core.clock import Clock
from .._core.errors import GpuFleetError
from .._core.host_lock import HostLock

_PAUSE_S = 0.05


class PatientLock(HostLock):
    """Taken as soon as it can be had. Raises GpuFleetError with who holds it where that is not before ``end``."""

    def __init__(self, directory: str, purpose: str, end: float, clock: Clock) -> None:
        """``end`` is in seconds of the monotonic clock."""
        super().__init__(directory, purpose)
        self._end = end
        self._clock = clock

    def __enter__(self) -> "PatientLock":
        while True:
            try:
                super().__enter__()
                return self
            except GpuFleetError:
                if self._clock.monotonic() >= self._end:
                    raise
            self._clock.sleep(_PAUSE_S)
