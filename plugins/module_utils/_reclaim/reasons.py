# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Why a process is left alone, whatever else speaks for ending it. Pure."""

from __future__ import annotations

from typing import Optional

from .._process.jobs import SCHEDULERS, job_label
from .._process.rules import CONTAINERS, SCHEDULED_JOBS
from .planned import Skip
from .proof import held_mib
from .request import ReclaimRequest
from .seen import Holder, View

# A start time (seconds since the epoch) went through JSON and back; clock ticks are 0.01 s.
_START_TOLERANCE_S = 0.011
NO_SUCH_UNIT = "there is no such unit on this host"
NO_SUCH_USER = "`users` names it, but this host has neither such an account nor a process of that name on a GPU"


def why_not(request: ReclaimRequest, view: View, holder: Holder) -> Optional[Skip]:
    """Why this process is left alone, None when it is to end. What may hold its memory by right is marked so."""
    hindrance = _unreachable(view, holder)
    if hindrance is not None:
        return Skip(holder.pid, holder.name, hindrance)
    reason = in_container(holder) or _anothers(view, holder) or protected(holder)
    reason = reason or _out_of_scope(request, view, holder) or filtered(request, view, holder)
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


def idle(request: ReclaimRequest, view: View, holder: Holder) -> bool:
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


def in_container(holder: Holder) -> Optional[str]:
    """Whether it runs in a container or a job, and what ends that."""
    if holder.container is None:
        return None
    command = "" if holder.stop_command is None else "; to end it: %s" % holder.stop_command
    if holder.runtime in SCHEDULERS:
        return "it belongs to %s%s" % (job_label(holder.runtime, holder.container), command or "; end the job through its scheduler")
    name = holder.container[:12] if len(holder.container) == 64 else holder.container  # as its runtime shows it
    return "it runs in container %s, which may start it again%s" % (name, command)


def _anothers(view: View, holder: Holder) -> Optional[str]:
    """A process below a scheduler's or a runtime's daemon is theirs, also where no cgroup tells its job or container apart.

    Their unit may be down: jobs and containers live on while it is started anew.
    """
    unit = view.unit_of(holder)
    if unit is None or unit.host_unit not in (SCHEDULED_JOBS, CONTAINERS) or holder.pid == unit.main_pid:
        return holder.kept_by
    what = "the job through its scheduler" if unit.host_unit == SCHEDULED_JOBS else "it through its runtime"
    return "its unit %s must not be touched: %s; end %s" % (unit.label, unit.host_unit, what)


def protected(holder: Holder) -> Optional[str]:
    """Whether it is protected by itself."""
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


def filtered(request: ReclaimRequest, view: View, holder: Holder) -> Optional[str]:
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
