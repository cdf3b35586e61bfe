# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Steps that build on each other: a line each with its time; the first that fails is the last."""

from __future__ import annotations

import time
from collections.abc import Callable


class StepFailed(Exception):
    """What a step found wrong, in the words that are shown."""


def hold(problems: list[str]) -> None:
    """Go on when there are no problems. StepFailed with all of them otherwise."""
    if problems:
        raise StepFailed("\n".join("    " + problem for problem in problems))


class Steps:
    """Runs steps and counts them."""

    def __init__(self) -> None:
        self.passed = 0

    def run(self, name: str, work: Callable[[], str]) -> None:
        """One step. ``work`` returns what was proven, in a few words; whatever it raises goes on up, after the step's line."""
        started = time.monotonic()
        try:
            proven = work()
        except BaseException:
            self._line(name, started, "FAILED")
            raise
        self._line(name, started, "ok  " + proven)
        self.passed += 1

    @staticmethod
    def _line(name: str, started: float, text: str) -> None:
        print("  %-16s %6.1f s  %s" % (name, time.monotonic() - started, text), flush=True)
