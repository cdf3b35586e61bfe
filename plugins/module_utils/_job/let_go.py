# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The moment after a change has ended, in which its job still holds the host's lock, or its unit still stops.

Whoever is told of the end may begin the next thing at once, and must not be refused for what is over.
"""

from __future__ import annotations

from typing import Callable

from .._core.clock import Clock
from .._core.errors import GpuFleetError

# A job that has told its end is gone within milliseconds. What takes longer is the next change, which is nobody's to wait for here.
_GONE_S = 3.0
_PAUSE_S = 0.05


def wait_until_gone(gone: Callable[[], bool], clock: Clock) -> None:
    """Wait, for some seconds at most, until the job's unit has ended, as ``gone`` says: its lock has gone with its process."""
    end = clock.monotonic() + _GONE_S
    try:
        while not gone() and clock.monotonic() < end:
            clock.sleep(_PAUSE_S)
    except GpuFleetError:
        return  # what came of the change is known, and worth more than this moment
