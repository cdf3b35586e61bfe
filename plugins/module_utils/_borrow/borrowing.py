# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Borrowing carried out: what serves is stopped, the command runs, and what served is brought back, whatever happened in between.

The way back is that of a change that failed (``_service/rollback.py``). Here every run takes it.
"""

from __future__ import annotations

import traceback
from dataclasses import replace
from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple

from .._core.clock import Deadline
from .._core.errors import GpuFleetError
from .._gpu.reader import GpuReader
from .._process.procfs import read_process
from .._reclaim.units import UnitRef, stop_units
from .._service.change_log import ROLLING_BACK, STOPPING, ChangeLog
from .._service.drain import drain
from .._service.free import make_free
from .._service.interrupts import Interrupted
from .._service.look import server_of
from .._service.outcome import Undo
from .._service.patience import patience_for
from .._service.ports import Ports
from .._service.request import Request
from .._service.rollback import Rollback, Scene, Undone
from .._service.unstopped import why_unstopped
from .._systemd.show import UnitStatus
from . import command, hidden
from .look import BorrowLook, chosen, lenders_to_json, limits_of, look
from .request import BorrowRequest

# The command's unit is about to be started, or has been.
BORROWING = "borrowing"
_FIRST_PAUSE_S = 0.1
_LONGEST_PAUSE_S = 1.0
# What ends with the command by itself takes a moment; what is there after it was left behind.
_MOMENT_S = 0.3
# A minute or two of swapping is nothing that an hour's benchmark should be thrown away for.
_ANSWER_S = 300.0
# systemd ends it at its limit. If even that fails, its unit is killed by us.
_OVERDUE_S = 30.0
_LINES = 20000
_FREE_S = 30.0
_ADVICE = "See that it comes free, or choose other GPUs, and run again."


class Borrowing:
    """One borrowing. ``told`` grows while it happens, and is what the module returns."""

    def __init__(
        self, request: BorrowRequest, unit: str, ports: Ports, reader: GpuReader, log: ChangeLog, undo: Undo, told: Dict[str, Any],
        handed: bool = False, hide: Callable[[str], str] = str,
    ) -> None:
        """``handed`` is whether systemd has taken the command over, in an earlier run: it is never begun again then.

        ``hide`` takes the command's secrets out of what it has written.
        """
        self._request = request
        self._unit = unit
        self._ports = ports
        self._reader = reader
        self._log = log
        self._undo = undo
        self._handed = handed
        self._hide = hide
        self._began = 0.0
        self.told = told
        self.told.setdefault("warnings", [])
        self.told.setdefault("timings", {})

    # -- there ---------------------------------------------------------------------------------------------------------

    def run(self) -> None:
        """Stop, prove free, run the command to its end. Raises GpuFleetError with why it could not come so far.

        Where an earlier job of this very borrowing has begun the command, its unit, or what became of it, is still there.
        """
        try:
            self._run()
        except Interrupted as exc:
            raise GpuFleetError(exc.msg) from exc
        except GpuFleetError:
            raise
        except Exception as exc:  # also what nobody foresaw: what was stopped has to be put back
            text = "An unforeseen fault (%s: %s). Please report it: %s" % (type(exc).__name__, exc, traceback.format_exc())
            raise GpuFleetError(text) from exc

    def _run(self) -> None:
        # One whose unit is gone was stopped by somebody: what it did by then can't be done twice without harm.
        if not self._handed and not self._status().exists:
            self._log.phase("preflight")
            # Before anything is stopped for a command that could not be begun.
            hidden.secrets_for(self._unit, self._ports.paths.run, self._request.secret_names)
            found = look(self._request, self._ports, self._reader)
            self.told["gpus"] = found.indices
            self._stop(found)
            self._timed("settle", self._make_free, found)
            self._log.intend(BORROWING, self._undo, dict(self._more(environment=found.environment()), handed=False))
            command.start(self._unit, self._request, found.environment(), self._ports.runner, self._ports.systemd, self._ports.paths.run)
        self._forget_environment()
        if not self._handed:
            self._handed = True
            for warning in self._log.try_to_intend(BORROWING, self._undo, dict(self._more(), handed=True)):
                self._warn(warning)
        self._timed("command", self._until_it_ends)

    def _stop(self, found: BorrowLook) -> None:
        known = {each.service.unit for each in self._undo.stopped}
        before = [entry for entry in self.told.get("services") or [] if entry["unit"] in known]
        self.told["services"] = before + [entry for entry in lenders_to_json(found.lenders) if entry["unit"] not in known]
        if self._request.drain_timeout > 0:
            for lender in found.lenders:
                if lender.status.running:
                    self._timed("drain", self._drain, lender.service)
        if not found.lenders:
            return
        # Remembered before they are stopped: if a stop fails half-way, the way back has to know of it.
        for lender in found.lenders:
            self._undo.will_stop(lender.service, served=lender.served)
        if self._undo.down_since is None:
            self._undo.down_since, self._undo.down_at = self._ports.clock.monotonic(), self._ports.clock.time()
        self._log.intend(STOPPING, self._undo, self._more())
        self._timed("stop", self._stop_all, [lender.service.unit for lender in found.lenders])

    def _drain(self, service: Any) -> None:
        left = drain(server_of(service, self._ports), self._ports.clock, self._request.drain_timeout)
        if left != 0:
            self._warn("%s still had %s requests after %g s of draining; it was stopped all the same."
                       % (service.unit, "an unknown number of" if left is None else left, self._request.drain_timeout))

    def _stop_all(self, units: Sequence[str]) -> None:
        systemd, proc = self._ports.systemd, self._ports.paths.proc
        patience = patience_for(self._request.stop_timeout, systemd.statuses(units).values())
        for stopped in stop_units([UnitRef(systemd, unit) for unit in units], patience, self._ports.clock, proc):
            if not stopped.ok:
                raise GpuFleetError("%s could not be stopped: %s." % (stopped.unit, why_unstopped(stopped, proc)))

    def _make_free(self, found: BorrowLook) -> None:
        leaving = frozenset(lender.service.unit for lender in found.lenders)
        limits = limits_of(found.gpus, self._request.max_used_mib, leaving)
        try:
            freed = make_free(limits, self._ports, self._reader, whose="command", advice=_ADVICE, leaving=leaving)
        except GpuFleetError as exc:
            self._ended(exc.result.get("ended_processes") or ())
            raise
        for warning in freed.warnings:
            self._warn(warning)
        self._ended(freed.ended)

    def _ended(self, processes: Sequence[Dict[str, Any]]) -> None:
        self.told["ended_processes"] = list(self.told.get("ended_processes") or []) + list(processes)

    # -- the command -----------------------------------------------------------------------------------------------

    def _until_it_ends(self) -> None:
        self._log.phase("command")
        try:
            status, left, overdue = self._watched()
        except (GpuFleetError, Interrupted):
            self._read_output()  # it is there, whatever became of the looking
            raise
        wrote = self._read_output()
        ended = command.ended(status, self._request.timeout, wrote)
        if overdue and not command.is_over(status):
            ended = command.Ended("timed out", detail="it did not end within its limit of %g s, nor after that" % self._request.timeout)
        self.told.update(replace(ended, seconds=self._seconds(status)).to_json())
        self.told["left_behind"] = left

    def _watched(self) -> Tuple[UnitStatus, List[Dict[str, Any]], bool]:
        """The unit once it is over, what the command has left, and whether it did not come to be over in time."""
        clock = self._ports.clock
        overdue = Deadline(clock, self._request.timeout + self._request.grace + _OVERDUE_S)
        pause, gone_at = _FIRST_PAUSE_S, None
        left: Optional[List[Dict[str, Any]]] = None
        began = clock.monotonic()
        while True:
            status = self._status()
            if status.exists:
                self._began = self._began or status.main_start or clock.time()
            if command.has_ended(status):
                gone_at = clock.monotonic() if gone_at is None else gone_at
                if left is None and (command.is_over(status) or clock.monotonic() - gone_at >= _MOMENT_S):
                    if command.is_over(status):
                        clock.sleep(_MOMENT_S)
                    left = self._left_behind(status)
                if command.is_over(status):
                    break
            if overdue.expired:
                break
            self._log.tell(detail="%d s of %d" % (clock.monotonic() - began, self._request.timeout))
            clock.sleep(_MOMENT_S if gone_at is not None else pause)
            pause = min(_LONGEST_PAUSE_S, pause * 1.5)
        return status, left or [], overdue.expired

    def _seconds(self, status: UnitStatus) -> Optional[float]:
        """How long it ran: by systemd's word where it has one, since nobody may have looked when it ended."""
        if not self._began:
            return None
        end = status.main_exit if status.main_exit is not None and status.main_exit >= self._began else self._ports.clock.time()
        return max(0.0, end - self._began)

    def _status(self) -> UnitStatus:
        """The command's unit. A systemd that is slow to answer, as on a host that is short of everything, is asked again for a while."""
        deadline = Deadline(self._ports.clock, _ANSWER_S)
        while True:
            try:
                return self._ports.systemd.status(self._unit)
            except Interrupted:
                raise
            except GpuFleetError:
                if deadline.expired:
                    raise
            self._ports.clock.sleep(_LONGEST_PAUSE_S)

    def _left_behind(self, status: UnitStatus) -> List[Dict[str, Any]]:
        """What the command has left in its cgroup, with the GPUs that it is on."""
        pids = [pid for pid in self._ports.systemd.cgroup_pids(self._unit, status) if pid != status.main_pid]
        if not pids:
            return []
        on: Dict[int, List[Dict[str, Any]]] = {}
        try:
            for gpu in self._reader.snapshot().gpus:
                for each in gpu.processes:
                    on.setdefault(each.pid, []).append({"gpu": gpu.index, "used_mib": each.used_mib})
        except (GpuFleetError, OSError, RuntimeError) as exc:
            self._warn("Which GPUs the command's leftovers hold could not be read: %s" % exc)
        found = []
        for pid in pids:
            info = read_process(pid, self._ports.paths.proc)
            if info is not None and not info.zombie:
                words = self._hide(info.cmdline)[:200]
                found.append({"pid": pid, "name": info.comm, "cmdline": words, "user": info.user, "gpus": on.get(pid, [])})
        return found

    def _read_output(self) -> bool:
        """Whether there is any."""
        try:
            # By the unit's name, which no other borrowing has: of a process that ends at once the journal learns nothing else in time.
            lines = self._ports.journal.lines(self._unit, None, _LINES)
            if all(line.from_manager for line in lines):
                self._ports.clock.sleep(_MOMENT_S)  # the journal of a busy host may be late, and one more look is cheap
                lines = self._ports.journal.lines(self._unit, None, _LINES)
        except GpuFleetError as exc:
            self._warn("What the command has written can't be told: %s" % exc.msg)
            lines = []
        self.told["output"], self.told["output_truncated"] = command.output_of(lines, self._request.output_kib, self._hide)
        if len(lines) >= _LINES:
            self.told["output_truncated"] = True
        return command.has_written(lines)

    # -- and back ------------------------------------------------------------------------------------------------------

    def put_back(self, failure: Optional[str]) -> None:
        """End what is left of the command, then start what was stopped and wait until it serves. Never raises for what goes wrong.

        Whatever of it an earlier run has done is found done.
        """
        self._log.may_undo()
        self._log.phase("return")
        if failure is not None:
            self.told["failure"] = failure
        for warning in self._log.try_to_intend(ROLLING_BACK, self._undo, self._more()):
            self._warn(warning)
        ours = self._end_command()
        undone = self._timed("return", self._bring_back)
        unfree = self._not_free()
        for warning in undone.warnings:
            self._warn(warning)
        self._ended(undone.ended)
        back = set(undone.back)
        for service in self.told.get("services") or []:
            service["back"] = service["unit"] in back
            service["seen"] = undone.how.get(service["unit"])
        if self._undo.down_at is not None and (undone.serves or not undone.problems):
            self.told["timings"]["downtime"] = round(max(0.0, self._ports.clock.time() - self._undo.down_at), 3)
        self.told["gpus_after"] = self._gpus_now()
        self._judge(undone, ours, unfree)

    def _forget_environment(self) -> None:
        try:
            hidden.forget_environment(self._unit, self._ports.paths.run)
        except GpuFleetError as exc:
            self._warn(exc.msg)

    def _end_command(self) -> Optional[str]:
        """Nothing of the command stays: its unit is stopped and its cgroup swept. What could not be ended, None when all is gone."""
        systemd, clock = self._ports.systemd, self._ports.clock
        self._forget_environment()
        ref = UnitRef(systemd, self._unit)
        stopped = stop_units([ref], self._request.grace, clock, self._ports.paths.proc)[0]
        if not stopped.ok and not stopped.survivors:  # systemd gave no answer, and is asked once more
            stopped = stop_units([ref], self._request.grace, clock, self._ports.paths.proc)[0]
        try:
            systemd.reset_failed(self._unit)
        except GpuFleetError as exc:
            self._warn("The unit of the command could not be cleared: %s" % exc.msg)
        return None if stopped.ok else why_unstopped(stopped, self._ports.paths.proc)

    def _bring_back(self) -> Undone:
        request = Request(name="borrow", stop_timeout=self._request.stop_timeout, ready_timeout=self._request.ready_timeout)
        return Rollback(request, self._scene(), self._ports, self._reader, self._undo, self._log).run()

    def _scene(self) -> Scene:
        """The host as it is now; without GPUs where the driver does not say any more: what served has guards of its own."""
        try:
            snapshot = self._reader.snapshot()
            meant = tuple(chosen(self._request.gpus, snapshot.gpus)) if snapshot.available else ()
        except (GpuFleetError, OSError, RuntimeError):
            return Scene(self._unit)
        return Scene(self._unit, meant, host=snapshot.gpus if meant else ())

    def _not_free(self) -> Optional[str]:
        """What is wrong with the GPUs that no service takes over again, where nobody else would notice what the command has left."""
        if not self._handed:
            return None
        services = self.told.get("services") or []
        taken = {index for each in services for index in each["gpus"]}
        try:
            snapshot = self._reader.snapshot()
            if not snapshot.available:
                said = "the driver cannot be read (%s: %s)" % (snapshot.reason, snapshot.reason_detail or "no further detail")
                return None if services else "Whether the GPUs are free again isn't known: %s" % said
            parts = {uuid for each in self._undo.stopped for uuid in each.service.gpu_uuids}
            mine = [gpu for gpu in chosen(self._request.gpus, snapshot.gpus)
                    if (gpu.uuid not in parts if gpu.memory_type == "mig" else gpu.index not in taken)]
            if mine:
                ours = frozenset([self._unit])
                limits = limits_of(mine, self._request.max_used_mib, ours)
                self._ended(make_free(limits, self._ports, self._reader, _FREE_S, "next user", _ADVICE, ours).ended)
        except (GpuFleetError, OSError, RuntimeError) as exc:
            if isinstance(exc, GpuFleetError):
                self._ended(exc.result.get("ended_processes") or ())
            return "After the command: %s" % exc
        return None

    def _judge(self, undone: Undone, unended: Optional[str], unfree: Optional[str]) -> None:
        told = self.told
        said: List[str] = [str(told["failure"])] if told.get("failure") else []
        if not said and told.get("outcome") != "succeeded":
            said.append("The command failed: %s." % (told.get("detail") or "nothing is known of its end"))
        if unended is not None:
            said.append("What the command has started could not be ended: %s." % unended.rstrip("."))
        if unfree is not None:
            said.append("%s." % unfree.rstrip("."))
        if undone.problems:
            said.append("PUTTING BACK WHAT SERVED BEFORE FAILED: %s." % "; ".join(each.rstrip(".") for each in undone.problems))
        if undone.said:
            said.append("Put back: %s." % "; ".join(undone.said))
        told["put_back"] = undone.complete and unended is None and unfree is None
        told["failed"] = bool(told.get("failure")) or told.get("outcome") != "succeeded" or not told["put_back"]
        told["msg"] = "\n".join(said)

    def _gpus_now(self) -> List[Dict[str, Any]]:
        try:
            return [gpu.to_dict() for gpu in self._reader.snapshot().gpus if gpu.index in (self.told.get("gpus") or [])]
        except (GpuFleetError, OSError, RuntimeError) as exc:
            self._warn("The GPUs could not be read at the end: %s" % exc)
            return []

    # -- for both ------------------------------------------------------------------------------------------------------

    def _more(self, **more: Any) -> Dict[str, Any]:
        self.told.update(more)
        return {"told": self.told}

    def _warn(self, text: str) -> None:
        if text not in self.told["warnings"]:
            self.told["warnings"].append(text)

    def _timed(self, phase: str, work: Callable[..., Any], *arguments: Any) -> Any:
        begun = self._ports.clock.monotonic()
        if phase not in ("command", "return"):
            self._log.phase(phase)
        try:
            return work(*arguments)
        finally:
            timings = self.told["timings"]
            timings[phase] = round((timings.get(phase) or 0.0) + self._ports.clock.monotonic() - begun, 3)
