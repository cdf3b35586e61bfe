# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""From what was asked and what is there to what has to end. Pure: looks at nothing, changes nothing.

Every holder of a selected GPU ends in exactly one place: its unit is stopped, it is signalled, or it is skipped with the reason.
Reasons against come before reasons for: a process is only touched when nothing speaks for leaving it alone.
"""

from __future__ import annotations

import re
import time
from typing import AbstractSet, Dict, Iterable, List, Optional, Sequence, Tuple

from .._process.rules import CONTAINERS, SCHEDULED_JOBS
from .proof import held_mib
from .request import ReclaimRequest
from .types import Holder, Plan, Signal, Skip, Start, UnitKey, UnitStop, UnitView, View

# A start time (seconds since the epoch) went through JSON and back; clock ticks are 0.01 s.
_START_TOLERANCE_S = 0.011
_SLURM_JOB = re.compile(r"job_[0-9]+$")
_UNSEEN = "no process of it is on a GPU, as far as can be seen"
NO_SUCH_UNIT = "there is no such unit on this host"
NO_SUCH_USER = "`users` names it, but this host has neither such an account nor a process of that name on a GPU"


def make_plan(request: ReclaimRequest, view: View, stopped: AbstractSet[UnitKey] = frozenset()) -> Plan:
    """What frees the selected GPUs within the scope. ``stopped`` are units that were stopped already: one that runs was started again."""
    stops: Dict[UnitKey, UnitStop] = {}
    signals: List[Signal] = []
    skips: List[Skip] = [Skip(None, name, NO_SUCH_USER) for name in view.unknown_users]
    named = _named_units(request, view, stopped, stops, skips)
    for holder in sorted(view.holders, key=lambda each: each.pid):
        of = view.unit_of(holder)
        if not holder.gpus & set(view.selected) or (of is not None and of.key in named):
            continue
        skip = why_not(request, view, holder)
        if skip is not None:
            skips.append(skip)
            continue
        unit = _unit_to_stop(view, holder)
        if request.scope == "all" and all(_idle(request, view, each) for each in ([holder] if unit is None else _members(view, unit))):
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
            stops[unit.key] = _stop(view, unit, "it holds memory on the selected GPUs and would start its processes again")
    _spare_dependents(view, stops, skips)
    _spare_starts(view, stops, signals, skips)
    return Plan(tuple(stops[key] for key in sorted(stops, key=str)), tuple(signals), tuple(skips))


def _spare_dependents(view: View, stops: Dict[UnitKey, UnitStop], skips: List[Skip]) -> None:
    """Leave a unit running that would take another one along that nobody asked to stop. Again, until nothing changes."""
    while True:
        for stop in list(stops.values()):
            along = [name for name in stop.unit.takes_along if (name, stop.unit.uid) not in stops]
            if along:
                reason = (
                    "its unit %s is left alone: systemd would stop %s with it, which is not asked for; name both in `services`"
                    % (stop.unit.label, ", ".join(along))
                )
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


def _spare_starts(view: View, stops: Dict[UnitKey, UnitStop], signals: List[Signal], skips: List[Skip]) -> None:
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


def why_not(request: ReclaimRequest, view: View, holder: Holder) -> Optional[Skip]:
    """Why this process is left alone, None when it is to end. What may hold its memory by right is marked so."""
    hindrance = _unreachable(view, holder)
    if hindrance is not None:
        return Skip(holder.pid, holder.name, hindrance)
    reason = _container(holder) or _anothers(view, holder) or _protected(holder)
    reason = reason or _out_of_scope(request, view, holder) or _filtered(request, view, holder)
    if reason is not None:
        return Skip(holder.pid, holder.name, reason, rightful=True)
    return None


def _unreachable(view: View, holder: Holder) -> Optional[str]:
    """Why nobody could end it from here, whatever the scope."""
    if holder.state == "gone":
        return "it has ended; the driver has yet to let go of it"
    if holder.state == "zombie":
        parent = "its parent" if holder.info is None else "its parent (pid %d)" % holder.info.ppid
        return "it has ended and waits for %s to reap it; no signal reaches it" % parent
    if holder.state == "not_visible" or holder.info is None:
        return "the driver's number means no process here that could be proven (another PID namespace): look for it outside"
    if not view.processes_reliable:
        return "the driver's process list failed validation, so no process of it is touched"
    if not holder.proven:
        return "the driver lists it, but it has no GPU device node open: it may be another process with that number"
    return None


def _idle(request: ReclaimRequest, view: View, holder: Holder) -> bool:
    """Whether nothing speaks for memory behind its open device node: a monitor, say, or a guard that watches.

    It is ended all the same once memory is held there for which no listed process accounts. An orphan of vLLM's is never idle.
    """
    if holder.orphan:
        return False
    for gpu in view.gpus:
        if gpu.index not in holder.gpus:
            continue
        used = held_mib(gpu)
        if gpu.index in holder.used_mib or used is None:
            return False
        listed = [each.used_mib[gpu.index] for each in view.holders if gpu.index in each.used_mib]
        if used - sum(each or 0 for each in listed) > request.max_used_mib and None not in listed:
            return False
    return True


def _container(holder: Holder) -> Optional[str]:
    if holder.container is None:
        return None
    command = "" if holder.stop_command is None else "; to end it: %s" % holder.stop_command
    if _SLURM_JOB.match(holder.container):
        return "it belongs to Slurm's job %s%s" % (holder.container.rpartition("_")[2], command)
    name = holder.container[:12] if len(holder.container) == 64 else holder.container  # as its runtime shows it
    return "it runs in container %s, which may start it again%s" % (name, command)


def _anothers(view: View, holder: Holder) -> Optional[str]:
    """A process below a scheduler's or a runtime's daemon is theirs, also where no cgroup tells its job or container apart.

    Their unit may be down: jobs and containers live on while it is started anew.
    """
    unit = view.unit_of(holder)
    if unit is None or unit.host_unit not in (SCHEDULED_JOBS, CONTAINERS) or holder.pid == unit.main_pid:
        return None
    what = "the job through its scheduler" if unit.host_unit == SCHEDULED_JOBS else "it through its runtime"
    return "its unit %s must not be touched: %s; end %s" % (unit.label, unit.host_unit, what)


def _protected(holder: Holder) -> Optional[str]:
    return None if holder.protected_by is None else "protected: %s" % holder.protected_by


def _out_of_scope(request: ReclaimRequest, view: View, holder: Holder) -> Optional[str]:
    if request.scope == "all":
        return None
    unit = view.unit_of(holder)
    if holder.orphan:
        if unit is not None and not unit.inactive and unit.unit.endswith(".service"):
            return "its unit %s is active again" % unit.label
        return None
    if unit is not None and not unit.inactive:
        return "it belongs to %s, which is active (scope: %s leaves that alone)" % (unit.label, request.scope)
    if not holder.vllm:
        return "it is no process of vLLM (scope: %s leaves that alone)" % request.scope
    return "it is no orphan (scope: %s leaves that alone)" % request.scope


def _filtered(request: ReclaimRequest, view: View, holder: Holder) -> Optional[str]:
    """Which of the caller's own filters leaves it out."""
    if request.users and holder.user not in request.users and not _uid_named(request, holder):
        return "its user %s is not among `users`" % holder.user
    if request.min_age > 0:
        if holder.start_time is None:
            return "its age is unknown (min_age is %g s)" % request.min_age
        age = view.now - holder.start_time
        if age < request.min_age:
            return "it is %.0f s old (min_age is %g s)" % (age, request.min_age)
    if request.candidates is not None and not _chosen(request, holder):
        return "`select` is not true for it"
    return None


def _uid_named(request: ReclaimRequest, holder: Holder) -> bool:
    return holder.info is not None and str(holder.info.uid) in request.users


def _chosen(request: ReclaimRequest, holder: Holder) -> bool:
    return holder.start_time is not None and any(
        candidate.pid == holder.pid and abs(candidate.start_time - holder.start_time) <= _START_TOLERANCE_S
        for candidate in request.candidates or ()
    )


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
    for member in _members(view, unit):
        skip = why_not(request, view, member)
        against = skip.reason if skip is not None and skip.rightful else None
        if against is None and member.info is not None:
            # Also where the driver's word on it could not be proven: its cgroup and its name are seen without the driver.
            against = _container(member) or _protected(member)
        if against is not None:
            reason = "its unit %s also runs %s (pid %d), which is left alone: %s" % (
                unit.label, member.name, member.pid, against
            )
            return Skip(holder.pid, holder.name, reason, rightful=True)
    return None


def _named_units(
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
                stops[unit.key] = _stop(view, unit, "it is named in `services`")
                continue
            if reason.startswith(_UNSEEN):
                idle.append((unit, reason))
                continue
            members = [member for member in _members(view, unit) if member.gpus & set(view.selected)]
            for member in members:
                skips.append(Skip(member.pid, member.name, "its unit %s is left alone: %s" % (unit.label, reason), True))
            if not members:
                skips.append(Skip(unit.main_pid or None, unit.unit, reason, True))
    for unit, reason in idle:
        if any(unit.unit in stop.unit.takes_along and unit.uid == stop.unit.uid for stop in stops.values()):
            stops[unit.key] = _stop(view, unit, "it is named in `services`, and systemd stops it with another one that is")
        else:
            skips.append(Skip(unit.main_pid or None, unit.unit, reason, True))
    return tuple(settled)


def _why_not_named(request: ReclaimRequest, view: View, unit: UnitView, again: bool) -> Optional[str]:
    against = unit.host_unit or unit.protected_by
    if against is not None:
        return "it must not be stopped: %s" % against
    members = _members(view, unit)
    if not members:
        if request.users or request.min_age > 0 or request.candidates is not None:
            return "it has no process on a GPU that `users`, `min_age` or `select` could choose"
        return None if again else _why_not_unseen(view, unit)
    if not any(member.gpus & set(view.selected) for member in members):
        return _on_others({index for member in members for index in member.gpus})
    for member in members:
        reason = (None if member.pid in unit.helpers else _protected(member)) or _filtered(request, view, member)
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


def _members(view: View, unit: UnitView) -> List[Holder]:
    return [holder for holder in view.holders if holder.state == "running" and view.unit_of(holder) == unit]


def _stop(view: View, unit: UnitView, reason: str) -> UnitStop:
    members = _members(view, unit)
    gpus = sorted({index for member in members for index in member.gpus})
    return UnitStop(unit, tuple(gpus), tuple(sorted(members, key=lambda each: each.pid)), reason)


def _why_signal(holder: Holder) -> str:
    if holder.orphan:
        return "it is a vLLM process that belongs to no active unit, container or login session"
    return "it holds memory on the selected GPUs, and no unit would start it again"
