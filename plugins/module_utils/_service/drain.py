# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Letting a server's running requests end before it is stopped.

Looking from outside alone loses requests: one that arrives after the last look and before SIGTERM is aborted, since vLLM drains
nothing by itself (``--shutdown-timeout 0``). With a shutdown timeout of its own, SIGTERM ends what was accepted and refuses what
comes after (500), so a service that is to be drained is declared with one. The looks before it stay: until SIGTERM the server goes
on serving, and a load balancer that was told sends nothing more.
"""

from __future__ import annotations

import math
import re
from typing import Any, Mapping, Optional, Tuple

from .._core.clock import Clock, Deadline
from .._core.errors import GpuFleetError
from .._server.http import Server

_PAUSE_S = 0.25
# Zero requests once may be the moment between two; zero for this long means that nobody is waiting for an answer.
_QUIET_S = 0.5
_METRICS_S = 2.0
_OWN_DRAIN = re.compile(r"^shutdown-timeout:\s*([0-9]+)\s*$", re.M)


def shutdown_timeout(args: Mapping[str, Any], drain_timeout: float) -> Optional[int]:
    """Seconds of ``--shutdown-timeout`` for a service that is to be drained; None leaves it as ``args`` have it."""
    if drain_timeout <= 0 or any(str(name).replace("-", "_") == "shutdown_timeout" for name in args):
        return None
    return math.ceil(drain_timeout)


def own_drain(config_path: str) -> int:
    """Seconds that a server drains by itself on SIGTERM, by its configuration file; 0 where that does not say."""
    try:
        with open(config_path, encoding="utf-8", errors="replace") as handle:
            found = _OWN_DRAIN.search(handle.read())
    except OSError:
        return 0
    return int(found.group(1)) if found is not None else 0


def drain(server: Server, clock: Clock, timeout: float) -> Optional[int]:
    """Wait until no request runs or waits: 0. After ``timeout`` seconds how many were left; None when it never said.

    A server that listens no more, or has no metrics, has nothing that could be waited for; it counts as drained. One that is
    too busy to answer is anything but drained: it is asked again.
    """
    deadline = Deadline(clock, timeout)
    quiet_since = None
    last: Optional[int] = None
    while True:
        answered, left = _requests(server)
        if answered and left is None:
            return 0
        now = clock.monotonic()
        last = left if answered else last
        if not answered or left:
            quiet_since = None
        elif quiet_since is None:
            quiet_since = now
        elif now - quiet_since >= _QUIET_S:
            return 0
        if deadline.expired:
            return last if answered or last else None
        clock.sleep(min(_PAUSE_S, max(0.01, deadline.remaining)))


def _requests(server: Server) -> Tuple[bool, Optional[int]]:
    """Whether it answered, and how many requests it has; no number where there is nothing to count."""
    try:
        metrics = server.metrics(_METRICS_S)
    except GpuFleetError as exc:
        cause = exc.__cause__
        # Refused: nothing listens. Without a cause: it answered, but has no metrics.
        return (cause is None or isinstance(cause, ConnectionRefusedError)), None
    return True, int(metrics.get("num_requests_running", 0) + metrics.get("num_requests_waiting", 0))
