# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""From what is asked and what is there to what has to be done. Pure: looks at nothing, changes nothing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Dict, List, Optional, Sequence, Tuple

from .._core.files import FileChange
from .._systemd.show import UnitStatus
from .._unit.change_unit import CHANGE_UNIT
from .._unit.found import ManagedService
from .request import Request


@dataclass(frozen=True)
class Orphan:
    """A process that nothing owns any more but that holds memory on the service's GPUs."""

    pid: int
    name: str
    gpu: int
    used_mib: Optional[int]


@dataclass(frozen=True)
class Rival:
    """Another service that is to make room for this one, mostly since it has the GPUs or the port which this one needs.

    ``beside`` is whether both can run at the same time: it is known to share neither.
    """

    service: ManagedService
    status: UnitStatus
    why: str
    beside: bool = False

    @property
    def running(self) -> bool:
        """Whether it holds, or is about to take, what this service needs."""
        return not self.status.inactive

    @property
    def enabled(self) -> bool:
        """Whether it would start at boot."""
        return self.status.enabled


@dataclass(frozen=True)
class View:
    """One host as it is, as far as one service is concerned.

    ``file_missing`` is whether no unit file is there that could be enabled, though the unit may run. ``stale`` says why a
    running process is not what its files declare; ``unwell`` says why a running server does not serve. Both None when there
    is nothing to say. ``definition_changed`` means that a file which the running process has read (unit, drop-in,
    configuration, secrets) is about to change. ``runner`` are changes to what finishes an interrupted change by itself, also
    at boot (``runner_at_boot``). ``model_on_disk`` is whether reading the model ahead
    would put it where its load finds it.
    """

    unit: str
    status: UnitStatus
    file_missing: bool = False
    account_missing: bool = False
    directories: Tuple[str, ...] = ()
    runner: Tuple[FileChange, ...] = ()
    runner_at_boot: bool = True
    changes: Tuple[FileChange, ...] = ()
    definition_changed: bool = False
    unit_text_changed: bool = False
    stale: Optional[str] = None
    unwell: Optional[str] = None
    rivals: Tuple[Rival, ...] = ()
    orphans: Tuple[Orphan, ...] = ()
    gpus: Tuple[int, ...] = ()
    model: str = ""
    model_on_disk: bool = False


@dataclass(frozen=True)
class Step:
    """One thing to do: ``action`` to ``target``, because of ``reason``."""

    action: str
    target: str
    reason: str

    def to_result(self) -> Dict[str, str]:
        """The entry for the module's ``actions``."""
        return {"action": self.action, "target": self.target, "reason": self.reason}


@dataclass(frozen=True)
class Plan:
    """What has to be done, in order. ``overlapped`` is whether what is replaced is stopped only after the new server serves."""

    steps: Tuple[Step, ...]
    overlapped: bool = False

    @property
    def changed(self) -> bool:
        """Whether the host will be different afterwards."""
        return bool(self.steps)

    def has(self, *actions: str) -> bool:
        """Whether one of these actions is planned."""
        return any(step.action in actions for step in self.steps)

    def targets(self, action: str) -> List[str]:
        """The targets of one kind of action, in order."""
        return [step.target for step in self.steps if step.action == action]

    def to_result(self) -> List[Dict[str, str]]:
        """The module's ``actions``."""
        return [step.to_result() for step in self.steps]


def runner_unit_changed(runner: Sequence[FileChange]) -> bool:
    """Whether systemd knows an older unit of what finishes changes. A new one it finds by itself."""
    return any(change.what == "content" and change.wanted.path.endswith("/" + CHANGE_UNIT) for change in runner)


def make_plan(request: Request, view: View) -> Plan:
    """What brings the host from ``view`` to ``request``; an empty plan when it is there already."""
    overlapped = request.wants_running and _overlaps(request, view)
    if request.state == "absent":
        steps = _absent(view)
    elif request.state == "stopped":
        steps = _stopped(request, view)
    else:
        steps = _files(request, view)
        if request.wants_running:
            steps += _running(request, view, overlapped)
        elif request.enabled is not None:
            steps += _boot(request.enabled, view)
    return Plan(tuple(steps), overlapped)


def _overlaps(request: Request, view: View) -> bool:
    """Whether all that is to be stopped can run beside the new server, so that somebody serves all the time."""
    running = [rival for rival in view.rivals if rival.running]
    if request.overlap != "auto" or not running or not all(rival.beside for rival in running):
        return False
    # One that has to be stopped itself leaves nobody who could serve in its place.
    return view.status.inactive or _why_start(request, view) is None


def _files(request: Request, view: View) -> List[Step]:
    steps = []
    if view.account_missing:
        steps.append(Step("create_user", request.user, "the service runs as this system user, which does not exist"))
    for directory in view.directories:
        steps.append(Step("make_directory", directory, "it is missing, or the service cannot look into it"))
    words = {"created": "does not exist", "content": "differs", "mode": "has another mode or owner", "removed": "is not declared"}
    for change in view.runner:
        steps.append(Step("write", change.wanted.path, words[change.what]))
    if not view.runner_at_boot:
        steps.append(Step("enable", CHANGE_UNIT, "what a power cut interrupts has to be finished at boot"))
    for change in view.changes:
        verb = "remove" if change.what == "removed" else "write"
        steps.append(Step(verb, change.wanted.path, words[change.what]))
    if view.unit_text_changed:
        steps.append(Step("daemon_reload", view.unit, "a unit file changes"))
    elif view.status.need_daemon_reload:
        steps.append(Step("daemon_reload", view.unit, "its file changed since systemd read it"))
    return steps


def _running(request: Request, view: View, overlapped: bool) -> List[Step]:
    why = _why_start(request, view)
    steps = [] if overlapped else _warm(request, view, why) + _make_room(request, view)
    if why is not None:
        if not view.status.inactive:
            if request.drain_timeout > 0 and view.status.active_state == "active":
                steps.append(Step("drain", view.unit, "let its running requests end before it is stopped"))
            steps.append(Step("stop", view.unit, why))
        steps += _orphans(view)
        steps.append(Step("prove_free", ",".join(map(str, _gpus(view))), "the new server must find its memory free"))
        steps.append(Step("start", view.unit, why))
    steps += _hand_over(request, view)
    if overlapped:
        steps += _make_room(request, view)
    return steps


def _make_room(request: Request, view: View) -> List[Step]:
    steps = []
    for rival in view.rivals:
        if not rival.running:
            continue
        if request.drain_timeout > 0:
            steps.append(Step("drain", rival.service.unit, "let its running requests end before it is stopped"))
        steps.append(Step("stop", rival.service.unit, rival.why))
    return steps


def _warm(request: Request, view: View, why: Optional[str]) -> List[Step]:
    """Only while another server goes on serving: when nothing serves, reading ahead saves nobody anything."""
    if why is None or not request.warm_cache or not view.model_on_disk:
        return []
    if not any(rival.running and rival.status.active_state == "active" for rival in view.rivals):
        return []
    return [Step("warm", view.model, "what is read before the stop is not waited for after it")]


def _why_start(request: Request, view: View) -> Optional[str]:
    """Why the service has to be started (again), None when it can be left as it runs."""
    status = view.status
    if status.inactive or status.stopping:
        return "it is %s" % status.active_state
    if status.crash_looping:
        return "it has crashed (%d restarts so far)" % status.n_restarts
    if request.state == "restarted":
        return "a restart is asked for"
    if view.definition_changed:
        return "its declaration changes"
    if view.stale is not None:
        return view.stale
    return view.unwell


def _orphans(view: View) -> List[Step]:
    return [
        Step("end_process", str(orphan.pid), "%s holds %s MiB on GPU %s and belongs to no active unit, container or login session"
             % (orphan.name, "?" if orphan.used_mib is None else orphan.used_mib, orphan.gpu))
        for orphan in view.orphans
    ]


def _gpus(view: View) -> List[int]:
    return sorted(view.gpus)


def _hand_over(request: Request, view: View) -> List[Step]:
    """Boot-time start: enable the new before the old is disabled, so that a power cut never finds neither."""
    steps = []
    wanted = request.enabled
    if wanted is None and any(rival.enabled for rival in view.rivals):
        wanted = True  # the new service takes over the old one's place at boot
    if wanted is not None:
        steps += _boot(wanted, view)
    if wanted is False:
        return steps  # then the old one stays what starts at boot: after a reboot something has to serve
    for rival in view.rivals:
        if rival.enabled:
            steps.append(Step("disable", rival.service.unit, "%s takes its place" % view.unit))
    return steps


def _boot(wanted: bool, view: View) -> List[Step]:
    enabled = view.status.enabled
    if wanted and not enabled:
        return [Step("enable", view.unit, "it has to start at boot")]
    if not wanted and enabled:
        return [Step("disable", view.unit, "it must not start at boot")]
    return []


def _stopped(request: Request, view: View) -> List[Step]:
    steps = []
    if not view.status.inactive:
        if request.drain_timeout > 0 and view.status.active_state == "active":
            steps.append(Step("drain", view.unit, "let its running requests end before it is stopped"))
        steps.append(Step("stop", view.unit, "it is %s" % view.status.active_state))
    # What has no file, or is masked, cannot be enabled. What still has a link can be kept from starting at boot all the same.
    impossible = request.enabled and (view.file_missing or view.status.masked)
    if request.enabled is not None and not impossible:
        steps += _boot(request.enabled, view)
    return steps


def _absent(view: View) -> List[Step]:
    steps = []
    if not view.status.inactive:
        steps.append(Step("stop", view.unit, "it is to be removed"))
    if view.status.enabled:
        steps.append(Step("disable", view.unit, "it is to be removed"))
    for change in view.changes:
        steps.append(Step("remove", change.wanted.path, "it is to be removed"))
    if view.unit_text_changed:
        steps.append(Step("daemon_reload", view.unit, "its unit file goes"))
    return steps


def summary(plan: Plan) -> List[str]:
    """The plan as lines that a person reads, in the order in which it would happen."""
    words: Dict[str, str] = {
        "create_user": "create the system user %s",
        "make_directory": "make the directory %s, or let the service look into it",
        "write": "write %s",
        "remove": "remove %s",
        "daemon_reload": "let systemd read its unit files again (%s)",
        "warm": "read the weights in %s into the page cache, as far as there is room",
        "drain": "drain %s",
        "stop": "stop %s",
        "end_process": "end process %s",
        "prove_free": "prove GPU %s free",
        "start": "start %s and wait until it serves",
        "enable": "enable %s",
        "disable": "disable %s",
    }
    return ["%s: %s" % (words[step.action] % step.target, step.reason) for step in plan.steps]


def diff_of_plan(plan: Plan) -> Optional[Dict[str, Any]]:
    """The plan's steps other than files, for diff mode; None when there are none."""
    lines = [line for step, line in zip(plan.steps, summary(plan)) if step.action not in ("write", "remove")]
    if not lines:
        return None
    return {"before_header": "services", "after_header": "services", "before": "", "after": "".join("- %s\n" % line for line in lines)}
