# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""How long services that are stopped may take before they are killed."""

from __future__ import annotations

from typing import Iterable

from .._systemd.show import UnitStatus
from .._unit.spec import DEFAULT_STOP_TIMEOUT_S

# What systemd gives a unit that says nothing (DefaultTimeoutStopSec as distributed).
_SYSTEMD_DEFAULT_S = 90.0


def patience_for(asked: float, statuses: Iterable[UnitStatus]) -> float:
    """Seconds to wait for all of these units, stopped side by side: what was asked for, or longer where one of them says so.

    A unit whose TimeoutStopSec is beyond the defaults was given a drain of its own by whoever declared it, and requests that
    it may still end are not cut off by somebody else's default. No end at all is nobody's drain.
    """
    longest = asked
    for status in statuses:
        own = status.timeout_stop
        if own is not None and own > DEFAULT_STOP_TIMEOUT_S and own != _SYSTEMD_DEFAULT_S:
            longest = max(longest, own)
    return longest
