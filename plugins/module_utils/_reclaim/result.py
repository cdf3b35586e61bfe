# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a reclaim returns, in the words of the module's RETURN."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Dict, List, Mapping, Optional, Sequence, Tuple

from .._gpu.types import Gpu
from .done import Done, GpuReset, ShmEntry, Signalled, StoppedUnit, Timings, Unkillable
from .left import Held
from .planned import Plan, Skip
from .proof import held_mib


@dataclass(frozen=True)
class ReclaimResult:
    """One reclaim, done or (in check mode) planned."""

    changed: bool
    freed: bool
    gpus_before: Tuple[Gpu, ...]
    gpus_after: Tuple[Gpu, ...]
    stopped_units: Tuple[StoppedUnit, ...] = ()
    signalled: Tuple[Signalled, ...] = ()
    left_alone: Tuple[Skip, ...] = ()
    unkillable: Tuple[Unkillable, ...] = ()
    reboot_required: bool = False
    held: Tuple[Held, ...] = ()
    shm_removed: Tuple[ShmEntry, ...] = ()
    resets: Tuple[GpuReset, ...] = ()
    timings: Timings = field(default_factory=Timings)
    msg: Optional[str] = None
    warnings: Tuple[str, ...] = ()

    @property
    def freed_mib(self) -> int:
        """MiB that came free on the GPUs whose use is known before and after."""
        after = {gpu.index: held_mib(gpu) for gpu in self.gpus_after}
        total = 0
        for gpu in self.gpus_before:
            before, now = held_mib(gpu), after.get(gpu.index)
            if before is not None and now is not None:
                total += max(0, before - now)
        return total

    def to_result(self) -> Dict[str, Any]:
        """The module's result.

        There is no ``skipped`` in it: Ansible takes a result with that key for a task that did not run.
        """
        result = {
            "changed": self.changed,
            "freed": self.freed,
            "freed_mib": self.freed_mib,
            "gpus_before": [gpu.to_dict() for gpu in self.gpus_before],
            "gpus_after": [gpu.to_dict() for gpu in self.gpus_after],
            "stopped_units": [each.to_result() for each in self.stopped_units],
            "signalled": [each.to_result() for each in self.signalled],
            "left_alone": [each.to_result() for each in self.left_alone],
            "unkillable": [each.to_result() for each in self.unkillable],
            "reboot_required": self.reboot_required,
            "held": [each.to_result() for each in self.held],
            "shm_removed": [each.to_result() for each in self.shm_removed],
            "resets": [each.to_result() for each in self.resets],
            "timings": self.timings.to_result(),
        }
        if self.msg is not None:
            result["msg"] = self.msg
        if self.warnings:
            result["warnings"] = list(self.warnings)
        return result

    def to_failure(self) -> Dict[str, Any]:
        """The result of a failed module, where ``skipped`` does no harm."""
        return dict(self.to_result(), skipped=[each.to_result() for each in self.left_alone])


def failure(told: Mapping[str, Any]) -> Dict[str, Any]:
    """The whole result of a run that failed: what it told, and for the rest that nothing was seen and nothing done."""
    return dict(ReclaimResult(False, False, (), ()).to_failure(), **told)


def planned(
    plan: Plan, gpus: Tuple[Gpu, ...], freed: bool, held: Sequence[Held], shm: Sequence[ShmEntry], resets: Sequence[GpuReset] = ()
) -> ReclaimResult:
    """What check mode returns: exactly what a run would stop, signal, reset and remove."""
    return ReclaimResult(
        changed=not plan.empty or bool(shm) or any(each.planned for each in resets),
        freed=freed,
        gpus_before=gpus,
        gpus_after=gpus,
        stopped_units=tuple(StoppedUnit(stop.unit.unit, "would_stop", 0.0, uid=stop.unit.uid, members=stop.members) for stop in plan.stops),
        signalled=tuple(Signalled(each.holder, (), "would_signal", each.reason) for each in plan.signals),
        left_alone=plan.skips,
        held=tuple(held),
        shm_removed=tuple(shm),
        resets=tuple(resets),
    )


def of_run(
    done: Done,
    freed: bool,
    before: Tuple[Gpu, ...],
    after: Tuple[Gpu, ...],
    skips: Sequence[Skip],
    unkillable: Sequence[Unkillable],
    held: Sequence[Held],
) -> ReclaimResult:
    """What a run returns."""
    stopped = [done.stopped[key] for key in sorted(done.stopped, key=str) if done.stopped[key].changed]
    return ReclaimResult(
        changed=done.changed,
        freed=freed,
        gpus_before=before,
        gpus_after=after,
        stopped_units=tuple(stopped),
        signalled=tuple(done.signalled[key] for key in sorted(done.signalled)),
        left_alone=tuple(skips),
        unkillable=tuple(unkillable),
        reboot_required=not freed and _reboot(done, unkillable, held),
        held=tuple(held),
        shm_removed=done.shm_removed,
        resets=done.resets,
        timings=done.timings,
    )


def _reboot(done: Done, unkillable: Sequence[Unkillable], held: Sequence[Held]) -> bool:
    """Whether nothing short of a reboot is left to try: a process that no signal ends, or a GPU that a reset did not mend."""
    failed = {each.gpu for each in done.resets if not each.done or any(held_gpu.gpu.index == each.gpu for held_gpu in held)}
    unexplained = {each.gpu.index for each in held if not each.holders}
    return any(each.needs_reboot for each in unkillable) or bool(failed & unexplained)


def diff(result: ReclaimResult) -> Dict[str, str]:
    """Ansible's diff: who holds the GPUs before, and who would or does after."""
    units = {(each.unit, each.uid) for each in result.stopped_units}
    pids = {each.holder.pid for each in result.signalled}
    before: List[str] = ["unit %s" % unit for unit, _uid in sorted(units, key=str)]
    shown = {gpu.index for gpu in result.gpus_before}
    for stopped in result.stopped_units:
        for member in stopped.members:
            # What ends with a unit on GPUs that were not selected.
            before += ["GPU %d: pid %d %s (with %s)" % (index, member.pid, member.name, stopped.unit)
                       for index in sorted(member.gpus - shown)]
    after: List[str] = []
    for gpu in result.gpus_before:
        for process in gpu.processes:
            line = "GPU %d: pid %d %s (%s MiB%s)" % (
                gpu.index, process.pid, process.name or "?", "?" if process.used_mib is None else process.used_mib,
                "" if process.unit is None else ", " + process.unit,
            )
            before.append(line)
            if process.pid not in pids and not any(process.unit == unit for unit, _uid in units):
                after.append(line)
    before += [entry.path for entry in result.shm_removed]
    return {
        "before_header": "holders of GPU memory",
        "after_header": "holders of GPU memory",
        "before": "".join(line + "\n" for line in before),
        "after": "".join(line + "\n" for line in after),
    }
