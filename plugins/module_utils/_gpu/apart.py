# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""NVML GPU by GPU, each in a child of its own and several at once: what is left of a reading of which a call did not return.

A child that is lost takes with it what it had read, and its successor has to start the library again, for which a driver without
persistence mode takes seconds. Side by side that costs once, however many GPUs hang, and the good ones wait for none of them.
"""

from __future__ import annotations

import re
import time
from typing import Callable, List, NamedTuple, Optional, Sequence, Tuple, cast

from . import raw
from .limits import IMPATIENT_S, TIMES_SLOWEST
from .worker import Worker, WorkerGone

# So many children at once.
_AT_ONCE = 16
# A GPU of which so many calls were lost is not asked anything more.
_LOSSES_OF_A_GPU = 3
# The patience halves from one round to the next, down to this.
_LEAST_PATIENCE_S = 1.0
# Where this part of the reading's time is over, a GPU is given up with the first call that it loses.
_SHORT = 0.5
_STEP = r"(?P<function>nvml\w+) on GPU (?P<index>\d+)$"
# Without it nothing of a GPU can be asked.
_HANDLE = "nvmlDeviceGetHandleByIndex"

# What is asked beside the memory, and must not take it along.
_BESIDE_MEMORY = "nvmlDeviceGetFieldValues"

Skip = Tuple[Optional[str], Optional[int], int]
# A request: how deep, whether with processes, and what is left out of it in any case.
_Level = Tuple[int, bool, Tuple[Skip, ...]]


class Loss(NamedTuple):
    """A call about a GPU that did not return; ``code`` is raw.HUNG or raw.CRASHED."""

    function: str
    gpu: int
    code: int


def loss_of(gone: WorkerGone) -> Optional[Loss]:
    """What was lost; None where it was no call about a GPU, or none that is to blame, since the whole reading's time was over."""
    match = re.match(_STEP, gone.step)
    if match is None or gone.late:
        return None
    return Loss(match.group("function"), int(match.group("index")), code_of(gone))


def code_of(gone: WorkerGone) -> int:
    """The code that stands for a child's end."""
    return raw.HUNG if gone.hung else raw.CRASHED


class _Gpu:
    """Where a GPU stands. ``kept`` is the most that it told, ``level`` the number of the request whose answer that is."""

    def __init__(self, index: int) -> None:
        self.index = index
        self.skips: List[Skip] = []
        self.kept: Optional[raw.RawGpu] = None
        self.level = 0
        self.settled = False


class Apart:
    """One reading, GPU by GPU. ``begin`` and ``end`` are its time (monotonic, seconds), ``timeout`` the limit of a call that is about
    no GPU, ``slowest`` how long the slowest one took that was. ``start`` starts a child, ``bury`` takes one that was lost."""

    def __init__(
        self, timeout: float, begin: float, end: float, slowest: float, start: Callable[[], Worker], bury: Callable[[Worker], None]
    ) -> None:
        self.notes: List[str] = []
        self._timeout = timeout
        self._end = end
        self._short = begin + _SHORT * (end - begin)
        self._slowest = slowest
        self._rounds = 0
        self._start = start
        self._bury = bury

    def read(self, indices: Sequence[int], processes: bool, depth: int, lost: Optional[Loss]) -> List[raw.RawGpu]:
        """These GPUs, in their order; ``lost`` is what made this necessary. Never raises for what a GPU does: one that could not be read
        has a code that says so, and what it told before that stays."""
        # who it is, its memory, the rest: each is kept when what comes after it is lost
        memory: _Level = (raw.MEMORY, False, ((_BESIDE_MEMORY, None, raw.HUNG),))
        before: List[_Level] = [(raw.IDENTITY, False, ()), memory] if depth > raw.IDENTITY else []
        levels: List[_Level] = before + [(depth, processes, ())]
        gpus = [_Gpu(index) for index in indices]
        for gpu in gpus:
            if lost is not None and gpu.index == lost.gpu:
                self._lose(gpu, levels, lost, lost.code, short=False)  # so far it has been asked but once
        while True:
            waiting = [gpu for gpu in gpus if not gpu.settled]
            if not waiting:
                return [cast(raw.RawGpu, gpu.kept) for gpu in gpus]
            for start in range(0, len(waiting), _AT_ONCE):
                self._ask(waiting[start: start + _AT_ONCE], levels)
            self._rounds += 1

    @property
    def _patience(self) -> float:
        """Seconds that a call about a GPU may take."""
        return min(self._timeout, max(_LEAST_PATIENCE_S, IMPATIENT_S / 2.0 ** self._rounds) + TIMES_SLOWEST * self._slowest)

    def _ask(self, gpus: Sequence[_Gpu], levels: Sequence[_Level]) -> None:
        if time.monotonic() >= self._end:
            self._pass_over(gpus, levels, raw.HUNG, "the reading's time was over")
            return
        workers: List[Worker] = []
        try:
            for gpu in gpus:  # all are at work before the first one is waited for
                try:
                    workers.append(self._start())
                except OSError as exc:
                    if not workers:
                        self._pass_over(gpus, levels, raw.UNKNOWN, "no process could be started for that: %s" % exc)
                    break  # no more processes for now: the next round asks the others
                only, skips = frozenset([gpu.index]), tuple(gpu.skips)
                workers[-1].begin(*[("nvml", only, processes, depth, skips + left_out) for depth, processes, left_out in levels])
            for gpu, worker in zip(gpus, workers):
                self._hear(gpu, worker, levels)
        finally:
            for worker in workers:
                worker.close()

    def _hear(self, gpu: _Gpu, worker: Worker, levels: Sequence[_Level]) -> None:
        try:
            for level in range(len(levels)):
                answer = cast(raw.RawReading, worker.finish(self._timeout, self._end, self._patience))
                if not self._take(gpu, answer, level, levels):
                    break
            gpu.settled = True
        except WorkerGone as gone:
            self._bury(worker)
            self.notes.append(gone.detail)
            self._lose(gpu, levels, loss_of(gone), code_of(gone), time.monotonic() > self._short)

    def _take(self, gpu: _Gpu, answer: raw.RawReading, level: int, levels: Sequence[_Level]) -> bool:
        """Keep an answer; whether the next one is worth anything."""
        if answer.failure is None and answer.gpus:
            if level >= gpu.level:
                gpu.kept, gpu.level = answer.gpus[0], level
            return answer.gpus[0].code == raw.SUCCESS
        why = answer.failure.detail if answer.failure is not None else "NVML shows it no more"
        self.notes.append("GPU %d: %s" % (gpu.index, why))
        self._give_up(gpu, levels, None, raw.NOT_FOUND if answer.failure is None else raw.UNKNOWN)
        return False

    def _pass_over(self, gpus: Sequence[_Gpu], levels: Sequence[_Level], code: int, why: str) -> None:
        self.notes.append("GPU %s not asked: %s" % (", ".join(str(gpu.index) for gpu in gpus), why))
        for gpu in gpus:
            self._give_up(gpu, levels, None, code)

    def _lose(self, gpu: _Gpu, levels: Sequence[_Level], loss: Optional[Loss], code: int, short: bool) -> None:
        """A call of its child did not return: ask again without it, unless time is short, or where it is worth nothing."""
        if loss is None or short or loss.function.startswith(_HANDLE) or len(gpu.skips) + 1 >= _LOSSES_OF_A_GPU:
            self._give_up(gpu, levels, loss, code)
        else:
            gpu.skips.append((loss.function, gpu.index, code))

    @staticmethod
    def _give_up(gpu: _Gpu, levels: Sequence[_Level], loss: Optional[Loss], code: int) -> None:
        """What it told so far is all that is known of it; the rest says why it is unknown."""
        gpu.settled = True
        what = loss.function if loss is not None else None
        found = gpu.kept
        if found is None:
            gpu.kept = raw.RawGpu(gpu.index, code=code, detail=what)
            return
        depth, processes, _left_out = levels[-1]
        if found.memory is None and found.memory_code == raw.SUCCESS and depth > raw.IDENTITY:
            found.memory_code, found.detail = code, what
        for name in ("utilization_percent", "compute_mode") if depth == raw.FULL else ():
            if getattr(found, name) is None:
                found.unread.setdefault(name, code)
        if processes and found.processes is None and found.processes_code == raw.SUCCESS:
            found.processes_code = code
