# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""One reclaim: look, plan, carry out, prove; again when somebody starts anew; then say what is left and why."""

from __future__ import annotations

import os
from contextlib import ExitStack
from dataclasses import replace
from typing import Any, Dict, List, Optional, Tuple

from .._core.clock import Deadline
from .._core.errors import GpuFleetError
from .._core.host_lock import HostLock, busy_message, holder_of, quiet_since
from .._gpu.reader import GpuReader
from .._gpu.types import Snapshot
from .._process.procfs import read_process
from .ladder import carry_out
from .left import DIRTY, Held, all_in_use, dirty_without, failure_message, out_of_reach, what_is_held
from .look import CHANGE_UNIT, look
from .plan import NO_SUCH_UNIT, make_plan
from .ports import Ports
from .proof import Proof, held_mib, prove_free, why_not_free
from .request import ReclaimRequest, check
from .reset import plan_resets, reset_gpus
from .result import ReclaimResult, of_run, planned
from .shm import find_stale, remove
from .survey import notes, shm_owners, unkillable
from .types import Done, GpuReset, Plan, ShmEntry, Skip, UnitKey, UnitView, View

# How often somebody may start anew what was ended before this gives up and names it.
_ROUNDS = 3
# Between two looks at processes and units while the memory is watched; the first comes sooner.
_LOOK_S = 1.0
_FIRST_LOOK_S = 0.2
# The last look at who is there begins this long before the settle time is over, so that nobody waits for it.
_LAST_LOOK_S = 0.15
# How long something has to look out of reach before it is taken for that.
_DOUBT_S = 0.8
# Settle time where no process is there that could take memory: enough to see memory that is in motion.
_IDLE_SETTLE_S = 0.15
# What a reset and the proof after it may need of the whole time, where a reset is allowed.
_RESET_S = 40.0
_ASKS_FOR_RESET = ("reset_required", "lost")
# What a person does about a driver that can't be read.
_NEXT = {
    "no_driver": " Next: load the driver (modprobe nvidia), or install it.",
    "library_missing": " Next: install the driver's user-space part (libnvidia-ml.so.1, nvidia-smi) in the version of the loaded module.",
    "driver_library_mismatch": " Next: reboot the host, so that the module is loaded that the installed library belongs to.",
    "driver_hung": " Next: look for Xid lines in the kernel log, then reboot the host.",
}
_LATE = "left alone: the time was over before it could be ended; give a longer timeout"
_BUSY = "GPU memory can't be reclaimed now, nothing was touched. "
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
    """The state of one reclaim."""

    def __init__(self, request: ReclaimRequest, ports: Ports) -> None:
        self.request = request
        self.ports = ports
        self.deadline = Deadline(ports.clock, request.timeout)
        self.reader: GpuReader = ports.open_reader()
        self.done = Done()
        self._quiet_since = quiet_since(ports.run_root, ports.proc_root)
        self.view = self._first_look()
        self.before = self.view.gpus
        self.selected = self.view.selected
        self.limits: Dict[int, int] = dict.fromkeys(self.selected, request.max_used_mib)
        self.plan = make_plan(request, self.view)
        self.next: Optional[Plan] = None
        self._next_look = 0.0
        self._last_used: Optional[Tuple[Optional[int], ...]] = None
        self._doubted_at: Optional[float] = None
        self._looked_last = False
        self._lock = ExitStack()
        self._locked = False
        self._late = False

    def close(self) -> None:
        """Let go of everything."""
        self._lock.close()
        self.reader.close()

    def plan_only(self) -> ReclaimResult:
        shm: List[ShmEntry] = self._stale() if self.request.clean_shm else []
        held = what_is_held(self.view, self.plan, self.limits, self._planned_fates())
        resets = self._planned_resets(held) if self.request.reset == "if_needed" else []
        if shm or not self.plan.empty or any(each.planned for each in resets):
            busy = holder_of(self.ports.run_root, self.ports.proc_root)
            if busy is not None:
                raise GpuFleetError(_BUSY + busy_message(busy), lock_holder=busy)
            self._refuse_beside_a_change()
        free = why_not_free(self.view.snapshot, self.selected, self.limits) is None
        return planned(self.plan, self.before, free, held, shm, resets)

    def _planned_resets(self, held: List[Held]) -> List[GpuReset]:
        """What a run would try to reset: what is still held by nothing that a person could name once the plan is carried out."""
        ended = frozenset(self._planned_fates())
        wanted = [each.gpu for each in held if each.gpu.state in _ASKS_FOR_RESET or dirty_without(each, ended)]
        return plan_resets(wanted, {pid for pid, _start in ended} | {os.getpid()}, self.ports.proc_root)

    def _planned_fates(self) -> Dict[Tuple[int, int], str]:
        fates = {each.holder.identity: "it would be ended" for each in self.plan.signals}
        stopped = {pid for stop in self.plan.stops for pid in stop.pids}
        fates.update({holder.identity: "its unit would be stopped" for holder in self.view.holders if holder.pid in stopped})
        return fates

    def carry_out(self) -> ReclaimResult:
        shm_seen: List[ShmEntry] = []
        shm_at = self.ports.clock.monotonic()
        if self.request.clean_shm:
            shm_seen = self._stale()
        reset = self.request.reset == "if_needed"
        proof = self._free_and_prove(reserve=min(_RESET_S, self.request.timeout / 2.0) if reset else 0.0)
        if not proof.freed and reset and self._reset():
            proof = self._free_and_prove()
        if shm_seen:
            self._lock_host()
            self.ports.clock.sleep(shm_at + _SHM_S - self.ports.clock.monotonic())
            self.done.shm_removed = remove(shm_seen, self._stale())
        return self._conclude(proof)

    # Looking

    def _first_look(self) -> View:
        try:
            view = look(self.reader, self.request, self.ports)
        except BaseException:
            self.reader.close()
            raise
        if not view.snapshot.available:
            self.reader.close()
            raise GpuFleetError(
                "No GPU can be read on this host (%s: %s), so nothing is touched and nothing counts as free.%s"
                % (view.snapshot.reason, view.snapshot.reason_detail or "no detail", _NEXT.get(str(view.snapshot.reason), "")),
                changed=False, freed=False,
            )
        if not view.selected:
            self.reader.close()
            raise GpuFleetError("The driver shows no GPU on this host.", changed=False, freed=False)
        return view

    def _look(self) -> None:
        self.view = look(self.reader, self.request, self.ports)
        self._next_look = self.ports.clock.monotonic() + _LOOK_S
        if self.view.snapshot.available:
            self.plan = make_plan(self.request, self.view)

    def _fresh(self) -> Plan:
        """What the plan still holds of things not tried yet. A unit that came back is stopped again, up to a limit."""
        done = self.done
        if not self.view.snapshot.available:
            return Plan()  # nobody is touched on the word of a look from before
        return Plan(
            tuple(
                stop for stop in self.plan.stops
                if done.attempts.get(stop.unit.key, 0) < _ROUNDS
                and (stop.unit.key not in done.stopped or done.stopped[stop.unit.key].ok)
            ),
            tuple(
                each for each in self.plan.signals
                if each.holder.identity not in done.signalled and each.holder.identity not in done.refused
            ),
            self.plan.skips,
        )

    def _revived(self) -> List[UnitView]:
        """Units that were stopped as often as it makes sense and run again."""
        return [stop.unit for stop in self.plan.stops if self._comes_back(stop.unit.key)]

    def _comes_back(self, key: UnitKey) -> bool:
        stopped = self.done.stopped.get(key)
        return self.done.attempts.get(key, 0) >= _ROUNDS or (stopped is not None and stopped.restarted)

    def _held(self) -> List[Held]:
        fates = {key: "survived SIGKILL" for key, each in self.done.signalled.items() if each.outcome == "survived"}
        fates.update({key: skip.reason for key, skip in self.done.refused.items()})
        if self._late:
            fates.update({key: _LATE for key in self._planned_fates() if key not in fates})
        for holder in self.view.holders:
            stopped = None if holder.unit is None else self.done.stopped.get(holder.unit)
            if stopped is None:
                continue
            if self._comes_back((stopped.unit, stopped.uid)):
                fates[holder.identity] = "its unit is started again each time it is stopped"
            elif not stopped.ok:
                fates[holder.identity] = "its unit was stopped, and it survived SIGKILL"
        return what_is_held(self.view, self.plan, self.limits, fates)

    def _stale(self) -> List[ShmEntry]:
        owners = shm_owners(self.request, self.plan, self.done)
        return find_stale(owners, self.ports.shm_root, self.ports.proc_root, strict=bool(self.request.users))

    # Doing

    def _free_and_prove(self, reserve: float = 0.0) -> Proof:
        for _round in range(1 + _ROUNDS):
            plan = self._fresh()
            if not plan.empty and self._lock_host():
                plan = self._fresh()  # whoever held it until now may have stopped or started something
            if not plan.empty and self.deadline.remaining <= 0:
                self._late = True
                return Proof(False, self.view.gpus, 0.0, self.deadline.elapsed, _LATE)
            if not plan.empty:
                carry_out(plan, self._grace(), self.ports, self.done)
            proof = self._prove(reserve)
            if self.next is None and proof.freed:
                # The proof is the driver's. Who came up meanwhile is seen here, and must go as well.
                if not self._looked_last:
                    self._look()
                if not self._fresh().empty:
                    continue
                reason = why_not_free(self.view.snapshot, self.selected, self.limits)
                if reason is None:
                    return proof
                proof = Proof(False, self.view.gpus, 0.0, proof.waited_s, "it was free, but then: " + reason)
            elif self.next is None:
                return proof
            if self.deadline.remaining <= reserve:
                break
        return Proof(False, proof.gpus, 0.0, proof.waited_s, "what was ended is started again and again")

    def _lock_host(self) -> bool:
        """Have the host's services to ourselves before anything of them is ended; True when all was looked at again for that.

        Raises GpuFleetError when somebody else is changing them: what a swap stops, starts or waits for is not ours to end.
        """
        if self._locked:
            return False
        try:
            lock = self._lock.enter_context(HostLock(self.ports.run_root, "gpu_reclaim scope %s" % self.request.scope))
        except GpuFleetError as exc:
            raise GpuFleetError((exc.msg if self.done.changed else _BUSY + exc.msg), **exc.result) from exc
        self._locked = True
        # Where nobody has had the lock since before the first look, that look still stands.
        stale = self._quiet_since is None or lock.quiet_since != self._quiet_since
        if stale:
            self._look()
        self._refuse_beside_a_change()
        return stale

    def _refuse_beside_a_change(self) -> None:
        """Raise GpuFleetError while a change of services goes on whose job does not hold the lock at this moment.

        Its job has just been started, or was killed and starts again: what it has stopped and started so far is not ours to judge.
        """
        unit = self.view.units.get((CHANGE_UNIT, None))
        if unit is not None and not unit.inactive:
            busy = {"pid": unit.main_pid, "purpose": CHANGE_UNIT}
            raise GpuFleetError(
                "%sAnother run is changing the services of this host right now: %s is under way, and `journalctl -u %s` tells how "
                "far. Wait until it has ended, then run again."
                % ("" if self.done.changed else _BUSY, CHANGE_UNIT, CHANGE_UNIT),
                lock_holder=busy,
            )

    def _grace(self) -> float:
        return min(self.request.effective_grace, max(0.0, self.deadline.remaining / 2.0))

    def _prove(self, reserve: float) -> Proof:
        self.next = self._last_used = None
        self._looked_last = False
        self._next_look = self.ports.clock.monotonic() + _FIRST_LOOK_S if self.done.changed else 0.0
        start = self.ports.clock.monotonic()
        proof = prove_free(
            self.reader,
            self.selected,
            self.limits,
            self._settle(),
            max(0.0, self.deadline.remaining - reserve),
            self.ports.clock,
            on_wait=self._look_last,
            give_up=self._give_up,
        )
        self.done.timings.settle += self.ports.clock.monotonic() - start
        return proof

    def _look_last(self, so_far: Proof) -> None:
        """Look who is there once more, at the end of the settle time; the readings of the driver go on after it."""
        if so_far.settle_s == 0.0:
            self._looked_last = False  # it begins anew
        used = [(held_mib(gpu), self.limits[gpu.index]) for gpu in so_far.gpus]
        free = all(mib is not None and mib <= limit for mib, limit in used)
        if not self._looked_last and free and self._settle() - so_far.settle_s <= _LAST_LOOK_S:
            self._look()
            self._looked_last = self.view.snapshot.available

    def _settle(self) -> float:
        """The settle time; where nothing was done and nobody is there who could take memory, a short one is proof enough."""
        quiet = all(
            holder.protected_by is not None or holder.state == "gone"
            for holder in self.view.holders
            if holder.gpus & set(self.selected)
        )
        if not self.done.changed and quiet:
            return min(self.request.settle, _IDLE_SETTLE_S)
        return self.request.settle

    def _give_up(self, snapshot: Snapshot) -> Optional[str]:
        """Asked while memory is held: look who holds it, and stop waiting when there is more to do or nothing to wait for.

        Looking at processes and units costs more than reading the memory, so it is done now and then, and when memory moved.
        """
        used = tuple(held_mib(gpu) for gpu in snapshot.gpus)
        moved, self._last_used = self._last_used not in (None, used), used
        if self.ports.clock.monotonic() < self._next_look and not moved:
            return None
        self._look()
        if not self.view.snapshot.available:
            return None
        fresh = self._fresh()
        if not fresh.empty:
            self.next = fresh
            return "there is more to end"
        if self._revived():
            return "what was stopped is started again each time"
        held = self._held()
        if all_in_use(held):
            return "what is held belongs to running processes that were left alone"
        # A process on its way out looks for a moment like one that nobody can reach: only what stays so counts.
        reason = out_of_reach(held, self.view, self.plan)
        now = self.ports.clock.monotonic()
        if reason is None or self._doubted_at is None:
            self._doubted_at = None if reason is None else now
            return None
        return reason if now - self._doubted_at >= _DOUBT_S else None

    def _reset(self) -> bool:
        """Reset what is held by nothing that a person could name; whether any GPU was reset."""
        wanted = [
            each.gpu for each in self._held()
            if each.verdict == DIRTY or each.gpu.state in _ASKS_FOR_RESET
        ]
        if not wanted:
            return False
        self._lock_host()
        self.reader.close()  # our own reader has every GPU open as well
        try:
            resets = reset_gpus(wanted, self.ports.runner, self.ports.proc_root)
        finally:
            self.reader = self.ports.open_reader()
        self.done.resets += tuple(resets)
        self._look()
        return any(each.done for each in resets)

    # Saying

    def _conclude(self, proof: Proof) -> ReclaimResult:
        readable = proof.freed or bool(proof.gpus)
        if readable and not proof.freed:
            self._look()
            readable = self.view.snapshot.available
        result = self._result(proof.freed, readable)
        if proof.freed:
            return result
        message = failure_message(
            result.held, result.unkillable, proof.reason, self.done.timings.total, self.request.reset,
            notes(self.view, self.done, self._revived(), result.held, self.ports), self.request.scope, self.request.accept,
        )
        if self.request.accept == "anything" or (self.request.accept == "in_use" and all_in_use(result.held)):
            return replace(result, msg=message)
        raise GpuFleetError(message, **result.to_failure())

    def _result(self, freed: bool, readable: bool) -> ReclaimResult:
        self._settle_outcomes()
        done = self.done
        done.timings.total = self.deadline.elapsed
        return of_run(
            done,
            freed,
            self.before,
            self.view.gpus if readable else (),
            self._left_alone() + tuple(done.refused[key] for key in sorted(done.refused)),
            unkillable(self.view, self.done, self.ports),
            self._held() if readable and not freed else [],
        )

    def _left_alone(self) -> Tuple[Skip, ...]:
        """The plan's skips, without a transient unit that is gone because it was stopped."""
        stopped = {name for name, _uid in self.done.stopped}
        return tuple(skip for skip in self.plan.skips if skip.reason != NO_SUCH_UNIT or skip.name not in stopped)

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
