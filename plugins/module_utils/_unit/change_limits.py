# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""How long each part of a change may take, and so the whole of one: what waits for it must not give up before. Seconds throughout."""

from __future__ import annotations

import math

READY_S = 1800.0  # `ready_timeout` and `stop_timeout` where nobody gives them
STOP_S = 60.0
RECONNECT_S = 600.0  # how long the role vllm_swap tries a host again that was lost
# The driver gives memory back seconds after the last process is gone, and not on all GPUs at once.
FREE_S = 120.0
# The old service was there before: waiting for its memory longer than this only keeps it down.
FREE_AGAIN_S = 30.0
# The patience that was asked for is the new server's: the old one may take far longer to load, and has served. A crash is seen at once.
LOAD_AGAIN_S = 1800.0
# The most that a server takes from SIGTERM on beside its drain, and a unit after that from SIGKILL on: its workers' end, the margin of its
# unit, and the kernel.
_STOP_BESIDE_S = 120.0
# A look at the host with a driver and a systemd that are slow, which module and job both take, and the lock that is waited for.
_LOOKS_S = 600.0
# What only the host knows: the own drains of what is replaced, the last looks at the memory, and how slow a busy host is in everything.
_SLACK_S = 900.0


def longest_s(ready: float = READY_S, drain: float = 0.0, stop: float = STOP_S, reconnect: float = RECONNECT_S) -> int:
    """The most that the module may take for one change, in whole seconds, by its own limits.

    That is the change which it finds abandoned and undoes before; then its own with everything as late as may be (reading ahead, drain,
    stop, memory, load) and, at the last moment, its undoing; and a host that is lost at the very end. ``ready``, ``drain`` and ``stop``
    are the module's ``ready_timeout``, ``drain_timeout`` and ``stop_timeout``, ``reconnect`` its ``reconnect_timeout``.
    """
    stopping = max(stop, drain) + _STOP_BESIDE_S
    undoing = 2 * stopping + FREE_AGAIN_S + max(ready, LOAD_AGAIN_S)
    forward = ready + drain + stopping + FREE_S + ready
    return math.ceil(undoing + _LOOKS_S + forward + undoing + reconnect + _SLACK_S)
