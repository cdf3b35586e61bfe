# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Whether a person reads this run's output, and how much of it a person can read."""

from __future__ import annotations

from typing import Any, NamedTuple

# The stdout callbacks that print lines for people as things happen. Whoever writes another one may parse what it prints, or
# draw on the terminal: anything that isn't known to be for people gets nothing.
_FOR_PEOPLE = frozenset(
    "actionable debug default default_without_diff diy full_skip minimal oneline selective skippy stderr timestamp unixy yaml".split()
)

# Within one phase, on a single host.
_OFTEN_S = 10.0
# A connection that is silent for longer might be taken for dead on the way.
_SELDOM_S = 60.0
# Between two lines of all hosts together, which tell of a new phase as well. Each is a remote command.
_LINE_S = 1.5
# A phase that is over in less is not worth a line, the less the more hosts there are.
_STEADY_S = 0.5
_STEADY_MANY_S = 3.0
_FEW = 4


class Pace(NamedTuple):
    """``every`` is seconds between two lines of one host in one phase, ``steady`` what a phase has to last to be told of."""

    every: float
    steady: float


def for_people(callback: Any) -> bool:
    """Whether what this stdout callback prints is read by people."""
    return str(callback).rpartition(".")[2] in _FOR_PEOPLE


def pace_for(hosts: int) -> Pace:
    """So that ``hosts`` hosts at a time make no more than a line a second together, as long as none is silent for too long."""
    return Pace(min(_SELDOM_S, max(_OFTEN_S, _LINE_S * hosts)), _STEADY_S if hosts < _FEW else _STEADY_MANY_S)


# Nobody reads: only the end is waited for. No phase lasts for this long without an end of the wait.
UNSEEN = Pace(_SELDOM_S, 2 * _SELDOM_S)
