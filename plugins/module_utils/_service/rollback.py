# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Putting back what was there before a change that failed.

Best effort, step by step: a step that fails is told and does not keep the next one from being tried. What counts at the
end is what is seen to serve.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Callable, Dict, List, Optional, Sequence, Set, Tuple

from .._core.clock import Deadline
from .._core.errors import GpuFleetError
from .._core.files import restore
from .._gpu.reader import GpuReader
from .._gpu.select import resolve
from .._gpu.types import Gpu
from .._reclaim.ladder import stop_unit
from .._unit.change_limits import FREE_AGAIN_S, LOAD_AGAIN_S
from .._unit.found import ManagedService
from .change_log import ChangeLog
from .free import make_free
from .look import server_of
from .memory import Need, free_limits
from .outcome import Stopped, Undo
from .plan import Rival
from .ports import Ports
from .ready import UNWELL_FOR_S, NotReady, Target, wait_ready
from .request import Request

# A unit of which only systemd knows whether it works has to stay up this long.
_STEADY_S = 5.0
_LOOK_S = 0.5


@dataclass
class Undone:
    """How it went. ``serves`` is whether a server was seen to answer again; ``complete`` whether everything is as before.

    ``back`` are the units that were brought back as what they were, ``ended`` the processes that had to be ended before.
    ``stirred`` is whether any service had been stopped or started. ``how`` says of each of ``back`` what was seen of it: ``serves again``
    only where it answered a completion. ``down`` are those that were not brought back.
    """

    said: List[str] = field(default_factory=list)
    problems: List[str] = field(default_factory=list)
    warnings: List[str] = field(default_factory=list)
    serves: bool = False
    stirred: bool = True
    back: List[str] = field(default_factory=list)
    ended: List[Dict[str, Any]] = field(default_factory=list)
    how: Dict[str, str] = field(default_factory=dict)
    down: List[ManagedService] = field(default_factory=list)

    @property
    def complete(self) -> bool:
        """Whether everything is as it was before."""
        return not self.problems

    @property
    def text(self) -> str:
        """The sentence for the message."""
        if self.complete:
            return "Rolled back: %s." % ("; ".join(self.said) or "the files are as they were before, and no other service was stopped")
        text = "PUTTING BACK WHAT WAS THERE BEFORE FAILED: %s." % "; ".join(problem.rstrip(".") for problem in self.problems)
        if self.said:
            text += " But %s." % "; ".join(self.said)
        if not self.stirred:
            text += " No service was stopped or started: what served goes on."
        elif not self.serves:
            text += " This host may serve nothing now."
        if self.down:
            text += " See `journalctl -u %s`; when that is mended, run again with %s." % (
                " -u ".join(service.unit for service in self.down), " or ".join("model=%s" % service.name for service in self.down)
            )
        return text


@dataclass(frozen=True)
class Scene:
    """What a roll-back has to know of the host: ``gpus`` are those of the service that failed, ``host`` all that there are.

    Without them their memory is not looked at: the old units have guards.
    """

    unit: str
    gpus: Tuple[Gpu, ...] = ()
    rivals: Tuple[Rival, ...] = ()
    host: Tuple[Gpu, ...] = ()

    def gpus_of(self, services: Sequence[ManagedService]) -> List[Gpu]:
        """Where these services have to find room. Of one that does not say which GPUs it takes, where the failed one would have run."""
        found: Dict[Tuple[int, Optional[str]], Gpu] = {}
        for service in services:
            for gpu in self._own(service) or self.gpus:
                found[(gpu.index, gpu.uuid)] = gpu
        return [found[key] for key in sorted(found, key=lambda key: (key[0], key[1] or ""))]

    def _own(self, service: ManagedService) -> List[Gpu]:
        try:
            return resolve(service.gpu_uuids or service.gpus, self.host) if service.gpu_uuids or service.gpus else []
        except GpuFleetError:
            return []  # its GPUs are not what they were when it was declared


class Rollback:
    """The way back from one transaction."""

    def __init__(
        self, request: Request, scene: Scene, ports: Ports, reader: Optional[GpuReader], undo: Undo, log: Optional[ChangeLog] = None
    ) -> None:
        self._request = request
        self._scene = scene
        self._log = log or ChangeLog()
        self._ports = ports
        self._reader = reader
        self._undo = undo
        self._undone = Undone()
        self._kept: Set[str] = set()  # what was found running, and was not started again

    @property
    def needed(self) -> bool:
        """Whether there is anything to put back.

        Not for a service that was started anew with the same files: there is nothing to go back to, and systemd goes
        on trying. One that was stopped and never started again has to be.
        """
        undo, own = self._undo, self._scene.unit
        if self._predecessors():
            return True
        if undo.changes or undo.disabled or any(stopped.service.unit != own for stopped in undo.stopped):
            return True
        if undo.started is None:
            return bool(undo.stopped)
        return not undo.stopped

    def run(self) -> Undone:
        """Undo everything, in the opposite order. Never raises for what goes wrong: it is told in the answer."""
        undo, systemd = self._undo, self._ports.systemd
        predecessors = self._predecessors()
        if predecessors and undo.started is None:
            undo.started = self._scene.unit
        undo.stopped.extend(predecessors)
        self._undone.stirred = bool(undo.stopped) or undo.started is not None
        # First what has to serve after a power cut that comes now.
        for unit in undo.disabled:
            self._try("%s does not start at boot any more" % unit, systemd.enable, unit)
        for unit in undo.enabled:
            self._try("%s still starts at boot" % unit, systemd.disable, unit)
        if undo.started is not None:
            self._try("%s could not be stopped" % undo.started, self._stop, undo.started)
            self._try("%s" % undo.started, systemd.reset_failed, undo.started)
        for change in reversed(undo.changes):
            self._try("%s is not as before" % change.wanted.path, restore, change)
        if undo.unit_text:
            self._try("systemd did not read its unit files again", systemd.daemon_reload)
        if undo.stopped:
            # Only tried: the old units have guards of their own, and a driver that does not answer must not keep them down.
            try:
                self._free()
            except Exception as exc:  # noqa: BLE001 - a fault of ours included
                self._undone.warnings.append("Before the old service was started again: %s" % _text(exc))
            self._bring_back()
        return self._undone

    def _predecessors(self) -> List[Stopped]:
        """Services that this one was to replace and that are down, but would start at boot: an earlier run died between its
        stop and its end, and nothing serves here unless they are started."""
        if any(stopped.served for stopped in self._undo.stopped):
            return []
        known = set(self._old_units())
        return [
            Stopped(rival.service, served=True)
            for rival in self._scene.rivals
            if rival.enabled and rival.status.inactive and rival.service.unit not in known
        ]

    def _try(self, what: str, step: Callable[..., Any], *arguments: Any) -> bool:
        try:
            step(*arguments)
        except Exception as exc:  # noqa: BLE001 - whatever it is, the next step must be tried
            self._undone.problems.append("%s (%s)" % (what, _text(exc)))
            return False
        return True

    def _stop(self, unit: str) -> None:
        stopped = stop_unit(
            self._ports.systemd, unit, self._request.stop_timeout, self._ports.clock, self._ports.paths.proc
        )
        if not stopped.ok:
            from .unstopped import why_unstopped  # seldom needed

            raise GpuFleetError(why_unstopped(stopped, self._ports.paths.proc))

    def _free(self) -> None:
        if self._reader is None:
            return
        services = [stopped.service for stopped in self._undo.stopped]
        down = [service for service in services if not self._ports.systemd.status(service.unit).running]
        gpus = self._scene.gpus_of(down)
        if not gpus:
            return  # nothing is known of them, or a reboot has brought all back, and the memory that is in use is theirs
        leaving = frozenset([self._scene.unit] + [service.unit for service in down])
        limits = free_limits(gpus, Need(0.0), leaving, frozenset())
        try:
            freed = make_free(limits, self._ports, self._reader, FREE_AGAIN_S, leaving=leaving)
        except GpuFleetError as exc:
            self._undone.ended.extend(exc.result.get("ended_processes") or ())
            raise
        self._undone.ended.extend(freed.ended)
        self._undone.warnings.extend(freed.warnings)

    def _old_units(self) -> List[str]:
        return [stopped.service.unit for stopped in self._undo.stopped]

    def _bring_back(self) -> None:
        """Start all of them, then wait for each: none has to wait for another one's load."""
        deadline = Deadline(self._ports.clock, max(self._request.ready_timeout, LOAD_AGAIN_S))
        started = [stopped for stopped in self._undo.stopped if self._start(stopped)]
        for stopped in started:
            self._await(stopped, deadline)
        self._undone.down = [each.service for each in self._undo.stopped if each.service.unit not in self._undone.back]

    def _start(self, stopped: Stopped) -> bool:
        unit, systemd = stopped.service.unit, self._ports.systemd

        def start() -> None:
            status = systemd.status(unit)
            if status.running or status.starting:
                self._kept.add(unit)
                return
            if status.stopping:
                self._stop(unit)
            systemd.reset_failed(unit)
            systemd.start(unit)

        return self._try("%s could not be started again" % unit, start)

    def _await(self, stopped: Stopped, deadline: Deadline) -> None:
        service, systemd, clock = stopped.service, self._ports.systemd, self._ports.clock
        if not stopped.served:
            self._undone.said.append("%s, which did not serve before either, is started again" % service.unit)
            self._undone.how[service.unit] = "is started again"
            self._undone.back.append(service.unit)
            return
        if not service.served_name:
            if self._try("%s did not stay up" % service.unit, self._steady, service.unit):
                self._undone.said.append("%s runs again" % service.unit)
                self._undone.how[service.unit] = "runs again"
                self._undone.serves = True
                self._undone.back.append(service.unit)
            return

        again = "" if service.unit in self._kept else " again"
        said = "%s serves %s%s" % (service.unit, service.served_name, again)
        how = "serves" + again

        def serve() -> None:
            nonlocal said, how
            target = Target(service.unit, service.served_name, server_of(service, self._ports), self._request.smoke)
            restarts = systemd.status(service.unit).n_restarts
            try:
                wait_ready(target, systemd, clock, max(1.0, deadline.remaining), restarts, self._log.seen, UNWELL_FOR_S)
            except NotReady as exc:
                why = self._at_least_it_runs(exc, service)
                how = "runs%s, %s" % (again, why)
                said = "%s runs%s, %s (%s)" % (service.unit, again, why, exc.unwell.detail.rstrip(".") if exc.unwell else "")

        if self._try("%s does not serve %s again" % (service.unit, service.served_name), serve):
            self._undone.said.append(said)
            self._undone.how[service.unit] = how
            self._undone.serves = True
            self._undone.back.append(service.unit)

    def _at_least_it_runs(self, not_ready: NotReady, service: ManagedService) -> str:
        """It serves others, or those who have its key: nothing more can be put back, and it is told as what it is. Else it is down."""
        if not_ready.busy:
            return "too busy to answer"
        if not_ready.refused:
            return "but it refuses the API key of its own declaration"
        from .kept_down import why_down  # seldom needed

        raise GpuFleetError(why_down(not_ready, service, self._ports)) from not_ready

    def _steady(self, unit: str) -> None:
        """A unit that this collection does not manage: what it serves, and where, is not known."""
        deadline = Deadline(self._ports.clock, _STEADY_S)
        while True:
            status = self._ports.systemd.status(unit)
            if status.active_state not in ("active", "activating") or status.crash_looping:
                raise GpuFleetError("it is %s, result %s" % (status.active_state, status.result))
            if deadline.expired:
                return
            self._ports.clock.sleep(_LOOK_S)


def _text(exc: Exception) -> str:
    if isinstance(exc, GpuFleetError):
        return exc.msg
    return str(exc) if isinstance(exc, OSError) else "%s: %s" % (type(exc).__name__, exc)
