# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A plan carried out rung by rung: units first, then processes. Each rung records what it did as it does it."""

from __future__ import annotations

from dataclasses import replace
from typing import Optional

from .._core.clock import Clock, Deadline
from .._systemd.manager import Systemd
from .done import Done, StoppedUnit
from .planned import Plan, Skip
from .ports import Ports
from .processes import end_processes
from .units import UnitRef, stop_units


def stop_unit(
    systemd: Systemd, unit: str, stop_timeout: float, clock: Clock, root: str = "/proc"
) -> StoppedUnit:
    """Stop one unit for sure: asked, then killed as a whole after ``stop_timeout`` seconds, then its cgroup swept.

    Takes at most ``stop_timeout`` and some 5 s for each escalation. The result's ``ok`` is False when the unit or a process of
    it still runs; ``detail`` and ``survivors`` then say which. Does not raise for what the unit does.
    """
    return stop_units([UnitRef(systemd, unit)], stop_timeout, clock, root)[0]


def carry_out(plan: Plan, grace: float, ports: Ports, done: Done, deadline: Optional[Deadline] = None) -> bool:
    """Stop the plan's units, then end its processes. ``done`` grows as things happen.

    Neither begins once the time is over: False when something was left undone for that. ``grace`` (s) is cut to half of what is left.
    """
    clock = ports.clock
    if plan.stops:
        start = clock.monotonic()
        if deadline is not None and deadline.remaining <= 0:
            return False
        refs = [
            UnitRef(ports.systemd if stop.unit.uid is None else ports.user_systemd(stop.unit.uid), stop.unit.unit, stop.unit.uid)
            for stop in plan.stops
        ]
        for stop, stopped in zip(plan.stops, stop_units(refs, _within(grace, deadline), clock, ports.proc_root)):
            done.record_stop(replace(stopped, members=stop.members))
        done.timings.stop += clock.monotonic() - start
    if plan.signals:
        start = clock.monotonic()
        if deadline is not None and deadline.remaining <= 0:
            return False
        for signalled in end_processes(plan.signals, _within(grace, deadline), clock, ports.proc_root, ports.holds_gpu):
            if signalled.outcome == "refused":
                holder = signalled.holder
                done.refused[holder.identity] = Skip(
                    holder.pid, holder.name, "not signalled, its identity could not be proven again: %s" % signalled.detail
                )
            if signalled.signals:
                done.signalled[signalled.holder.identity] = signalled
        done.timings.signal += clock.monotonic() - start
    return True


def _within(grace: float, deadline: Optional[Deadline]) -> float:
    return grace if deadline is None else min(grace, max(0.0, deadline.remaining / 2.0))
