# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Carrying out a plan so that the host always ends with something that serves.

Order: stage the files, drain and stop what is replaced, prove its memory free, start, wait until it serves, and only
then hand over the place at boot. Whatever fails before the new server serves is undone (``rollback.py``).
"""

from __future__ import annotations

import glob
import os
import traceback
from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple, Union

from .._core.clock import Deadline
from .._core.errors import GpuFleetError
from .._core.files import FileChange, apply_change, sync_directory
from .._gpu.reader import GpuReader
from .._reclaim.done import StoppedUnit
from .._reclaim.units import UnitRef, stop_units
from .._unit.change_unit import CHANGE_UNIT
from .._unit.found import ManagedService
from .change_log import COMMITTING, ROLLING_BACK, STAGING, STARTING, STOPPING, ChangeLog
from .drain import drain, own_drain
from .free import make_free
from .home import remove_new_home
from .interrupts import Interrupted
from .look import Look, server_of
from .memory import free_limits
from .notices import unproven
from .outcome import Outcome, Undo
from .patience import patience_for
from .plan import Plan
from .ports import Ports
from .prepare import prepare, prepared_steps
from .read_ahead import read_ahead
from .ready import NotReady, wait_ready, wait_steady
from .request import Request
from .rollback import Rollback, Scene


class Transaction:
    """One plan, carried out once."""

    def __init__(
        self,
        request: Request,
        look: Look,
        plan: Plan,
        ports: Ports,
        reader: Optional[GpuReader],
        outcome: Outcome,
        log: Optional[ChangeLog] = None,
        undo: Optional[Undo] = None,
    ) -> None:
        """``undo`` is what an earlier attempt at the same change, which was interrupted, has left to be put back."""
        self._request = request
        self._look = look
        self._plan = plan
        self._ports = ports
        self._reader = reader
        self._log = log or ChangeLog()
        self._undo = undo or Undo()
        self.outcome = outcome
        self._home = os.path.join(ports.paths.home, look.spec.slug) if look.spec is not None else None
        self._new_home = False
        self._without_file = False

    def run(self) -> Outcome:
        """Carry the plan out. Raises GpuFleetError, with everything that was done attached, when it could not be."""
        try:
            self._stage_files()
            if self._plan.overlapped:
                self._keep_what_is_replaced()
            else:
                self._warm()
                self._stop_what_is_replaced()
            if self._plan.has("start"):
                self._start()
            elif self._request.wants_running:
                self._await_what_runs()
        except (Exception, Interrupted) as exc:
            # Also what nobody foresaw: after the stop of the old server, a traceback must not be the last word.
            raise self._failed(exc) from exc
        self._hand_over()
        return self.outcome

    # -- steps -----------------------------------------------------------------------------------------------------

    def _stage_files(self) -> None:
        self._new_home = self._look.own is None and self._home is not None and not os.path.lexists(self._home)
        self.outcome.touched |= bool(prepared_steps(self._look, self._plan))
        prepare(self._look, self._plan, self._ports)
        if self._request.state != "absent":  # what is removed goes after it has been stopped
            self._write(self._look.view.changes)

    def _write(self, changes: Sequence[FileChange]) -> None:
        if changes:
            self._undo.changes.extend(changes)
            self._log.intend(STAGING, self._undo)
        for change in changes:
            self.outcome.touched = True
            apply_change(change)
        if self._plan.has("daemon_reload"):
            self._undo.unit_text = True
            self._log.intend(STAGING, self._undo)
            self.outcome.touched = True
            self._ports.systemd.daemon_reload()

    def _warm(self) -> None:
        for path in self._plan.targets("warm"):
            warning = self._timed("warm", read_ahead, path, self._request.ready_timeout, self._ports, self._tell_warm)
            if warning is not None:
                self.outcome.warnings.append(warning)

    def _tell_warm(self, read_mib: int, total_mib: int) -> None:
        self._log.tell(warm_read_mib=read_mib, warm_total_mib=total_mib)

    def _keep_what_is_replaced(self) -> None:
        """It goes on serving until the new server does. Whoever undoes this change makes sure of that."""
        for rival in self._look.view.rivals:
            if rival.running:
                self._undo.will_stop(rival.service, served=rival.status.running)

    def _retire_what_is_replaced(self) -> None:
        """The new server serves: what it replaces goes, and nothing that fails here is undone."""
        rivals = {rival.service.unit: rival for rival in self._look.view.rivals if rival.running}
        drained = Deadline(self._ports.clock, self._request.drain_timeout)  # for all of them together
        for unit in self._plan.targets("drain"):
            self._timed("drain", self._drain, rivals[unit].service, drained)
        self.outcome.touched = True
        for stopped in self._timed("stop", self._stop, self._plan.targets("stop")):
            self.outcome.replace(stopped.unit, rivals[stopped.unit].service.name, stopped.result, stopped.seconds)

    def _stop_what_is_replaced(self) -> None:
        view, plan = self._look.view, self._plan
        rivals = {rival.service.unit: rival for rival in view.rivals}
        drained, units = set(plan.targets("drain")), plan.targets("stop")
        deadline = Deadline(self._ports.clock, self._request.drain_timeout)  # for all of them together
        for unit in units:
            rival = rivals.get(unit)
            service = rival.service if rival is not None else self._look.own
            if unit in drained and service is not None:
                self._timed("drain", self._drain, service, deadline)
        # Remembered before they are stopped: if a stop fails half-way, the roll-back has to know of it.
        for unit in units:
            rival = rivals.get(unit)
            service = rival.service if rival is not None else self._look.own
            status = rival.status if rival is not None else view.status
            if service is not None:
                self._undo.will_stop(service, served=status.running)
            elif status.running:
                self._without_file = True
        if units:
            if self._undo.down_since is None:
                self._undo.down_since, self._undo.down_at = self._ports.clock.monotonic(), self._ports.clock.time()
            self._log.intend(STOPPING, self._undo)
            self.outcome.touched = True
        for stopped in self._timed("stop", self._stop, units):
            rival = rivals.get(stopped.unit)
            if rival is not None:
                self.outcome.replace(stopped.unit, rival.service.name, stopped.result, stopped.seconds)
        if self._request.state == "absent":
            for unit in plan.targets("disable"):
                self._undo.disabled.append(unit)
                self._ports.systemd.disable(unit)
            self._write(view.changes)
            if view.status.failed or view.changes:
                self._ports.systemd.reset_failed(view.unit)

    def _drain(self, service: ManagedService, deadline: Deadline) -> None:
        left = drain(server_of(service, self._ports), self._ports.clock, deadline.remaining)
        own = own_drain(os.path.join(self._ports.paths.config, service.slug + ".yaml"))
        if left != 0:
            self.outcome.warnings.append(
                "%s still had %s requests after %d s of draining; it was stopped all the same%s."
                % (
                    service.unit, "an unknown number of" if left is None else left, self._request.drain_timeout,
                    ", and had %d s more to end them by itself" % own if own else "",
                )
            )
        if not own:
            self.outcome.warnings.append(
                "%s was declared without a drain of its own, so what it was asked in its last moment may have been cut off. Give its "
                "own declaration a drain_timeout." % service.unit
            )

    def _stop(self, units: Sequence[str]) -> List[StoppedUnit]:
        """Stop them side by side: two servers that resist take no longer than one."""
        if not units:
            return []
        patience = self._request.stop_timeout
        if self._look.spec is not None and self._look.spec.unit in units:
            patience = max(patience, float(self._look.spec.timeout_stop_s))  # its own drain is longer
        patience = patience_for(patience, self._ports.systemd.statuses(units).values())
        refs = [UnitRef(self._ports.systemd, unit) for unit in units]
        result = stop_units(refs, patience, self._ports.clock, self._ports.paths.proc)
        for stopped in result:
            if not stopped.ok:
                from .unstopped import why_unstopped  # seldom needed

                raise GpuFleetError(
                    "%s could not be stopped: %s." % (stopped.unit, why_unstopped(stopped, self._ports.paths.proc))
                )
        return result

    def _start(self) -> None:
        unit = self._look.view.unit
        self._timed("settle", self._make_free)
        self._undo.started = unit
        self._log.intend(STARTING, self._undo, {"replaced": self.outcome.replaced})
        self.outcome.touched = True
        self._ports.systemd.reset_failed(unit)
        self._timed("load", self._start_and_await, unit)
        self._up_again()
        self._prove_steady(0)

    def _make_free(self) -> None:
        if self._reader is None or self._look.need is None:
            raise GpuFleetError("The GPUs cannot be read, so their memory cannot be proven free.")
        leaving = frozenset(self._plan.targets("stop")) | {self._look.view.unit}
        pids = frozenset(int(pid) for pid in self._plan.targets("end_process"))
        limits = free_limits(self._look.gpus, self._look.need, leaving, pids)
        freed = make_free(limits, self._ports, self._reader, leaving=leaving)
        self.outcome.warnings.extend(freed.warnings)
        self.outcome.ended_processes.extend(freed.ended)

    def _start_and_await(self, unit: str) -> None:
        self._ports.systemd.start(unit)
        self._await(0)  # reset_failed() has just set the count of restarts back

    def _await(self, restarts: int) -> None:
        if self._look.target is None:
            raise GpuFleetError("It is not known what %s serves." % self._look.view.unit)
        timeout = self._request.ready_timeout
        self.outcome.ready = wait_ready(
            self._look.target, self._ports.systemd, self._ports.clock, timeout, restarts, self._log.seen
        )
        self.outcome.warnings.extend(unproven(self.outcome.ready))

    def _await_what_runs(self) -> None:
        """A server that was left alone: it serves, or it is still loading and waited for, or it is only busy.

        A busy one is taken at its word, except where another server goes for it: then it has to be seen to serve first.
        """
        seen = self._look.serves
        if seen is None or seen.stage == "loading" or (not seen.ready and self._plan.has("stop")):
            self._timed("load", self._await, self._look.view.status.n_restarts)
            self._up_again()
            self._prove_steady(self._look.view.status.n_restarts)
        elif seen.ready and "downtime" not in self.outcome.timings:
            self._up_again()  # an earlier attempt has started it, and did not live to see it serve
            if self._undo.down_since is not None:
                self._prove_steady(self._look.view.status.n_restarts)

    def _prove_steady(self, restarts: int) -> None:
        """A server may crash at its first real work: until then what it replaces can be put back without anybody's doing."""
        ready, target = self.outcome.ready, self._look.target
        if ready is None:
            ready = self._look.serves
        if self._request.steady_time and ready is not None and ready.ready and target is not None:
            args = (target, self._ports.systemd, self._ports.clock, self._request.steady_time, restarts, ready, self._log.seen)
            self.outcome.ready = self._timed("steady", wait_steady, *args)

    def _hand_over(self) -> None:
        """Boot-time starts. A fault here undoes nothing: the new server serves, and two loads are no price for a link."""
        if self._request.state == "absent":
            return
        on, off = [unit for unit in self._plan.targets("enable") if unit != CHANGE_UNIT], self._plan.targets("disable")
        if self._request.wants_running:
            self._log.phase("commit")
            # Only of use to whoever finds this change interrupted here, and the new server dead.
            self._undo.enabled, self._undo.disabled = list(on), list(off)
            # The new server serves: a disk that is full by now is no reason to leave the boot with the old one.
            more = {"replaced": self.outcome.replaced, "enable": on, "disable": off}
            self.outcome.warnings.extend(self._log.try_to_intend(COMMITTING, self._undo, more))
        try:
            switch_boot(on, off, self._ports)
            self.outcome.touched |= bool(on or off)
            if self._plan.overlapped:
                self._retire_what_is_replaced()
            for unit in self._plan.targets("stop"):
                if unit != self._look.view.unit:
                    self._ports.systemd.reset_failed(unit)  # one that had to be killed is no failure to be alarmed by
        except GpuFleetError as exc:
            raise GpuFleetError(
                "%s serves, but what it replaces is not all gone, or what starts at boot not set: %s Run again."
                % (self._look.view.unit, _sentence(exc.msg)),
                **exc.result,
            ) from exc

    def _up_again(self) -> None:
        if self._undo.down_since is not None:
            self.outcome.timings["downtime"] = round(self._ports.clock.monotonic() - self._undo.down_since, 3)

    def _timed(self, phase: str, work: Callable[..., Any], *arguments: Any) -> Any:
        begun = self._ports.clock.monotonic()
        self._log.phase(phase)
        try:
            return work(*arguments)
        finally:
            spent = self._ports.clock.monotonic() - begun
            self.outcome.timings[phase] = round((self.outcome.timings.get(phase) or 0.0) + spent, 3)

    # -- failure ---------------------------------------------------------------------------------------------------

    def _failed(self, cause: Union[Exception, Interrupted]) -> GpuFleetError:
        """Undo what can be undone; the error to raise, with what happened, in the order in which a person needs it."""
        self._log.may_undo()
        self.outcome.ready = None
        if self._undo.down_since is not None or not self._served_before():
            self.outcome.timings["downtime"] = None  # it lasts, until something is seen to serve again
        msg, result = self._told(cause)
        if not self._request.rollback:
            return GpuFleetError(msg + "\nNothing was put back, as rollback is off.", **result)
        view = self._look.view
        seen = self._look.snapshot
        scene = Scene(view.unit, self._look.gpus, view.rivals, seen.gpus if seen is not None else ())
        rollback = Rollback(self._request, scene, self._ports, self._reader, self._undo, self._log)
        if not rollback.needed:
            return GpuFleetError(msg, **result)
        failure = dict(result, msg=msg)
        if self.outcome.diagnosis is not None:
            failure["diagnosis"] = self.outcome.diagnosis
        self._log.phase("rollback")
        more = {"replaced": self.outcome.replaced, "failure": failure}
        self.outcome.warnings.extend(self._log.try_to_intend(ROLLING_BACK, self._undo, more))
        undone = rollback.run()
        if self._without_file:
            undone.problems.append("%s ran without its unit file, and there is none to start it by" % self._look.view.unit)
        elif undone.complete and self._new_home:
            self._remove_home()
        self.outcome.rolled_back = undone.complete
        self.outcome.warnings.extend(undone.warnings)
        if undone.serves:
            self._up_again()
        return GpuFleetError("%s\n%s" % (msg, undone.text), **result)

    def _served_before(self) -> bool:
        """Whether anything served here when the run began, as far as is known: what was never stopped serves on."""
        seen, view = self._look.serves, self._look.view
        own = view.status.running and (seen is None or seen.stage != "loading")
        return own or any(rival.status.running for rival in view.rivals)

    def _remove_home(self) -> None:
        """What a server that never served has left in a directory that was not there before."""
        if self._home is None:
            return
        try:
            if not remove_new_home(self._home):
                self.outcome.warnings.append("%s is kept: what was downloaded is in it." % self._home)
        except GpuFleetError as exc:
            self.outcome.warnings.append(exc.msg)

    def _told(self, cause: Union[Exception, Interrupted]) -> Tuple[str, Dict[str, Any]]:
        """What failed, as the message and what else there is to return."""
        if isinstance(cause, Interrupted):
            return cause.msg, {}
        if not isinstance(cause, GpuFleetError):
            where = self._log.fault(traceback.format_exc())
            text = "An unforeseen fault (%s: %s). Please report it, with %s" % (type(cause).__name__, cause, where)
            return text, {"exception": traceback.format_exc()}
        if not isinstance(cause, NotReady):
            return cause.msg, dict(cause.result)
        try:
            return self._explained(cause), dict(cause.result)
        except Exception as exc:  # noqa: BLE001 - what is said of a failure is no reason to leave it as it is
            self.outcome.warnings.append("Why it failed could not be looked into: %s: %s" % (type(exc).__name__, exc))
            return cause.msg, dict(cause.result)

    def _explained(self, cause: NotReady) -> str:
        if cause.advice is not None:  # what it answers says it all
            from .._diagnosis.classify import Diagnosis

            self.outcome.diagnosis = Diagnosis("unknown", cause.msg, (), cause.advice).to_result()
            return "%s %s" % (_sentence(cause.msg), cause.advice)
        from .explain import explain  # a lot of code for what seldom happens

        diagnosis = explain(cause, self._look, self._ports)
        self.outcome.diagnosis = diagnosis.to_result()
        if cause.timed_out:
            return "%s. %s" % (cause.msg.rstrip("."), _sentence(diagnosis.advice or diagnosis.summary))
        what = "did not go on serving" if cause.served else "did not come up"
        msg = "%s %s: %s" % (cause.status.unit, what, _sentence(diagnosis.summary))
        if diagnosis.advice:
            msg += " " + _sentence(diagnosis.advice)
        return msg + "\nSeen: %s" % _sentence(cause.msg)


def switch_boot(on: Sequence[str], off: Sequence[str], ports: Ports) -> None:
    """What starts at boot: the new before the old, and each on disk before the next, so that a power cut never finds neither."""
    for unit in on:
        ports.systemd.enable(unit)
    if on:
        _sync_links(ports)
    for unit in off:
        ports.systemd.disable(unit)
    if off:
        _sync_links(ports)


def _sync_links(ports: Ports) -> None:
    """systemctl makes and removes links, and leaves it to the kernel when they come to the disk."""
    try:
        for kind in ("wants", "requires"):
            for directory in glob.iglob(os.path.join(glob.escape(ports.paths.units), "*." + kind)):
                sync_directory(directory)
        sync_directory(ports.paths.units)
    except OSError as exc:
        raise GpuFleetError("What starts at boot could not be brought to the disk: %s." % exc) from exc


def _sentence(text: str) -> str:
    text = text.strip()
    return text if text.endswith((".", "!", "?")) else text + "."
