# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Carrying out a plan so that the host always ends with something that serves.

Order: stage the files, drain and stop what is replaced, prove its memory free, start, wait until it serves, and only
then hand over the place at boot. Whatever fails after the first change is undone in the opposite order; the old
server counts as back only when it serves again.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple

from .._core.clock import Deadline
from .._core.errors import GpuFleetError
from .._core.files import FileChange, apply_change, make_directory, restore
from .._gpu.reader import GpuReader
from .._reclaim.ladder import stop_unit
from .._server.ready import ReadyState
from .._unit.found import ManagedService
from .account import create
from .drain import drain
from .explain import explain
from .free import make_free
from .look import Look, server_of
from .memory import Need
from .plan import Plan
from .ports import Ports
from .ready import NotReady, Target, wait_ready
from .request import Request


@dataclass
class Outcome:
    """What happened, while it happens; the module's result is made from it."""

    timings: Dict[str, float] = field(default_factory=dict)
    replaced: List[Dict[str, Any]] = field(default_factory=list)
    ready: Optional[ReadyState] = None
    rolled_back: bool = False
    diagnosis: Optional[Dict[str, Any]] = None
    warnings: List[str] = field(default_factory=list)
    ended_processes: List[Dict[str, Any]] = field(default_factory=list)
    touched: bool = False


@dataclass
class _Undo:
    """What has been changed so far and can be put back."""

    changes: List[FileChange] = field(default_factory=list)
    unit_text: bool = False
    stopped: List[ManagedService] = field(default_factory=list)
    disabled: List[str] = field(default_factory=list)
    enabled: List[str] = field(default_factory=list)
    started: Optional[str] = None


class Transaction:
    """One plan, carried out once."""

    def __init__(
        self, request: Request, look: Look, plan: Plan, ports: Ports, reader: Optional[GpuReader], outcome: Outcome
    ) -> None:
        self._request = request
        self._look = look
        self._plan = plan
        self._ports = ports
        self._reader = reader
        self._undo = _Undo()
        self._down_since: Optional[float] = None
        self.outcome = outcome

    def run(self) -> Outcome:
        """Carry the plan out. Raises GpuFleetError, with everything that was done attached, when it could not be."""
        try:
            self._stage_files()
            self._stop_what_is_replaced()
            if self._plan.has("start"):
                self._start()
            elif self._request.wants_running:
                self._await(self._look.view.status.n_restarts)
            self._hand_over()
        except GpuFleetError as exc:
            self._fail(exc)
        return self.outcome

    # -- steps -----------------------------------------------------------------------------------------------------

    def _stage_files(self) -> None:
        paths = self._ports.paths
        if self._plan.has("create_user"):
            self.outcome.touched = True
            create(self._look.account, paths.home, self._ports.runner)
        if self._request.declares_files:
            for directory in self._look.directories:
                if make_directory(directory):
                    self.outcome.touched = True
        if self._request.state == "absent":
            return  # what is removed goes after it has been stopped
        self._write(self._look.view.changes)

    def _write(self, changes: Sequence[FileChange]) -> None:
        for change in changes:
            self.outcome.touched = True
            self._undo.changes.append(change)
            apply_change(change)
        if self._plan.has("daemon_reload"):
            self._undo.unit_text = True
            self._ports.systemd.daemon_reload()

    def _stop_what_is_replaced(self) -> None:
        view = self._look.view
        running = {rival.service.unit: rival for rival in view.rivals}
        drained = set(self._plan.targets("drain"))
        for unit in self._plan.targets("stop"):
            rival = running.get(unit)
            service = rival.service if rival is not None else self._look.own
            status = rival.status if rival is not None else view.status
            if unit in drained and service is not None:
                self._timed("drain", self._drain, service)
            if self._down_since is None:
                self._down_since = self._ports.clock.monotonic()
            self.outcome.touched = True
            # Remembered before it is stopped: if the stop itself fails half-way, the roll-back has to know of it.
            if service is not None and (status.running or status.starting):
                self._undo.stopped.append(service)
            stopped = self._timed("stop", self._stop, unit)
            if rival is not None:
                self.outcome.replaced.append(
                    {"unit": unit, "name": rival.service.name, "result": stopped.result, "seconds": round(stopped.seconds, 3)}
                )
        if self._request.state == "absent":
            for unit in self._plan.targets("disable"):
                self._ports.systemd.disable(unit)
            self._write(view.changes)
            if view.status.failed or view.changes:
                self._ports.systemd.reset_failed(view.unit)

    def _drain(self, service: ManagedService) -> None:
        left = drain(server_of(service, self._ports), self._ports.clock, self._request.drain_timeout)
        if left:
            self.outcome.warnings.append(
                "%s still had %d requests after %d s of draining; it was stopped all the same."
                % (service.unit, left, self._request.drain_timeout)
            )

    def _stop(self, unit: str) -> Any:
        stopped = stop_unit(self._ports.systemd, unit, self._request.stop_timeout, self._ports.clock)
        if stopped.result == "failed":
            raise GpuFleetError(
                "%s could not be stopped: its processes do not die, not even of SIGKILL. Look at `systemctl status %s`; "
                "processes in state D wait for the driver, and only a reboot ends them." % (unit, unit)
            )
        return stopped

    def _start(self) -> None:
        unit = self._look.view.unit
        self._timed("settle", self._make_free)
        self.outcome.touched = True
        self._undo.started = unit
        self._ports.systemd.reset_failed(unit)
        self._timed("load", self._start_and_await, unit)
        self._up_again()

    def _up_again(self) -> None:
        if self._down_since is not None:
            self.outcome.timings["downtime"] = round(self._ports.clock.monotonic() - self._down_since, 3)

    def _make_free(self) -> None:
        if self._look.spec is None or self._look.need is None:
            raise AssertionError("self._look.spec is not None and self._look.need is not None")
        self._free(self._look.spec.gpus, self._look.need)

    def _free(self, gpus: Tuple[int, ...], need: Need) -> None:
        if self._reader is None:
            raise AssertionError("self._reader is not None")
        starting = {self._look.view.unit} | {service.unit for service in self._undo.stopped}
        shared = {gpu for service in self._look.others if service.unit not in starting for gpu in service.gpus}
        freed = make_free(gpus, need, tuple(sorted(shared & set(gpus))), self._ports, self._reader)
        self.outcome.warnings.extend(freed.warnings)
        self.outcome.ended_processes.extend(freed.ended)

    def _start_and_await(self, unit: str) -> None:
        self._ports.systemd.start(unit)
        self._await(0)  # reset_failed() has just set the count of restarts back

    def _await(self, restarts: int) -> None:
        if self._look.target is None:
            raise AssertionError("self._look.target is not None")
        timeout = self._request.ready_timeout
        self.outcome.ready = wait_ready(self._look.target, self._ports.systemd, self._ports.clock, timeout, restarts)

    def _hand_over(self) -> None:
        if self._request.state == "absent":
            return
        for unit in self._plan.targets("enable"):
            self.outcome.touched = True
            self._undo.enabled.append(unit)
            self._ports.systemd.enable(unit)
        for unit in self._plan.targets("disable"):
            self.outcome.touched = True
            self._undo.disabled.append(unit)
            self._ports.systemd.disable(unit)

    def _timed(self, phase: str, work: Callable[..., Any], *arguments: Any) -> Any:
        begun = self._ports.clock.monotonic()
        try:
            return work(*arguments)
        finally:
            spent = self._ports.clock.monotonic() - begun
            self.outcome.timings[phase] = round(self.outcome.timings.get(phase, 0.0) + spent, 3)

    # -- failure ---------------------------------------------------------------------------------------------------

    def _fail(self, cause: GpuFleetError) -> None:
        msg = cause.msg
        if isinstance(cause, NotReady):
            diagnosis = explain(cause, self._look, self._ports)
            self.outcome.diagnosis = diagnosis.to_result()
            msg = "%s did not come up: %s" % (cause.status.unit, _sentence(diagnosis.summary))
            if diagnosis.advice:
                msg += " " + _sentence(diagnosis.advice)
            msg += "\nSeen: %s" % _sentence(cause.msg)
        if not self._request.rollback:
            raise GpuFleetError(msg + " Nothing was put back, as rollback is off.", **cause.result) from cause
        if not self._anything_to_undo():
            raise GpuFleetError(msg, **cause.result) from cause
        try:
            back = self._roll_back()
        except GpuFleetError as worse:
            self.outcome.rolled_back = False
            raise GpuFleetError(
                "%s\nAND PUTTING BACK WHAT WAS THERE BEFORE FAILED AS WELL: %s This host may serve nothing now."
                % (msg, worse.msg), **cause.result
            ) from worse
        self.outcome.rolled_back = True
        if self._undo.stopped:
            self._up_again()
        raise GpuFleetError("%s\nRolled back: %s." % (msg, back), **cause.result) from cause

    def _anything_to_undo(self) -> bool:
        undo, own = self._undo, self._look.view.unit
        others = [service for service in undo.stopped if service.unit != own]
        if undo.changes or others or undo.disabled or undo.enabled:
            return True
        # With the same files there is nothing to go back to for a service that ran before: systemd goes on trying. One that did
        # not run before is stopped again.
        return undo.started is not None and not undo.stopped

    def _roll_back(self) -> str:
        """Undo in the opposite order; returns what serves now, in words. Raises GpuFleetError when that is nothing."""
        undo, systemd, clock = self._undo, self._ports.systemd, self._ports.clock
        for unit in undo.disabled:
            systemd.enable(unit)
        for unit in undo.enabled:
            systemd.disable(unit)
        if undo.started is not None:
            self._stop(undo.started)
            systemd.reset_failed(undo.started)
        for change in reversed(undo.changes):
            restore(change)
        if undo.unit_text:
            systemd.daemon_reload()
        if not undo.stopped:
            return "its files are as they were before, and no other service was touched"
        words = []
        for service in undo.stopped:
            words.append(self._bring_back(service, Deadline(clock, self._request.ready_timeout)))
        return "; ".join(words)

    def _bring_back(self, service: ManagedService, deadline: Deadline) -> str:
        """Start one old service and wait until it serves. A service that still runs is only asked whether it does."""
        systemd = self._ports.systemd
        status = systemd.status(service.unit)
        if not (status.running or status.starting):
            if status.stopping:
                self._stop(service.unit)
            if self._reader is not None and service.gpus:
                # What the old server asks for is its own guard's business; here it has to be what it left.
                self._free(service.gpus, Need(0.0))
            systemd.reset_failed(service.unit)
            systemd.start(service.unit)
        if not service.served_name:
            return "%s is started again" % service.unit  # not one of ours: what it serves, and where, is not known
        target = Target(service.unit, service.served_name, server_of(service, self._ports), self._request.smoke)
        wait_ready(target, systemd, self._ports.clock, deadline.remaining, systemd.status(service.unit).n_restarts)
        return "%s serves %s again" % (service.unit, service.served_name)


def _sentence(text: str) -> str:
    text = text.strip()
    return text if text.endswith((".", "!", "?")) else text + "."
