# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""nvidia-smi as a command: how long it is waited for during one reading, and what its ends mean."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from typing import Callable, Dict, FrozenSet, Optional, Sequence, TypeVar

from .._core.runner import Completed, Runner
from .limits import IMPATIENT_S, TIMES_SLOWEST
from .smi_text import REQUIRED_FIELDS, failure_code

T = TypeVar("T")

# Exit statuses: a selection that is none; no GPU (of this selection).
BAD_ARGUMENT, NO_DEVICES = 2, 6
# What a reading still tries instead of what hung gets at least this part of a time-out, as long as the reading has time.
_LEAST_PART = 0.5
# So many run at once: each may take its whole time.
_AT_ONCE = 8


class Command:
    """nvidia-smi during one reading: a call has ``timeout`` seconds, what is tried after one that hung is waited for with less patience,
    and at ``end`` (monotonic) all are over: nothing begins any more, and counts as hung."""

    def __init__(self, runner: Runner, binary: str, timeout: float, end: float) -> None:
        self._runner = runner
        self._binary = binary
        self._timeout = timeout
        self._slowest = 0.0
        self._end = end

    def run(self, arguments: Sequence[str], only: Optional[FrozenSet[int]] = None, again: bool = False) -> Completed:
        """Run it for these GPUs. ``again``: something hung before, and this is what is tried instead."""
        started = time.monotonic()
        patience = self._timeout
        if again:
            patience = min(patience, max(self._timeout * _LEAST_PART, IMPATIENT_S + TIMES_SLOWEST * self._slowest))
        patience = min(patience, self._end - started)
        argv = [self._binary, *arguments, *_selection(only)]
        if patience <= 0:
            return Completed(tuple(argv), None, "", "", timed_out=True)
        done = self._runner.run(argv, timeout=patience)
        if not done.timed_out:
            self._slowest = max(self._slowest, time.monotonic() - started)
        return done


def each(indices: Sequence[int], ask: Callable[[int], T], useful: Callable[[Sequence[T]], bool]) -> Dict[int, T]:
    """Ask about GPUs one by one, several at once; no more of them once a round of answers was not useful."""
    found: Dict[int, T] = {}
    for start in range(0, len(indices), _AT_ONCE):
        part = indices[start: start + _AT_ONCE]
        with ThreadPoolExecutor(len(part)) as pool:
            answers = list(pool.map(ask, part))
        found.update(zip(part, answers))
        if not useful(answers):
            break
    return found


def _selection(only: Optional[FrozenSet[int]]) -> Sequence[str]:
    return () if only is None else ("-i", ",".join(str(index) for index in sorted(only)))


def text_of(done: Completed) -> str:
    """All that it said."""
    return done.stdout + "\n" + done.stderr


def text_code(done: Completed) -> int:
    """The NVML code that its end stands for."""
    return failure_code(done.rc, text_of(done))


def no_devices(done: Completed) -> bool:
    """Whether it says that there is no GPU (of this selection)."""
    return done.rc == NO_DEVICES or "no devices were found" in text_of(done).lower()


def of_one_gpu(done: Completed) -> bool:
    """Whether it complains of a single GPU, which only a driver that works can do."""
    return "device handle" in text_of(done).lower()


def said(done: Completed) -> str:
    """How it ended, for a message."""
    if done.timed_out:
        left = ", and could not be killed" if done.abandoned else ""
        return "nvidia-smi did not answer in time%s" % left
    # without the answer itself: what is wrong with it stands beside it
    lines = [line.strip() for line in text_of(done).splitlines() if line.strip() and line.count(",") < len(REQUIRED_FIELDS)]
    return "nvidia-smi ended with exit status %s: %s" % (done.rc, " ".join(lines[-3:]) or "no text")
