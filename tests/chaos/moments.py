# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""When a swap is disturbed: spread over all of its time, and at the edges of its phases. A seed names all moments of a run."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import dataclass

from chaos.sight import Window

# In the order in which they come; a phase that a swap does not have (nothing to drain) is passed by.
PHASES = ("preflight", "stop", "settle", "load", "commit")
_NEAR_S = 0.4
_PAUSE_S = 0.002
# Of a swap's usual time: later than this a quick one may have ended.
_SURELY = 0.8


@dataclass(frozen=True)
class Moment:
    """``part`` of a swap's time, or ``after_s`` after the begin of ``phase`` (``record``: the change is written down)."""

    part: float = 0.0
    phase: str = ""
    after_s: float = 0.0

    def __str__(self) -> str:
        return f"{self.phase} + {self.after_s * 1000:.0f} ms" if self.phase else f"{self.part * 100:.1f} % of its time"


@dataclass(frozen=True)
class Try:
    """One disturbance. ``fresh``: the new model was never on the host, so its files are staged by this swap."""

    kind: str
    number: int
    moment: Moment
    fresh: bool

    def __str__(self) -> str:
        return f"{self.kind}:{self.number} at {self.moment}{', new to the host' if self.fresh else ''}"


def tries(kind: str, count: int, seed: int) -> list[Try]:
    """The moments of one kind: three of five spread evenly over the swap, two of five at the edges of its phases."""
    found = []
    even = count - count * 2 // 5
    edges = ("record", *PHASES)[-(count - even) :]  # the late ones, where most has been touched, if there are too few moments for all
    for number in range(count):
        dice = random.Random(f"{seed}/{kind}/{number}")
        if number < even:
            moment = Moment(part=(number + dice.random()) / even)
        else:
            moment = Moment(phase=edges[(number - even) % len(edges)], after_s=dice.random() * _NEAR_S)
        found.append(Try(kind, number, moment, dice.random() < 0.5))
    return found


def again(kind: str, missed: int, after: int, seed: int) -> list[Try]:
    """For moments that found no swap under way as many others, numbered from ``after``: anywhere but at its very end."""
    found = []
    for number in range(after, after + missed):
        dice = random.Random(f"{seed}/{kind}/{number}")
        found.append(Try(kind, number, Moment(part=dice.uniform(0.05, _SURELY)), dice.random() < 0.5))
    return found


def wait_for(moment: Moment, begun: float, usual_s: float, window: Window, going: Callable[[], bool]) -> bool:
    """Sleep until the moment comes. False when the swap ended before; ``usual_s`` is how long one takes."""
    while True:
        now = time.monotonic()
        if not moment.phase:
            if now - begun >= moment.part * usual_s:
                return going()
        elif (window.record() and moment.phase == "record") or window.phase() == moment.phase:
            time.sleep(moment.after_s)
            return going()
        if not going():
            return False
        time.sleep(_PAUSE_S)
