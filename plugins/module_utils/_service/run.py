# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""One run of ``vllm_service``: look, plan, check, and either tell the plan or carry it out."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, Dict, List, Optional, Tuple

from .._core.errors import GpuFleetError
from .._core.files import diff_of
from .._core.host_lock import HostLock
from .._gpu.reader import GpuReader
from .._preflight.report import Report, line_of
from .checks import refusal, run_checks
from .look import Look, look
from .outcome import Outcome
from .plan import Plan, diff_of_plan, make_plan
from .ports import Ports
from .request import Request
from .transaction import Transaction


@dataclass(frozen=True)
class ServiceResult:
    """Everything that the module returns."""

    changed: bool
    look: Look
    plan: Plan
    outcome: Outcome
    report: Optional[Report]
    status: Dict[str, Any]
    gpus_before: List[Dict[str, Any]]
    gpus_after: List[Dict[str, Any]]
    wants_running: bool

    @property
    def warnings(self) -> Tuple[str, ...]:
        """What the operator should hear although nothing failed."""
        return tuple(self.outcome.warnings)

    def to_result(self, diff: bool = False) -> Dict[str, Any]:
        """The module's result, with the names of its RETURN."""
        ready = self.outcome.ready
        result: Dict[str, Any] = {
            "changed": self.changed,
            "unit": self.look.view.unit,
            "actions": self.plan.to_result(),
            "files": [change.to_result() for change in self.look.view.changes],
            "status": self.status,
            "serving_before": serving(self.look),
            "ready": bool(ready is not None and ready.ready),
            "served_models": list(ready.served_models) if ready is not None else [],
            "replaced": self.outcome.replaced,
            "rolled_back": self.outcome.rolled_back,
            "timings": dict(_NO_TIME, **self.outcome.timings),
        }
        if self.outcome.ended_processes:
            result["ended_processes"] = self.outcome.ended_processes
        if self.outcome.diagnosis is not None:
            result["diagnosis"] = self.outcome.diagnosis
        if self.report is not None:
            result["preflight"] = self.report.to_result()
        if self.wants_running:
            result["gpus_before"] = self.gpus_before
            result["gpus_after"] = self.gpus_after
        if diff:
            entries = diff_of(list(self.look.view.changes))
            steps = diff_of_plan(self.plan)
            result["diff"] = entries + ([steps] if steps is not None else [])
        return result


def serving(seen: Look) -> List[str]:
    """The names of the services that ran before anything was touched: this one, and those in its way."""
    running = [seen.own.name] if seen.own is not None and seen.view.status.running else []
    return running + [rival.service.name for rival in seen.view.rivals if rival.status.running]


_NO_TIME = dict.fromkeys(("preflight", "drain", "stop", "settle", "load", "total", "downtime"), 0.0)


def run(request: Request, ports: Ports, check_mode: bool) -> ServiceResult:
    """Bring one service to its declared state; in check mode say what that would take.

    Raises GpuFleetError with everything that was done attached.
    """
    begun = ports.clock.monotonic()
    problem = ports.systemd.available()
    if problem is not None:
        raise GpuFleetError(problem)
    with ExitStack() as stack:
        reader = None
        if request.declares_files:
            reader = stack.enter_context(ports.open_reader())
        if not check_mode:
            stack.enter_context(HostLock(ports.paths.run, "vllm_service %s %s" % (request.state, request.name)))
        return _run(request, ports, check_mode, reader, begun)


def _run(request: Request, ports: Ports, check_mode: bool, reader: Optional[GpuReader], begun: float) -> ServiceResult:
    clock = ports.clock
    try:
        seen = look(request, ports, reader)
    except GpuFleetError as exc:
        raise GpuFleetError("%s Nothing was touched." % exc.msg, **exc.result) from exc
    plan = make_plan(request, seen.view)
    outcome = Outcome(ready=seen.serves)
    report: Optional[Report] = None
    refuses = False
    if request.wants_running and request.preflight != "skip":
        report = run_checks(request, seen, plan, ports, remember=not check_mode)
        # What serves as declared is its own proof: there is nothing to refuse, but something to hear.
        refuses = request.preflight == "enforce" and plan.has("start")
        outcome.warnings.extend(line_of(check) for check in report.notable if check.status == "warn" or not refuses)
    outcome.timings["preflight"] = round(clock.monotonic() - begun, 3)

    def result(changed: bool) -> ServiceResult:
        outcome.timings["total"] = round(clock.monotonic() - begun, 3)
        before = [gpu.to_dict() for gpu in seen.gpus]
        after = _gpus_now(reader, seen, outcome) if reader is not None and changed and not check_mode else before
        status = _status_now(ports, seen, outcome)
        return ServiceResult(changed, seen, plan, outcome, report, status, before, after, request.wants_running)

    if report is not None and report.failed and refuses:
        raise GpuFleetError(refusal(request, report), **result(False).to_result())
    if check_mode:
        outcome.replaced = _would_replace(seen, plan)
        return result(plan.changed)
    transaction = Transaction(request, seen, plan, ports, reader, outcome)
    try:
        transaction.run()
    except GpuFleetError as exc:
        told = result(outcome.touched).to_result(diff=True)
        told.update(exc.result)
        told["warnings"] = list(outcome.warnings)
        raise GpuFleetError(exc.msg, **told) from exc
    return result(outcome.touched)


def _would_replace(seen: Look, plan: Plan) -> List[Dict[str, Any]]:
    stops = set(plan.targets("stop"))
    return [
        {"unit": rival.service.unit, "name": rival.service.name, "result": "planned", "seconds": 0.0}
        for rival in seen.view.rivals if rival.service.unit in stops
    ]


def _gpus_now(reader: GpuReader, seen: Look, outcome: Outcome) -> List[Dict[str, Any]]:
    """The GPUs at the end. A driver that no longer answers must not take the place of what there is to tell."""
    wanted = {gpu.index for gpu in seen.gpus}
    try:
        snapshot = reader.snapshot()
    except (GpuFleetError, OSError, RuntimeError) as exc:
        outcome.warnings.append("The GPUs could not be read at the end: %s" % exc)
        return []
    if not snapshot.available:
        outcome.warnings.append("The GPUs could not be read at the end: %s (%s)." % (snapshot.reason, snapshot.reason_detail))
    return [gpu.to_dict() for gpu in snapshot.gpus if gpu.index in wanted]


def _status_now(ports: Ports, seen: Look, outcome: Outcome) -> Dict[str, Any]:
    try:
        return ports.systemd.status(seen.view.unit).to_result()
    except GpuFleetError as exc:
        outcome.warnings.append("The unit could not be looked at at the end: %s" % exc.msg)
        return seen.view.status.to_result()
