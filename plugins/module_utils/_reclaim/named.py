# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The units that a request names: which of them are stopped, and why the others are left running. Pure."""

from __future__ import annotations

from typing import AbstractSet, Dict, Iterable, List, Optional, Set, Tuple

from .planned import Skip, UnitStop
from .reasons import NO_SUCH_UNIT, filtered, protected
from .request import ReclaimRequest
from .seen import UnitKey, UnitView, View

# Named units on no GPU, and why each is left running where no other one takes it along.
Riders = Dict[UnitKey, Tuple[UnitView, str]]
_UNSEEN = "no process of it is on a GPU, as far as can be seen"


def named_units(
    request: ReclaimRequest, view: View, stopped: AbstractSet[UnitKey], stops: Dict[UnitKey, UnitStop], skips: List[Skip]
) -> Tuple[AbstractSet[UnitKey], Riders]:
    """Plan for the units in ``services``: the keys of those that this settles, one way or the other, and who goes along with others."""
    settled: Set[UnitKey] = set()
    riders: Riders = {}
    for name in request.units:
        found = {unit.key: unit for unit in view.units.values() if name in (unit.unit, *unit.aliases) and unit.exists}
        if not found:
            skips.append(Skip(None, name, NO_SUCH_UNIT))
        for unit in (found[key] for key in sorted(found, key=str)):
            if unit.inactive or unit.key in settled:
                continue  # nothing to stop; what outlived it is judged process by process
            settled.add(unit.key)
            reason = _why_not_named(request, view, unit, unit.key in stopped)
            if reason is None:
                stops[unit.key] = UnitStop.of(view, unit, "it is named in `services`")
                continue
            if reason.startswith(_UNSEEN):
                riders[unit.key] = unit, reason
                continue
            members = [member for member in view.members(unit) if member.gpus & set(view.selected)]
            for member in members:
                skips.append(Skip(member.pid, member.name, "its unit %s is left alone: %s" % (unit.label, reason), True))
            if not members:
                skips.append(Skip(unit.main_pid or None, unit.unit, reason, True))
    return settled, riders


def seat_riders(view: View, stops: Dict[UnitKey, UnitStop], riders: Riders) -> None:
    """Plan to stop the named units on no GPU that others take along. Those alone: without the others they go on."""
    for key in sorted(_carried(stops, riders), key=str):
        stops[key] = UnitStop.of(view, riders[key][0], "it is named in `services`, and systemd stops it with another one that is")


def drop_riders(stops: Dict[UnitKey, UnitStop], riders: Riders) -> None:
    """Leave those running whose others were taken out of the plan."""
    for key in riders.keys() & stops.keys() - _carried(stops, riders):
        del stops[key]


def skip_riders(stops: Dict[UnitKey, UnitStop], riders: Riders, skips: List[Skip]) -> None:
    """Say of those that are left running why, unless it was said."""
    said = {skip.name for skip in skips if skip.pid is None}
    left = [each for key, each in riders.items() if key not in stops and each[0].unit not in said]
    skips.extend(Skip(unit.main_pid or None, unit.unit, reason, True) for unit, reason in left)


def _carried(stops: Dict[UnitKey, UnitStop], riders: Riders) -> Set[UnitKey]:
    """The riders that go along with a unit that is stopped for itself, directly or through each other."""
    found: Set[UnitKey] = set()
    carriers = [stop.unit for key, stop in stops.items() if key not in riders]
    while carriers:
        carrier = carriers.pop()
        fresh = {(name, carrier.uid) for name in carrier.takes_along} & riders.keys() - found
        found |= fresh
        carriers += [riders[key][0] for key in fresh]
    return found


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
    claimed = view.claims.get(unit.key)
    known = claimed or unit.elsewhere
    if known:
        return None if known & set(view.selected) else _on_others(known, "starts on" if claimed else "holds")
    if unit.rising or (unit.loads and not view.unanswered) or (unit.opens_driver and not view.processes_reliable):
        return None
    hidden = "; GPU %s does not answer" % ", ".join(str(gpu.index) for gpu in view.unanswered) if view.unanswered else ""
    return _UNSEEN + " (what runs for it in a container ends with the container)" + hidden


def _on_others(gpus: Iterable[int], does: str = "holds") -> str:
    return "it %s GPU %s, none of those selected" % (does, ", ".join(map(str, sorted(gpus))))
