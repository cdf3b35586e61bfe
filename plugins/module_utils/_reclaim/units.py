# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The first rung: units stopped as units, in a bounded time, and whatever outlives them in their cgroup swept.

A unit is asked (``systemctl stop --no-block``), then killed as a whole (``systemctl kill --signal=SIGKILL``): under a pending stop
job ``Restart=`` does not bring it back, which it would if its processes were killed by hand. A wedged server never makes
this wait for the unit's own TimeoutStopSec.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Dict, List, Optional, Sequence, Set, Tuple

from .._core.clock import Clock
from .._core.errors import GpuFleetError
from .._process.cgroup import owner_of
from .._process.procfs import cgroup_text, read_process
from .._process.types import ProcessInfo
from .._systemd.manager import Systemd
from .._systemd.show import UnitStatus
from .done import StoppedUnit
from .processes import end_all

_POLL_S = 0.05
# How long a unit gets to end after SIGKILL. A process that the kernel does not let go of is not waited for here.
KILL_WAIT_S = 5.0
_KILL_AGAIN_S = 1.0
_ASK_AGAIN_S = 1.0
# How often somebody may start a unit again while it is being stopped. One more, and systemd's own limit (five starts in ten seconds)
# would put the unit, and the socket or path that starts it, out of service for good.
_RESTARTS = 2


@dataclass(frozen=True)
class UnitRef:
    """A unit and the manager that it belongs to; ``uid`` is None for the system's."""

    systemd: Systemd
    unit: str
    uid: Optional[int] = None


class _Stopping:
    """One unit on its way down."""

    def __init__(self, ref: UnitRef, started: float) -> None:
        self.ref = ref
        self.started = started
        self.asked_at: Optional[float] = None
        self.killed_at: Optional[float] = None
        self.last_kill = 0.0
        # The run of the unit that is being stopped, and since when; a later one has its own grace.
        self.invocation = ""
        self.since = started
        self.restarts = 0
        self.was_killed = False
        self.result: Optional[StoppedUnit] = None
        # While it runs, systemd says where its processes are and what it is really called. Once down, it may be known no more.
        self.control_group = ""
        self.names: Set[str] = {ref.unit}

    def saw(self, status: UnitStatus) -> None:
        """Keep what is needed to find the unit's processes once it is down."""
        self.control_group = status.control_group or self.control_group
        self.names.add(status.unit or self.ref.unit)

    def pids(self, status: UnitStatus, root: str) -> List[int]:
        """The processes in the unit's cgroup that are its own, by the kernel's word."""
        where = replace(status, control_group=status.control_group or self.control_group)
        return [pid for pid in self.ref.systemd.cgroup_pids(self.ref.unit, where) if self.owns(pid, root)]

    def owns(self, pid: int, root: str) -> bool:
        """Whether a process is this unit's, and no other manager's unit of the same name."""
        owner = owner_of(cgroup_text(pid, root))
        return owner.unit in self.names and (owner.uid if owner.user_unit else None) == self.ref.uid

    def finish(
        self, result: str, now: float, survivors: Tuple[int, ...] = (), detail: Optional[str] = None, restarted: bool = False
    ) -> None:
        self.result = StoppedUnit(self.ref.unit, result, now - self.started, survivors, self.ref.uid, detail, restarted)

    def started_again(self, status: UnitStatus) -> bool:
        """Whether this is another run of the unit than the one that was asked to stop."""
        if not status.invocation_id or status.invocation_id == self.invocation:
            return False
        again, self.invocation = bool(self.invocation), status.invocation_id
        return again


def stop_units(
    refs: Sequence[UnitRef], stop_timeout: float, clock: Clock, root: str = "/proc"
) -> List[StoppedUnit]:
    """Stop several units side by side; in at most ``stop_timeout`` + 5 s + the sweep each, in the order given.

    Never raises for one unit's sake: what went wrong stands in its result.
    """
    tasks = [_Stopping(ref, clock.monotonic()) for ref in refs]
    for task in tasks:
        _ask(task, clock, root)
    while True:
        waiting = [task for task in tasks if task.result is None]
        if not waiting:
            return [task.result for task in tasks if task.result is not None]
        for task, status in _statuses(waiting, clock):
            _step(task, status, stop_timeout, clock, root)
        if any(task.result is None for task in tasks):
            clock.sleep(_POLL_S)


def _ask(task: _Stopping, clock: Clock, root: str) -> None:
    ref = task.ref
    try:
        status = ref.systemd.status(ref.unit)
        task.saw(status)
        task.started_again(status)
        if status.inactive:
            if not task.pids(status, root):
                task.finish("inactive", clock.monotonic())
            return  # what outlived the unit is swept in the first step
        ref.systemd.stop(ref.unit, no_block=True)
        task.asked_at = clock.monotonic()
    except GpuFleetError as exc:
        task.finish("failed", clock.monotonic(), detail=exc.msg)


def _statuses(tasks: Sequence[_Stopping], clock: Clock) -> List[Tuple[_Stopping, UnitStatus]]:
    """The units' states, one call per manager. A manager that does not answer ends its units' stops as failed."""
    by_manager: Dict[int, List[_Stopping]] = {}
    for task in tasks:
        by_manager.setdefault(id(task.ref.systemd), []).append(task)
    found: List[Tuple[_Stopping, UnitStatus]] = []
    for group in by_manager.values():
        try:
            statuses = group[0].ref.systemd.statuses([task.ref.unit for task in group])
        except GpuFleetError as exc:
            for task in group:
                task.finish("failed", clock.monotonic(), detail=exc.msg)
            continue
        found += [(task, statuses[task.ref.unit]) for task in group]
    return found


def _step(task: _Stopping, status: UnitStatus, stop_timeout: float, clock: Clock, root: str) -> None:
    now = clock.monotonic()
    ref = task.ref
    task.saw(status)
    if status.inactive:
        # systemd kills by itself what is over its own time-out
        task.was_killed = task.killed_at is not None or status.result == "timeout"
        _sweep(task, status, stop_timeout, clock, root)
        return
    if task.started_again(status):
        task.restarts += 1
        if task.restarts > _RESTARTS:
            task.finish("failed", now, detail="it is started again each time it is stopped", restarted=True)
            return
        task.since, task.asked_at, task.killed_at = now, None, None
    try:
        up = status.active_state in ("active", "activating", "reloading")
        if up and (task.asked_at is None or (now - task.asked_at >= _ASK_AGAIN_S and not status.job)):
            ref.systemd.stop(ref.unit, no_block=True)  # somebody started it meanwhile
            task.asked_at = now
        if task.killed_at is None:
            if now - task.since >= stop_timeout:
                ref.systemd.kill(ref.unit, "SIGKILL", "all")
                task.killed_at = task.last_kill = now
        elif now - task.killed_at >= KILL_WAIT_S:
            task.finish("failed", now, tuple(task.pids(status, root)), "it is still %s" % status.active_state)
        elif now - task.last_kill >= _KILL_AGAIN_S:
            ref.systemd.kill(ref.unit, "SIGKILL", "all")  # a process that forked while it was being killed
            task.last_kill = now
    except GpuFleetError as exc:
        task.finish("failed", now, detail=exc.msg)


def _sweep(task: _Stopping, status: UnitStatus, grace: float, clock: Clock, root: str) -> None:
    """End what is left in the cgroup of a unit that is down (KillMode=process or none leaves the children)."""
    try:
        left = _leftovers(task, status, root)
    except GpuFleetError as exc:
        task.finish("failed", clock.monotonic(), detail=exc.msg)
        return
    if left is None:
        return  # it is being started again at this moment; the next look decides
    if not left:
        task.finish("killed" if task.was_killed else "stopped", clock.monotonic())
        return
    # After a KILL of the whole unit nothing is left to be gentle with.
    survivors = end_all(left, 0.0 if task.was_killed else grace, KILL_WAIT_S, clock, root, lambda pid: task.owns(pid, root))
    if survivors:
        task.finish("failed", clock.monotonic(), tuple(survivors), "processes of it survived SIGKILL")
    else:
        task.finish("swept", clock.monotonic())


def _leftovers(task: _Stopping, status: UnitStatus, root: str) -> Optional[List[ProcessInfo]]:
    """The processes in a cgroup whose unit is down before *and* after they were listed; None when it is not."""
    infos = [read_process(pid, root) for pid in task.pids(status, root)]
    if not task.ref.systemd.status(task.ref.unit).inactive:
        return None
    return [info for info in infos if info is not None and not info.zombie]
