# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What is still held, by whom, and what a person can do about it. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import AbstractSet, Any, Dict, List, Mapping, Optional, Sequence, Tuple

from .._gpu.types import Gpu
from .done import Unkillable
from .planned import Plan, Skip
from .proof import held_mib
from .seen import Holder, View

# Verdicts on a GPU that is not free.
IN_USE = "in_use"  # what is held belongs to running processes that this run was not asked to end
DIRTY = "dirty"  # held by what should be gone, or by nothing that can be seen
UNREADABLE = "unreadable"  # the driver does not say

# How a plan's reasons for leaving something alone are told apart.
BY_SCOPE = "leaves that alone)"
ACTIVE = "which is active"
_FILTERED = re.compile(r"is not among `(users)`|\((min_age) is |`(select)` is not true")
# States of a process that the kernel holds on to; R is one that spins inside the driver.
_KERNEL_STATES = {"D": "blocked in the kernel", "R": "running inside the kernel", "T": "stopped", "t": "traced"}


@dataclass(frozen=True)
class Held:
    """One GPU that is not free. ``limit_mib`` is what would count as free, ``holders`` who holds it, with the reason."""

    gpu: Gpu
    limit_mib: int
    used_mib: Optional[int]
    verdict: str
    holders: Tuple[Tuple[Holder, str], ...]
    unattributed_mib: Optional[int]
    rightful: Tuple[int, ...] = ()  # pids among the holders that hold their memory by right

    def to_result(self) -> Dict[str, Any]:
        """The entry for ``held``."""
        return {
            "gpu": self.gpu.index,
            "uuid": self.gpu.uuid,
            "used_mib": self.used_mib,
            "limit_mib": self.limit_mib,
            "verdict": self.verdict,
            "state": self.gpu.state,
            "error": self.gpu.error,
            "unattributed_mib": self.unattributed_mib,
            "holders": [
                {
                    "pid": holder.pid,
                    "name": holder.name,
                    "user": holder.user,
                    "unit": None if holder.unit is None else holder.unit[0],
                    "container": holder.container,
                    "used_mib": holder.used_mib.get(self.gpu.index),
                    "reason": reason,
                }
                for holder, reason in self.holders
            ],
        }


def what_is_held(view: View, plan: Plan, limits: Mapping[int, int], fates: Mapping[Tuple[int, int], str]) -> List[Held]:
    """The selected GPUs that are not free. ``fates`` says of processes (by identity) what was tried on them in vain."""
    skips = {skip.pid: skip for skip in plan.skips if skip.pid is not None}
    return [
        _held(gpu, view, limits[gpu.index], skips, fates)
        for gpu in view.gpus
        if (held_mib(gpu) is None or (held_mib(gpu) or 0) > limits[gpu.index])
    ]


def _held(gpu: Gpu, view: View, limit: int, skips: Mapping[int, Skip], fates: Mapping[Tuple[int, int], str]) -> Held:
    used = held_mib(gpu)
    holders: List[Tuple[Holder, str]] = []
    rightful: Dict[int, Optional[int]] = {}
    for holder in view.holders:
        if gpu.index not in holder.gpus:
            continue
        skip = skips.get(holder.pid)
        fate = fates.get(holder.identity)
        if fate is not None:
            holders.append((holder, fate))
        elif skip is not None:
            holders.append((holder, skip.reason))
            if skip.rightful and gpu.index in holder.used_mib:
                rightful[holder.pid] = holder.used_mib[gpu.index]
        else:
            holders.append((holder, "it came up while the memory was being freed"))
    verdict = _verdict(used, limit, tuple(rightful.values()))
    return Held(gpu, limit, used, verdict, tuple(holders), _unattributed(gpu, used), tuple(rightful))


def dirty_without(held: Held, ended: AbstractSet[Tuple[int, int]]) -> bool:
    """Whether it is dirty still when these processes (by identity) have ended. What they hold of it without a figure counts as all."""
    gpu = held.gpu.index
    ending = [holder.used_mib.get(gpu) for holder, _why in held.holders if holder.identity in ended]
    if held.used_mib is None or None in ending:
        return False
    rest = held.used_mib - sum(each or 0 for each in ending)
    staying = [holder.used_mib.get(gpu) for holder, _why in held.holders if holder.pid in held.rightful]
    return rest > held.limit_mib and _verdict(rest, held.limit_mib, staying) == DIRTY


def _verdict(used: Optional[int], limit: int, rightful: Sequence[Optional[int]]) -> str:
    if used is None:
        return UNREADABLE
    if any(each is None for each in rightful):
        return IN_USE  # a listed process holds an unknown part of it: nothing proves that anything else does
    if not rightful:
        return DIRTY
    return IN_USE if used - sum(each or 0 for each in rightful) <= limit else DIRTY


def _unattributed(gpu: Gpu, used: Optional[int]) -> Optional[int]:
    if gpu.unattributed_mib is not None or used is None:
        return gpu.unattributed_mib
    known = [process.used_mib for process in gpu.processes]
    return None if any(each is None for each in known) else max(0, used - sum(each or 0 for each in known))


def all_in_use(held: Sequence[Held]) -> bool:
    """Whether everything that is still held belongs to running processes that were rightly left alone."""
    return bool(held) and all(each.verdict == IN_USE for each in held)


def out_of_reach(held: Sequence[Held], view: View, plan: Plan) -> Optional[str]:
    """Why waiting longer can't free the memory; None when it may still come back."""
    if not held:
        return None
    if not view.processes_reliable:
        return "the driver's process list failed validation, so nobody can be asked to let go"
    skipped = {skip.pid for skip in plan.skips}
    if all(_beyond_reach(each, skipped) for each in held):
        return "what is held is out of reach from here"
    return None


def _beyond_reach(held: Held, skipped: AbstractSet[Optional[int]]) -> bool:
    """Whether all of it belongs to processes that are there and are not touched. The dying may still give theirs back."""
    if held.used_mib is None:
        return held.gpu.state in ("lost", "reset_required") or held.gpu.unanswered
    theirs = [
        holder.used_mib.get(held.gpu.index)
        for holder, _why in held.holders
        if holder.pid in skipped and holder.state not in ("gone", "zombie")
    ]
    return held.verdict == IN_USE or held.used_mib - sum(each or 0 for each in theirs) <= held.limit_mib


def of_zombie(holder: Holder) -> Unkillable:
    """A process that has ended and is not reaped."""
    parent = 0 if holder.info is None else holder.info.ppid
    return Unkillable(
        holder.pid, holder.name, "Z", None if holder.info is None else holder.info.wchan,
        "It has ended; its parent (pid %d) must reap it. Ending or restarting the parent makes it vanish." % parent,
        needs_reboot=False,
    )


def of_survivor(pid: int, name: str, state: str, wchan: Optional[str]) -> Unkillable:
    """A process that SIGKILL did not end."""
    if wchan is not None and ("refrigerator" in wchan or "freezer" in wchan):
        advice = (
            "It is frozen: thaw its cgroup (THAWED in freezer.state, or 0 in cgroup.freeze) and it ends of the signal it already has;"
            " only where that can't be done, reboot."
        )
    else:
        what = _KERNEL_STATES.get(state, "in state %s" % state)
        advice = (
            "It is %s and no signal ends it: reboot the host, or reset the GPU once nothing else uses it. (If its cgroup is frozen,"
            " thaw it: then it ends of the signal it already has.)" % what
        )
    return Unkillable(pid, name, state, wchan, advice, needs_reboot=True)


def failure_message(
    held: Sequence[Held], unkillable: Sequence[Unkillable], reason: Optional[str], waited: float, reset: str, extra: Sequence[str],
    scope: str = "orphans", accept: str = "nothing", accepted: bool = False,
) -> str:
    """One message that names every GPU, every holder and the next step that is left with what was asked (reset, scope, accept).

    Where it is ``accepted`` that memory is held, no step is left and the message says so.
    """
    parts = ["GPU memory is still held after %.1f s" % waited]
    if not held:
        parts[0] = "The GPU memory is not proven free after %.1f s: %s" % (waited, reason or "no reason is known")
    # What should be gone comes before what is in use by right.
    for each in sorted(held, key=lambda one: (one.verdict == IN_USE, one.gpu.index)):
        parts.append(_gpu_line(each))
    for each_process in unkillable:
        parts.append(
            "pid %d (%s) can't be ended (state %s%s). %s"
            % (
                each_process.pid, each_process.name, each_process.state,
                "" if each_process.wchan is None else ", in " + each_process.wchan, each_process.advice,
            )
        )
    parts += extra
    if accepted:
        parts[0] = "Accepted: " + parts[0]
        return _sentences(parts)
    parts += _next_steps(held, unkillable, reset, scope, accept)
    return _sentences(parts)


def _sentences(parts: Sequence[str]) -> str:
    return " ".join(part if part.endswith((".", ":", ".)")) else part + "." for part in parts)


def _gpu_line(held: Held) -> str:
    if held.used_mib is None:
        return "GPU %d can't be read (%s: %s)" % (held.gpu.index, held.gpu.state, held.gpu.error or "no detail")
    head = "GPU %d: %d MiB used, at most %d count as free" % (held.gpu.index, held.used_mib, held.limit_mib)
    if not held.holders:
        return head + ", held by no process that can be seen"
    who = "; ".join(_who(holder, held.gpu.index, reason) for holder, reason in held.holders)
    rest = held.unattributed_mib or 0
    tail = "" if rest <= held.limit_mib else "; and %d MiB that no listed process accounts for" % rest
    return "%s, held by %s%s" % (head, who, tail)


def _who(holder: Holder, gpu: int, reason: str) -> str:
    used = holder.used_mib.get(gpu)
    facts = ["pid %d" % holder.pid]
    if holder.user is not None:
        facts.append("user %s" % holder.user)
    if holder.unit is not None:
        facts.append("unit %s" % holder.unit[0])
    facts.append("? MiB" if used is None else "%d MiB" % used)
    return "%s (%s): %s" % (holder.name, ", ".join(facts), reason)


def _ways_to_more(in_use: Sequence[Held], scope: str) -> List[str]:
    """What would let more be ended. What is protected, or hangs together with another unit, has its way in its reason, or none."""
    ways: List[str] = []
    holders = [(holder, why) for each in in_use for holder, why in each.holders]
    units = sorted({holder.unit[0] for holder, why in holders if holder.unit is not None and why.endswith(BY_SCOPE) and ACTIVE in why})
    if scope != "all" and any(why.endswith(BY_SCOPE) for _holder, why in holders):
        services = "scope: services with services: [%s], or " % ", ".join(units) if units else ""
        ways.append("widen the scope (%sscope: all)" % services)
    out = [found for found in (_FILTERED.search(why) for _holder, why in holders) if found is not None]
    filters = [name for name in ("users", "min_age", "select") if any(name in found.groups() for found in out)]
    if filters:
        ways.append("widen %s" % ", ".join(filters))
    return ways


def _next_steps(held: Sequence[Held], unkillable: Sequence[Unkillable], reset: str, scope: str, accept: str) -> List[str]:
    steps: List[str] = []
    in_use = [each for each in held if each.verdict == IN_USE]
    if in_use:
        ways = ["select other GPUs"] + _ways_to_more(in_use, scope)
        if accept == "nothing":
            ways.append("accept it with accept: in_use")
        steps.append("Next: " + ", or ".join(ways))
    if any(each.verdict == DIRTY and not each.holders for each in held) and not unkillable:
        again = "Next: run again with a longer timeout, as the driver may still be giving it back; if it stays, "
        if reset == "never":
            steps.append(again + "with reset: if_needed, which resets a GPU that no process holds; else reboot the host")
        else:
            steps.append(again + "reboot the host")
    if any(each.verdict == UNREADABLE for each in held):
        steps.append("Next: look for Xid lines in the kernel log; such a GPU needs a reset (reset: if_needed) or a reboot")
    return steps
