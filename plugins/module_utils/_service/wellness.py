# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Telling a busy server from a dead one, when neither answers at once."""

from __future__ import annotations

from typing import Optional

from .._core.clock import Clock
from .._core.errors import GpuFleetError
from .._server.http import Server
from .._server.ready import ReadyState
from .ready import Target, probe

# A server that makes tokens makes some within this time.
_WATCH_S = 3.0


def unwell(target: Target, seen: ReadyState, clock: Clock) -> Optional[str]:
    """Why a running server does not serve; None when it serves, still loads, or is only busy.

    A restart costs minutes of service, so an answer that comes late is no reason for one while tokens are still made,
    and one bad look alone never is.
    """
    if seen.ready or seen.stage == "loading":
        return None
    before = _tokens(target.server)
    clock.sleep(_WATCH_S)
    after = _tokens(target.server)
    if before is not None and after is not None and after > before:
        return None
    again = probe(target, clock)
    if again.ready or again.stage == "loading":
        return None
    return "it runs but does not serve: %s" % again.detail


def _tokens(server: Server) -> Optional[float]:
    try:
        return server.metrics(5.0).get("generation_tokens_total")
    except GpuFleetError:
        return None
