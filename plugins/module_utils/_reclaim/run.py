# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""One reclaim: look, plan, carry out, prove; again when somebody starts anew; then say what is left and why."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import Any, Dict, FrozenSet, List, Tuple

from .._core.errors import GpuFleetError
from .._process.procfs import read_process
from .done import Done, GpuReset, ShmEntry
from .exclusive import Exclusive, refuse_beside_a_change
from .ladder import carry_out
from .left import DIRTY, Held, all_in_use, dirty_without, failure_message
from .planned import Skip
from .ports import Ports
from .proof import Proof, why_not_free
from .reasons import NO_SUCH_UNIT
from .request import ReclaimRequest, check
from .reset import plan_resets, reset_gpus
from .result import ReclaimResult, of_run, planned
from .shm import find_stale, remove
from .situation import LATE, ROUNDS, Situation
from .survey import notes, shm_owners, unkillable, warnings
from .watch import Watch

# What a reset and the proof after it may need of the whole time, where a reset is allowed.
_RESET_S = 40.0
_ASKS_FOR_RESET = ("reset_required", "lost")
# Between the two looks at shared memory, at least.
_SHM_S = 1.0


def reclaim(request: ReclaimRequest, ports: Ports, check_mode: bool = False) -> ReclaimResult:
    """Free the memory of the selected GPUs and prove it, or in check mode say what would be done.

    Raises GpuFleetError, with everything that was done and seen in its ``result``, when the memory is still held at the end,
    and with nothing done when the request, the host or the driver does not allow a reclaim at all.
    """
    check(request)
    _check_host(ports)
    run = _Run(request, ports)
    try:
        return run.plan_only() if check_mode else run.carry_out()
    except GpuFleetError as exc:
        for name, value in run.so_far().items():
            exc.result.setdefault(name, value)  # whatever broke, what was already done must be known
        raise
    finally:
        run.close()


def _check_host(ports: Ports) -> None:
    if os.geteuid() != 0:
        raise GpuFleetError(
            "Reclaiming GPU memory needs root: other users' processes can neither be seen whole nor be ended. This task runs as "
            "uid %d. Set become: true." % os.geteuid()
        )
    why_not = ports.systemd.available()
    if why_not is not None:
        raise GpuFleetError("GPU memory can't be reclaimed on this host. %s" % why_not)


class _Run:
    """One reclaim on one host."""

    def __init__(self, request: ReclaimRequest, ports: Ports) -> None:
        self.request = request
        self.ports = ports
        self.exclusive = Exclusive(ports, request.scope)
        self.now = Situation(request, ports)
        self.watch = Watch(self.now)
        # The first of the two looks at shared memory, and when that was (monotonic seconds).
        self._shm: List[ShmEntry] = []
        self._shm_at = 0.0

    @property
    def done(self) -> Done:
        """What was done so far."""
        return self.now.done

    def close(self) -> None:
        """Let go of everything."""
        self.exclusive.close()
        self.now.close()

    def plan_only(self) -> ReclaimResult:
        now = self.now
        shm = self._stale(self._ending()) if self.request.clean_shm else []
        held = now.planned_held()
        resets = self._planned_resets(held) if self.request.reset == "if_needed" else []
        if shm or not now.plan.empty or any(each.planned for each in resets):
            self.exclusive.refuse_beside_a_holder()
            refuse_beside_a_change(now.view, False)
        free = why_not_free(now.view.snapshot, now.selected, now.limits) is None
        return replace(planned(now.plan, now.before, free, held, shm, resets), warnings=warnings(now.view, now.plan.skips, self.done))

    def _planned_resets(self, held: List[Held]) -> List[GpuReset]:
        """What a run would try to reset: what is still held by nothing that a person could name once the plan is carried out."""
        ended = frozenset(self.now.planned_fates())
        wanted = [each.gpu for each in held if each.gpu.state in _ASKS_FOR_RESET or dirty_without(each, ended)]
        self.now.close()  # our own reader has every GPU open as well
        return plan_resets(wanted, {pid for pid, _start in ended} | {os.getpid()}, self.ports.proc_root)

    def carry_out(self) -> ReclaimResult:
        reset = self.request.reset == "if_needed"
        proof = self._free_and_prove(reserve=min(_RESET_S, self.request.timeout / 2.0) if reset else 0.0)
        if not proof.freed and reset and self.now.deadline.remaining > 0 and self._reset():
            proof = self._free_and_prove()
        if self.request.clean_shm:
            self._remove_stale()
        return self._conclude(proof)

    # Shared memory

    def _stale(self, ending: FrozenSet[int] = frozenset()) -> List[ShmEntry]:
        owners = shm_owners(self.request, self.now.plan, self.done)
        return find_stale(owners, self.ports.shm_root, self.ports.proc_root, bool(self.request.users), ending)

    def _first_look_at_shm(self) -> None:
        """Once what was to end has ended: until then it has its segments open. The proof fills the time up to the second look."""
        if self.request.clean_shm:
            self._shm, self._shm_at = self._stale(), self.ports.clock.monotonic()

    def _remove_stale(self) -> None:
        if not set(self._stale()) <= set(self._shm):
            self._first_look_at_shm()  # somebody has ended since
        if self._shm:
            self._lock_host()
            self.ports.clock.sleep(self._shm_at + _SHM_S - self.ports.clock.monotonic())
            self.done.shm_removed = remove(self._shm, self._stale())

    def _ending(self) -> FrozenSet[int]:
        """The pids that the plan ends: those that it signals, and all that is in the units that it stops, on a GPU or not."""
        pids = {each.holder.pid for each in self.now.plan.signals}
        for stop in self.now.plan.stops:
            systemd = self.ports.systemd if stop.unit.uid is None else self.ports.user_systemd(stop.unit.uid)
            pids.update(stop.pids, systemd.cgroup_pids(stop.unit.unit))
        return frozenset(pids)

    # Doing

    def _free_and_prove(self, reserve: float = 0.0) -> Proof:
        now, watch = self.now, self.watch
        for _round in range(1 + ROUNDS):
            plan = now.fresh()
            if not plan.empty and self._lock_host():
                plan = now.fresh()  # whoever held it until now may have stopped or started something
            if not plan.empty:
                now.late = not carry_out(plan, self.request.effective_grace, self.ports, self.done, now.deadline)
                if now.late:
                    return Proof(False, now.view.gpus, 0.0, now.deadline.elapsed, LATE)
            self._first_look_at_shm()
            proof = watch.prove(reserve)
            if watch.next is None and proof.freed:
                # The proof is the driver's. Who came up meanwhile is seen here, and must go as well.
                if not watch.looked_last:
                    now.look()
                if not now.fresh().empty:
                    continue
                reason = why_not_free(now.view.snapshot, now.selected, now.limits)
                if reason is None:
                    return proof
                proof = Proof(False, now.view.gpus, 0.0, proof.waited_s, "it was free, but then: " + reason)
            elif watch.next is None:
                return proof
            if now.deadline.remaining <= reserve:
                break
        return Proof(False, proof.gpus, 0.0, proof.waited_s, "what was ended is started again and again")

    def _lock_host(self) -> bool:
        """Have the host's services to ourselves before anything of them is ended; True when all was looked at again for that.

        Raises GpuFleetError when somebody else is changing them.
        """
        if self.exclusive.locked:
            return False
        # Where nobody has had the lock since before the first look, that look still stands.
        stale = self.exclusive.take(self.done.changed)
        if stale:
            self.now.look()
        refuse_beside_a_change(self.now.view, self.done.changed)
        return stale

    def _reset(self) -> bool:
        """Reset what is held by nothing that a person could name; whether any GPU was reset."""
        wanted = [
            each.gpu for each in self.now.held()
            if each.verdict == DIRTY or each.gpu.state in _ASKS_FOR_RESET
        ]
        if not wanted:
            return False
        self._lock_host()
        self.now.close()  # our own reader has every GPU open as well
        try:
            resets = reset_gpus(wanted, self.ports.runner, self.ports.proc_root)
        finally:
            self.now.reopen()
        self.done.resets += tuple(resets)
        self.now.look()
        return any(each.done for each in resets)

    # Saying

    def _conclude(self, proof: Proof) -> ReclaimResult:
        now = self.now
        readable = proof.freed or bool(proof.gpus)
        if readable and not proof.freed:
            if self.done.changed or not now.late:
                now.look()  # where the time was over before anything was done, the first one has to do
            readable = now.view.snapshot.available
        result = self._result(proof.freed, readable)
        if proof.freed:
            return result
        accept = self.request.accept
        accepted = accept != "nothing" and all_in_use(result.held)
        message = failure_message(
            result.held, result.unkillable, proof.reason, self.done.timings.total, self.request.reset,
            notes(now.view, self.done, now.revived(), result.held, now.fresh(), self.ports), self.request.scope, accept, accepted,
        )
        if accepted or accept == "anything":
            return replace(result, msg=message)
        raise GpuFleetError(message, **result.to_failure())

    def _result(self, freed: bool, readable: bool) -> ReclaimResult:
        now = self.now
        self._settle_outcomes()
        self.done.timings.total = now.deadline.elapsed
        result = of_run(
            self.done,
            freed,
            now.before,
            now.view.gpus if readable else (),
            self._left_alone() + tuple(self.done.refused[key] for key in sorted(self.done.refused)),
            unkillable(now.view, self.done, self.ports),
            now.held() if readable and not freed else [],
        )
        return replace(result, warnings=warnings(now.view, now.plan.skips, self.done))

    def _left_alone(self) -> Tuple[Skip, ...]:
        """The plan's skips, without a transient unit that is gone because it was stopped."""
        stopped = {name for name, _uid in self.done.stopped}
        return tuple(skip for skip in self.now.plan.skips if skip.reason != NO_SUCH_UNIT or skip.name not in stopped)

    def so_far(self) -> Dict[str, Any]:
        """The result of a run that broke off: what was done, and nothing claimed."""
        return self._result(False, False).to_failure()

    def _settle_outcomes(self) -> None:
        """A process that survived its KILL for a while may have ended since."""
        for key, each in list(self.done.signalled.items()):
            if each.outcome == "survived" and not self._alive(key):
                self.done.signalled[key] = each.ended_late()

    def _alive(self, identity: Tuple[int, int]) -> bool:
        info = read_process(identity[0], self.ports.proc_root)
        return info is not None and info.start_ticks == identity[1] and not info.zombie
