# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What is taken out of a plan again: it would end more than was asked for, or disturb a server that loads. Pure."""

from __future__ import annotations

import time
from typing import AbstractSet, Dict, Iterable, List, Optional, Sequence

from .planned import Signal, Skip, UnitStop
from .seen import Start, UnitKey, View


def spare_dependents(view: View, stops: Dict[UnitKey, UnitStop], skips: List[Skip], named: AbstractSet[UnitKey] = frozenset()) -> None:
    """Leave a unit running that would take another one along that is not to be stopped. Again, until nothing changes.

    ``named`` are units that were asked for; one of them that is left alone has a reason of its own.
    """
    while True:
        for stop in list(stops.values()):
            along = [name for name in stop.unit.takes_along if (name, stop.unit.uid) not in stops]
            if along:
                others = [name for name in along if (name, stop.unit.uid) not in named]
                why = "which is not asked for; name both in `services`" if others else "which is left alone itself"
                reason = "its unit %s is left alone: systemd would stop %s with it, %s" % (stop.unit.label, ", ".join(others or along), why)
                _take_out(view, stops, skips, stop, reason, True)
                break
        else:
            return


def _take_out(view: View, stops: Dict[UnitKey, UnitStop], skips: List[Skip], stop: UnitStop, reason: str, rightful: bool) -> None:
    del stops[stop.unit.key]
    members = [holder for holder in view.holders if holder.pid in stop.pids and holder.gpus & set(view.selected)]
    skips.extend(Skip(member.pid, member.name, reason, rightful) for member in members)
    if not members:
        skips.append(Skip(None, stop.unit.unit, reason, rightful))


def spare_starts(view: View, stops: Dict[UnitKey, UnitStop], signals: List[Signal], skips: List[Skip]) -> None:
    """Take out what would free memory under the hands of somebody else's server that loads right now.

    A server that starts and is itself to be stopped holds nobody up. What is taken out may be such a one: so until nothing changes.
    """
    while True:
        starts = [start for start in view.starts if start.unit not in stops]
        before = len(stops)
        for each in list(signals):
            start = _disturbed(starts, each.holder.gpus, each.holder.unit)
            if start is not None:
                signals.remove(each)
                skips.append(Skip(each.holder.pid, each.holder.name, _why_wait(view, start)))
        for stop in list(stops.values()):
            start = _disturbed(starts, stop.gpus, stop.unit.key)
            if start is not None:
                _take_out(view, stops, skips, stop, _why_wait(view, start), False)
        if len(stops) == before:
            return


def _disturbed(starts: Sequence[Start], gpus: Iterable[int], unit: Optional[UnitKey]) -> Optional[Start]:
    wanted = set(gpus)
    return next((start for start in starts if start.unit != unit and start.gpus & wanted), None)


def _why_wait(view: View, start: Start) -> str:
    unit = view.units.get(start.unit)
    since = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(start.since))
    name = start.unit[0] if unit is None else unit.label
    return "not now: %s loads its model on GPU %s since %s, and memory that comes free meanwhile breaks that; run again when it serves" % (
        name, ", ".join(map(str, sorted(start.gpus))), since
    )
