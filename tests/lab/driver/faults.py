# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Which failure of the scenario applies to a call: patterns, counts and callers."""

from __future__ import annotations

from dataclasses import dataclass
from fnmatch import fnmatchcase

from .scenario import Failure, Scenario


@dataclass(frozen=True)
class Caller:
    """Who asks: what kind of client, and as whom."""

    client: str  # library, smi, cuda
    uid: int


class Faults:
    """Counts how often each failure was met; the counts outlive a rewritten scenario that keeps the failure."""

    def __init__(self) -> None:
        self._met: dict[Failure, int] = {}

    def match(self, scenario: Scenario, call: str, index: int | None, caller: Caller) -> Failure | None:
        """The failure that applies to this call now, or None.

        A call counts for each failure that it fits, up to the one that applies: equal failures queue up.
        """
        for failure in scenario.failures:
            if not _fits(failure, call, index, caller):
                continue
            met = self._met.get(failure, 0)
            self._met[failure] = met + 1
            within = met >= failure.skip and (failure.times is None or met < failure.skip + failure.times)
            if within:
                return failure
        return None

    def forget(self, scenario: Scenario) -> None:
        """Drop the counts of failures that the scenario no longer has."""
        self._met = {failure: met for failure, met in self._met.items() if failure in scenario.failures}


def hangs(failure: Failure) -> bool:
    """Whether a failure keeps its caller waiting."""
    return failure.hang_s == "forever" or float(failure.hang_s) > 0


def orders(failure: Failure) -> list[tuple[str, ...]]:
    """What the caller's own process has to act out before it gets its answer."""
    out: list[tuple[str, ...]] = []
    if failure.stdout is not None:
        out.append(("!stdout", failure.stdout))
    if failure.stderr is not None:
        out.append(("!stderr", failure.stderr))
    if failure.crash:
        out.append(("!crash",))
    if failure.uninterruptible:
        out.append(("!uninterruptible",))
    elif failure.ignore_term:
        out.append(("!blockterm",))
    return out


def _fits(failure: Failure, call: str, index: int | None, caller: Caller) -> bool:
    return (
        fnmatchcase(call, failure.call)
        and (failure.gpu is None or failure.gpu == index)
        and failure.client in ("any", caller.client)
        and not (failure.unprivileged and caller.uid == 0)
    )
