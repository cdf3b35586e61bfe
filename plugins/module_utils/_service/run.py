# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""One run of ``vllm_service``: look, plan, check, and either tell the plan or carry it out."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Callable, Dict, List, Mapping, Optional, Sequence, Tuple

from .._core.errors import GpuFleetError
from .._core.files import FileChange, diff_of
from .._core.host_lock import HostLock
from .._gpu.reader import GpuReader
from .brief import brief_gpus
from .change_log import ChangeLog
from .look import Look, look
from .memory import as_now
from .notices import missing_units, notices
from .outcome import Outcome, Undo
from .plan import Plan, diff_of_plan, make_plan
from .ports import Ports
from .request import Request
from .transaction import Transaction

if TYPE_CHECKING:
    from .._model.parallel import Check
    from .._preflight.report import Report


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
    planned: bool = False

    @property
    def warnings(self) -> Tuple[str, ...]:
        """What the operator should hear although nothing failed."""
        return tuple(self.outcome.warnings)

    def to_failure(self, diff: bool = False) -> Dict[str, Any]:
        """The same beside a failure's message: of the GPUs only what tells who has their memory."""
        result = self.to_result(diff)
        result.update({name: brief_gpus(result[name]) for name in ("gpus_before", "gpus_after") if name in result})
        result["timings"] = timings_of(self.outcome.timings, None, 0.0)  # how far it came is seen by what was measured
        return result

    def to_result(self, diff: bool = False) -> Dict[str, Any]:
        """The module's result, with the names of its RETURN."""
        ready = self.outcome.ready
        result: Dict[str, Any] = {
            "changed": self.changed,
            "unit": self.look.view.unit,
            "actions": self.plan.to_result(),
            "files": [change.to_result() for change in _files(self.look)],
            "status": self.status,
            "serving_before": serving(self.look),
            "ready": bool(ready is not None and ready.ready),
            "served_models": list(ready.served_models) if ready is not None else [],
            "replaced": self.outcome.replaced,
            "rolled_back": self.outcome.rolled_back,
            "timings": timings_of(self.outcome.timings, None, None) if self.planned else timings_of(self.outcome.timings, 0.0, 0.0),
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
            entries = diff_of(_files(self.look))
            steps = diff_of_plan(self.plan)
            result["diff"] = entries + ([steps] if steps is not None else [])
        return result


def _files(seen: Look) -> List[FileChange]:
    return list(seen.view.runner) + list(seen.view.changes)


def serving(seen: Look) -> List[str]:
    """The names of the services that ran before anything was touched: this one, and those in its way."""
    running = [seen.own.name] if seen.own is not None and seen.view.status.running else []
    return running + [rival.service.name for rival in seen.view.rivals if rival.status.running]


_PHASES = ("preflight", "warm", "drain", "stop", "settle", "load", "steady", "total")


def timings_of(
    measured: Mapping[str, Optional[float]], phases: Optional[float] = None, downtime: Optional[float] = None
) -> Dict[str, Optional[float]]:
    """The result's ``timings``: what was measured, and for the rest what is given.

    That is 0.0 only where it is known: of a run that came to its end, for the phases that it had no need of. Null is no figure.
    """
    return {**dict.fromkeys(_PHASES, phases), "downtime": downtime, **measured}


def run(request: Request, ports: Ports, check_mode: bool, gate: Optional[Callable[[], None]] = None) -> ServiceResult:
    """Bring one service to its declared state in this very process; in check mode say what that would take.

    ``gate`` is called when this run alone may change services on this host, and raises when it must not all the same. Raises
    GpuFleetError with everything that was done attached.
    """
    begun = ports.clock.monotonic()
    refuse_without_systemd(ports)
    with ExitStack() as stack:
        reader = None
        if request.declares_files:
            reader = stack.enter_context(ports.open_reader())
        if not check_mode:
            stack.enter_context(HostLock(ports.paths.run, purpose(request)))
            if gate is not None:
                gate()
        one = Run(request, ports, reader, begun)
        one.examine(remember=not check_mode)
        return one.planned() if check_mode else one.carry_out()


def purpose(request: Request) -> str:
    """What a run says of itself to those who would have to wait for it."""
    return "vllm_service %s %s" % (request.state, request.name)


def refuse_without_systemd(ports: Ports) -> None:
    """Raise GpuFleetError on a host on which no unit can be managed."""
    problem = ports.systemd.available()
    if problem is not None:
        raise GpuFleetError(problem)


class Run:
    """One look at a host for the sake of one request, and what is made of it."""

    def __init__(self, request: Request, ports: Ports, reader: Optional[GpuReader], begun: float) -> None:
        """``begun`` is the time of the monotonic clock from which on the run's time counts."""
        self._request = request
        self._ports = ports
        self._reader = reader
        self._begun = begun
        self._report: Optional[Report] = None
        self.outcome = Outcome()

    def examine(self, remember: bool) -> None:
        """Look, plan and check; ``remember`` lets what took long to find be kept. Raises GpuFleetError when it cannot work here."""
        request, ports = self._request, self._ports
        try:
            self.seen = look(request, ports, self._reader)
        except GpuFleetError as exc:
            raise GpuFleetError("%s Nothing was touched." % exc.msg, **exc.result) from exc
        self.plan = make_plan(request, self.seen.view)
        outcome = self.outcome
        outcome.ready = self.seen.serves
        outcome.warnings.extend(notices(request, self.seen, self.plan, ports))
        refuses = False
        if request.wants_running and request.preflight != "skip":
            # Loaded only here: a third of all code is needed for nothing else, and the job of a change has no use for it.
            from .._preflight.report import line_of
            from .checks import run_checks

            self._report = run_checks(request, self.seen, self.plan, ports, remember=remember)
            # What serves as declared is its own proof: there is nothing to refuse, but something to hear.
            refuses = request.preflight == "enforce" and self.plan.has("start")
            outcome.warnings.extend(line_of(check) for check in self._report.notable if check.status == "warn" or not refuses)
        # What an earlier attempt at the same change has measured stays: the time since then was no preflight's.
        outcome.timings.setdefault("preflight", round(ports.clock.monotonic() - self._begun, 3))
        if self._report is not None and self._report.failed and refuses:
            # Nothing was done, and a plan that is not carried out would bury why beneath its own length.
            self._refuse(self._report.failed)
        elif request.state == "present" and request.unit_options and request.preflight != "skip":
            self._examine_unit_options()

    def _examine_unit_options(self) -> None:
        """What is only declared is checked for nothing that changes until it starts; what systemd would leave out is wrong already."""
        from .._preflight.report import line_of
        from .checks import unit_options_check

        found = unit_options_check(self._request, self.seen, self._ports)
        failed = [check for check in found if check.status == "fail"]
        if failed and self._request.preflight == "enforce":
            self._refuse(failed)
        self.outcome.warnings.extend(line_of(check) for check in failed)

    def _refuse(self, failed: Sequence[Check]) -> None:
        from .checks import refusal

        missing = missing_units(self._request, self.seen, self._ports)
        raise GpuFleetError(refusal(self._request, failed, missing), **{**self.result(False).to_failure(), "actions": [], "files": []})

    @property
    def preflight(self) -> Optional[Dict[str, Any]]:
        """What the checks found, as it is returned; None when there were none."""
        return self._report.to_result() if self._report is not None else None

    @property
    def moves_servers(self) -> bool:
        """Whether a server is stopped, started, or waited for: what takes minutes, and must not be left half-way."""
        if not self._request.wants_running:
            return False
        seen = self.seen.serves
        return self.plan.has("stop", "start") or seen is None or seen.stage == "loading"

    @property
    def idle(self) -> bool:
        """Whether there is nothing to do."""
        return not self.plan.changed and not self.moves_servers

    def planned(self) -> ServiceResult:
        """What would be done."""
        self.outcome.replaced = _would_replace(self.seen, self.plan)
        return self.result(self.plan.changed, now=False, planned=True)

    def carry_out(self, log: Optional[ChangeLog] = None, undo: Optional[Undo] = None) -> ServiceResult:
        """Do it. Raises GpuFleetError with everything that was done attached."""
        transaction = Transaction(self._request, self.seen, self.plan, self._ports, self._reader, self.outcome, log, undo)
        try:
            transaction.run()
        except GpuFleetError as exc:
            told = self.result(self.outcome.touched).to_failure(diff=True)
            told.update(exc.result)
            told["warnings"] = list(self.outcome.warnings)
            raise GpuFleetError(exc.msg, **told) from exc
        return self.result(self.outcome.touched)

    def result(self, changed: bool, now: bool = True, planned: bool = False) -> ServiceResult:
        """What there is to return at this moment; with ``now`` the GPUs are read again if something has changed.

        ``planned`` says that nothing of the plan was carried out so far.
        """
        ports, seen, outcome = self._ports, self.seen, self.outcome
        outcome.timings["total"] = round(ports.clock.monotonic() - self._begun, 3)
        before = [gpu.to_dict() for gpu in seen.gpus]
        after = _gpus_now(self._reader, seen, outcome) if self._reader is not None and changed and now else before
        status = seen.view.status.to_result() if planned else _status_now(ports, seen, outcome)
        return ServiceResult(
            changed, seen, self.plan, outcome, self._report, status, before, after, self._request.wants_running, planned
        )


def _would_replace(seen: Look, plan: Plan) -> List[Dict[str, Any]]:
    stops = set(plan.targets("stop"))
    return [
        {"unit": rival.service.unit, "name": rival.service.name, "result": "planned", "seconds": 0.0}
        for rival in seen.view.rivals if rival.service.unit in stops
    ]


def _gpus_now(reader: GpuReader, seen: Look, outcome: Outcome) -> List[Dict[str, Any]]:
    """The GPUs at the end. A driver that no longer answers must not take the place of what there is to tell."""
    try:
        snapshot = reader.snapshot()
    except (GpuFleetError, OSError, RuntimeError) as exc:
        outcome.warnings.append("The GPUs could not be read at the end: %s" % exc)
        return []
    if not snapshot.available:
        outcome.warnings.append("The GPUs could not be read at the end: %s (%s)." % (snapshot.reason, snapshot.reason_detail))
    return [gpu.to_dict() for gpu in as_now(seen.gpus, snapshot)]


def _status_now(ports: Ports, seen: Look, outcome: Outcome) -> Dict[str, Any]:
    try:
        return ports.systemd.status(seen.view.unit).to_result()
    except GpuFleetError as exc:
        outcome.warnings.append("The unit could not be looked at at the end: %s" % exc.msg)
        return seen.view.status.to_result()
