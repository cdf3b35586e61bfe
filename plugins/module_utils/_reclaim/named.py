# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The units that a request names: which of them are stopped, and why the others are left running. Pure."""

from __future__ import annotations

from typing import AbstractSet, Dict, Iterable, List, Optional, Tuple

from .reasons import NO_SUCH_UNIT, filtered, protected
from .request import ReclaimRequest
from .types import Skip, UnitKey, UnitStop, UnitView, View

_UNSEEN = "no process of it is on a GPU, as far as can be seen"


def named_units(
    request: ReclaimRequest, view: View, stopped: AbstractSet[UnitKey], stops: Dict[UnitKey, UnitStop], skips: List[Skip]
) -> Tuple[UnitKey, ...]:
    """Plan for the units in ``services``; returns the keys of those that this settles, one way or the other."""
    settled: List[UnitKey] = []
    idle: List[Tuple[UnitView, str]] = []
    for name in request.units:
        found = {unit.key: unit for unit in view.units.values() if name in (unit.unit, *unit.aliases) and unit.exists}
        if not found:
            skips.append(Skip(None, name, NO_SUCH_UNIT))
        for unit in (found[key] for key in sorted(found, key=str)):
            if unit.inactive or unit.key in settled:
                continue  # nothing to stop; what outlived it is judged process by process
            settled.append(unit.key)
            reason = _why_not_named(request, view, unit, unit.key in stopped)
            if reason is None:
                stops[unit.key] = UnitStop.of(view, unit, "it is named in `services`")
                continue
            if reason.startswith(_UNSEEN):
                idle.append((unit, reason))
                continue
            members = [member for member in view.members(unit) if member.gpus & set(view.selected)]
            for member in members:
                skips.append(Skip(member.pid, member.name, "its unit %s is left alone: %s" % (unit.label, reason), True))
            if not members:
                skips.append(Skip(unit.main_pid or None, unit.unit, reason, True))
    for unit, reason in idle:
        if any(unit.unit in stop.unit.takes_along and unit.uid == stop.unit.uid for stop in stops.values()):
            stops[unit.key] = UnitStop.of(view, unit, "it is named in `services`, and systemd stops it with another one that is")
        else:
            skips.append(Skip(unit.main_pid or None, unit.unit, reason, True))
    return tuple(settled)


def _why_not_named(request: ReclaimRequest, view: View, unit: UnitView, again: bool) -> Optional[str]:
    against = unit.host_unit or unit.protected_by
    if against is not None:
        return "it must not be stopped: %s" % against
    members = view.members(unit)
    if not members:
        if request.users or request.min_age > 0 or request.candidates is not None:
            return "it has no process on a GPU that `users`, `min_age` or `select` could choose"
        return None if again else _why_not_unseen(view, unit)
    if not any(member.gpus & set(view.selected) for member in members):
        return _on_others({index for member in members for index in member.gpus})
    for member in members:
        reason = (None if member.pid in unit.helpers else protected(member)) or filtered(request, view, member)
        if reason is not None:
            return "%s (pid %d): %s" % (member.name, member.pid, reason)
    return None


def _why_not_unseen(view: View, unit: UnitView) -> Optional[str]:
    """Why a named unit without a visible process on a GPU is left alone; None where it will hold one of the selected in a moment, or
    does so unseen. What else is named may be anything: a web server, or the service that runs a model in a container elsewhere."""
    known = view.claims.get(unit.key) or unit.elsewhere
    if known:
        return None if known & set(view.selected) else _on_others(known)
    if unit.rising or (unit.loads and not view.unanswered) or (unit.opens_driver and not view.processes_reliable):
        return None
    hidden = "; GPU %s does not answer" % ", ".join(str(gpu.index) for gpu in view.unanswered) if view.unanswered else ""
    return _UNSEEN + " (what runs for it in a container ends with the container)" + hidden


def _on_others(gpus: Iterable[int]) -> str:
    return "it holds GPU %s, none of those selected" % ", ".join(map(str, sorted(gpus)))
