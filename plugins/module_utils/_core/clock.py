# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Time as a port: the core asks this object, tests put their own in its place."""

from __future__ import annotations

import time


class Clock:
    """The machine's clock. All values are seconds."""

    def monotonic(self) -> float:
        """Seconds that only go forward; for deadlines and durations."""
        return time.monotonic()

    def time(self) -> float:
        """Seconds since the epoch; for what people read."""
        return time.time()

    def sleep(self, seconds: float) -> None:
        """Wait between two looks. Negative values do not wait."""
        if seconds > 0:
            time.sleep(seconds)


class Deadline:
    """A point in time that a loop must not pass."""

    def __init__(self, clock: Clock, seconds: float) -> None:
        self._clock = clock
        self._start = clock.monotonic()
        self._end = self._start + seconds

    @property
    def expired(self) -> bool:
        """Whether the time is over."""
        return self._clock.monotonic() >= self._end

    @property
    def remaining(self) -> float:
        """Seconds left, never negative."""
        return max(0.0, self._end - self._clock.monotonic())

    @property
    def elapsed(self) -> float:
        """Seconds since the deadline was set."""
        return self._clock.monotonic() - self._start
