# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The second rung: processes ended one by one, TERM first, KILL after the grace, through pidfds only.

A vLLM engine that is asked to end takes its workers down in order; workers that are hit in the middle of a collective leave
memory behind. So a parent is asked first, and its children only when it is gone or does not react. Each process gets its whole
grace, counted from its own TERM.
"""

from __future__ import annotations

import signal
from typing import Callable, Dict, List, Optional, Sequence, Set

from .._core.clock import Clock
from .._process.holders import mapped_nodes, nodes_of
from .._process.identity import CHANGED, DENIED, GONE, ProvenProcess, open_proven
from .._process.procfs import ancestors, read_process
from .._process.types import ProcessInfo
from .done import Signalled
from .planned import Signal

_POLL_S = 0.02
# What has left the unit meanwhile is not the unit's any more, and nothing is sent to it.
MOVED = "moved"
# How long a parent may take before its children are asked as well.
_LEAD_S = 5.0
# How long a process gets to end after KILL before it counts as surviving. The proof goes on watching it.
KILL_WAIT_S = 3.0

HoldsGpu = Callable[[int, str], bool]
Belongs = Callable[[int], bool]


def holds_gpu(pid: int, root: str = "/proc") -> bool:
    """Whether the process has a GPU's device node open or mapped."""
    return bool(nodes_of(pid, root)) or bool(mapped_nodes(pid, root))


class _Ending:
    """One process on its way out."""

    def __init__(
        self, info: ProcessInfo, process: Optional[ProvenProcess], elders: Set[int], belongs: Optional[Belongs] = None
    ) -> None:
        self.info = info
        self.process = process
        self.elders = elders
        self.belongs = belongs
        self.termed_at: Optional[float] = None
        self.killed_at: Optional[float] = None
        self.signals: List[str] = []
        self.outcome: Optional[str] = None
        self.detail: Optional[str] = None

    def send(self, sig: int, name: str) -> None:
        if self.process is None:
            raise AssertionError("self.process is not None")
        if self.belongs is not None and not self.belongs(self.info.pid):
            self.outcome, self.detail = MOVED, "it has left the unit"
            return
        outcome = self.process.signal(sig)
        if outcome == GONE:
            self.ended()
        elif outcome == CHANGED:
            self.outcome, self.detail = "refused", "its pid means another process by now, or it runs another program"
        elif outcome == DENIED:
            self.outcome, self.detail = "refused", "the kernel does not permit it"
        else:
            self.signals.append(name)

    def ended(self) -> None:
        self.outcome = "gone" if not self.signals else "killed" if "KILL" in self.signals else "terminated"


def end_processes(
    signals: Sequence[Signal], grace: float, clock: Clock, root: str = "/proc", holds: HoldsGpu = holds_gpu
) -> List[Signalled]:
    """End the processes of a plan. Each is proven again first: same start, program and user, and still on a GPU."""
    infos = [each.holder.info for each in signals]
    tasks = _tasks([info for info in infos if info is not None], root, holds)
    _drive(tasks, grace, KILL_WAIT_S, clock)
    by_pid = {task.info.pid: task for task in tasks}
    results: List[Signalled] = []
    for each in signals:
        task = by_pid.get(each.holder.pid)
        if task is None or task.outcome is None:
            results.append(Signalled(each.holder, (), "refused", "/proc does not show it"))
        else:
            results.append(Signalled(each.holder, tuple(task.signals), task.outcome, task.detail))
    return results


def end_all(
    infos: Sequence[ProcessInfo], grace: float, kill_wait: float, clock: Clock, root: str = "/proc", belongs: Optional[Belongs] = None
) -> List[int]:
    """End processes that are known to be a stopped unit's; returns the pids that are still there.

    ``belongs`` is asked before each signal whether the process still is the unit's.
    """
    tasks = _tasks(infos, root, None, belongs)
    _drive(tasks, grace, kill_wait, clock)
    return [task.info.pid for task in tasks if task.outcome in ("survived", "refused")]


def _tasks(
    infos: Sequence[ProcessInfo], root: str, holds: Optional[HoldsGpu], belongs: Optional[Belongs] = None
) -> List[_Ending]:
    pids = {info.pid for info in infos}
    tasks: List[_Ending] = []
    for info in infos:
        elders = (set(ancestors(info.pid, root)) & pids) - {info.pid}
        task = _Ending(info, open_proven(info, root), elders, belongs)
        if task.process is None:
            now = read_process(info.pid, root)
            gone = now is None or now.zombie or now.start_ticks != info.start_ticks
            task.outcome = "gone" if gone else "refused"
            task.detail = None if gone else "it runs this task, or runs another program than before"
        elif holds is not None and not holds(info.pid, root):
            # Between the look and now it let go of the GPU, or its pid was given to somebody else just before the pidfd.
            still = task.process.still_same()
            task.outcome = "refused" if still else "gone"
            task.detail = "it holds no GPU any more" if still else None
        tasks.append(task)
    return tasks


def _drive(tasks: Sequence[_Ending], grace: float, kill_wait: float, clock: Clock) -> None:
    start = clock.monotonic()
    lead = min(_LEAD_S, grace / 4.0)
    alive: Dict[int, _Ending] = {task.info.pid: task for task in tasks if task.outcome is None}
    try:
        while alive:
            for task in list(alive.values()):
                _advance(task, alive, start, lead, grace, kill_wait, clock)
            alive = {pid: task for pid, task in alive.items() if task.outcome is None}
            if alive:
                clock.sleep(_POLL_S)
    finally:
        for task in tasks:
            if task.process is not None:
                task.process.close()


def _advance(
    task: _Ending,
    alive: Dict[int, _Ending],
    start: float,
    lead: float,
    grace: float,
    kill_wait: float,
    clock: Clock,
) -> None:
    if task.process is None:
        raise AssertionError("task.process is not None")
    now = clock.monotonic()
    if task.process.wait(0.0):
        task.ended()
    elif task.termed_at is None:
        if grace > 0 and any(pid in alive and alive[pid].outcome is None for pid in task.elders) and now - start < lead:
            return
        task.send(signal.SIGTERM, "TERM")
        task.termed_at = now
        if task.info.state in ("T", "t") and task.outcome is None:
            task.process.signal(signal.SIGCONT)  # a stopped process can't act on TERM
    elif task.killed_at is None:
        if now - task.termed_at >= grace:
            task.send(signal.SIGKILL, "KILL")
            task.killed_at = now
    elif now - task.killed_at >= kill_wait:
        task.outcome, task.detail = "survived", "not even SIGKILL ended it"
