# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""How long the driver is waited for: one call, and one reading as a whole."""

from __future__ import annotations

# Once something hung, how long the next may take, besides several times the slowest that came back: a healthy driver answers
# within milliseconds, or, without persistence mode, within seconds.
IMPATIENT_S = 5.0
TIMES_SLOWEST = 4
# One call for what hangs, and the time of two more for all that is done instead; of a short limit never less than that patience.
_TIMES_CALL = 3


def reading_limit(timeout: float) -> float:
    """Seconds that one reading of the driver may take in all, where a single call may take ``timeout``: with every child, command,
    repetition and start of the driver's library in it, and also where one backend takes over from the other.

    Not in it: what names the processes afterwards (see Driver.look()), and the first reading of a selection by UUID or PCI id, which is
    one of its own.
    """
    return max(_TIMES_CALL * timeout, timeout + IMPATIENT_S)
