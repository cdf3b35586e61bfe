# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""From what was asked and what is there to what has to end. Pure: looks at nothing, changes nothing.

Every holder of a selected GPU ends in exactly one place: its unit is stopped, it is signalled, or it is skipped with the reason.
Reasons against come before reasons for: a process is only touched when nothing speaks for leaving it alone.
"""

from __future__ import annotations

from typing import AbstractSet, Dict, List, Optional

from .named import drop_riders, named_units, seat_riders, skip_riders
from .planned import Plan, Signal, Skip, UnitStop
from .reasons import NO_SUCH_USER, idle, in_container, protected, why_not
from .request import ReclaimRequest
from .seen import Holder, UnitKey, UnitView, View
from .spare import spare_dependents, spare_starts


def make_plan(request: ReclaimRequest, view: View, stopped: AbstractSet[UnitKey] = frozenset()) -> Plan:
    """What frees the selected GPUs within the scope. ``stopped`` are units that were stopped already: one that runs was started again."""
    stops: Dict[UnitKey, UnitStop] = {}
    signals: List[Signal] = []
    skips: List[Skip] = [Skip(None, name, NO_SUCH_USER) for name in view.unknown_users]
    named, riders = named_units(request, view, stopped, stops, skips)
    for holder in sorted(view.holders, key=lambda each: each.pid):
        of = view.unit_of(holder)
        if not holder.gpus & set(view.selected) or (of is not None and of.key in named):
            continue
        skip = why_not(request, view, holder)
        if skip is not None:
            skips.append(skip)
            continue
        unit = _unit_to_stop(view, holder)
        if request.scope == "all" and all(idle(request, view, each) for each in ([holder] if unit is None else view.members(unit))):
            reason = "it has GPU %s open, but holds no memory there" % ", ".join(map(str, sorted(holder.gpus)))
            skips.append(Skip(holder.pid, holder.name, reason, rightful=True))
            continue
        if unit is None:
            signals.append(Signal(holder, _why_signal(holder)))
            continue
        skip = _why_not_unit(request, view, unit, holder)
        if skip is not None:
            skips.append(skip)
        elif unit.key not in stops:
            stops[unit.key] = UnitStop.of(view, unit, "it holds memory on the selected GPUs and would start its processes again")
    seat_riders(view, stops, riders)
    before = -1
    while before != len(stops):
        before = len(stops)
        spare_dependents(view, stops, skips, named)
        spare_starts(view, stops, signals, skips)
        drop_riders(stops, riders)
    skip_riders(stops, riders, skips)
    return Plan(tuple(stops[key] for key in sorted(stops, key=str)), tuple(signals), tuple(skips))


def _unit_to_stop(view: View, holder: Holder) -> Optional[UnitView]:
    """The unit that has to be stopped to end this process; None when the process itself is to be signalled.

    systemd starts nothing of a scope again, but a process in it may, and a scope that has such a one is stopped as well. A
    unit that is inactive (its processes outlived it) starts nothing. What a login or a timer daemon launched is not that
    daemon's to restart.
    """
    unit = view.unit_of(holder)
    if unit is None or unit.inactive or not (unit.unit.endswith(".service") or unit.supervisor is not None):
        return None
    if unit.host_unit is not None and unit.main_pid != holder.pid:
        return None
    return unit


def _why_not_unit(request: ReclaimRequest, view: View, unit: UnitView, holder: Holder) -> Optional[Skip]:
    """Why a unit that one of its processes speaks for is left running all the same."""
    against = unit.host_unit or unit.protected_by
    if against is not None:
        return Skip(holder.pid, holder.name, "its unit %s must not be stopped: %s" % (unit.label, against), rightful=True)
    for member in view.members(unit):
        skip = why_not(request, view, member)
        against = skip.reason if skip is not None and skip.rightful else None
        if against is None and member.info is not None:
            # Also where the driver's word on it could not be proven: its cgroup and its name are seen without the driver.
            against = in_container(member) or protected(member)
        if against is not None:
            reason = "its unit %s also runs %s (pid %d), which is left alone: %s" % (
                unit.label, member.name, member.pid, against
            )
            return Skip(holder.pid, holder.name, reason, rightful=True)
    return None


def _why_signal(holder: Holder) -> str:
    if holder.orphan:
        return "it is a vLLM process that belongs to no active unit, container or login session"
    return "it holds memory on the selected GPUs, and no unit would start it again"
