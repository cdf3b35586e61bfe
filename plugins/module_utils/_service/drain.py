# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Letting a server's running requests end before it is stopped."""

from __future__ import annotations

from typing import Optional

from .._core.clock import Clock, Deadline
from .._core.errors import GpuFleetError
from .._server.http import Server

_PAUSE_S = 0.25
# Zero requests once may be the moment between two; zero for this long means that nobody is waiting for an answer.
_QUIET_S = 0.5


def drain(server: Server, clock: Clock, timeout: float) -> int:
    """Wait until no request runs or waits. Returns how many were left after ``timeout`` seconds, 0 when none.

    A server that does not answer ``/metrics`` has nothing that could be waited for; it counts as drained.
    """
    deadline = Deadline(clock, timeout)
    quiet_since = None
    while True:
        left = _requests(server)
        if left is None:
            return 0
        now = clock.monotonic()
        if left:
            quiet_since = None
        elif quiet_since is None:
            quiet_since = now
        elif now - quiet_since >= _QUIET_S:
            return 0
        if deadline.expired:
            return left
        clock.sleep(min(_PAUSE_S, max(0.01, deadline.remaining)))


def _requests(server: Server) -> Optional[int]:
    try:
        metrics = server.metrics(2.0)
    except GpuFleetError:
        return None
    return int(metrics.get("num_requests_running", 0) + metrics.get("num_requests_waiting", 0))
