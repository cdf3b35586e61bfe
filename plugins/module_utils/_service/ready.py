# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Waiting until a server serves, and seeing at once that it never will."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Callable, Dict, Optional

from .._core.clock import Clock, Deadline
from .._core.errors import GpuFleetError
from .._server.http import Server
from .._server.metrics import engine_moved
from .._server.ready import Readiness, ReadyState
from .._systemd.manager import Systemd
from .._systemd.show import UnitStatus

# A look costs a `systemctl show` and, once the port is open, an HTTP request: cheap enough for five a second at first. A load
# takes minutes, so the looks get rarer, but never so rare that a crash would go unseen for a second.
_FIRST_PAUSE_S = 0.2
_LONGEST_PAUSE_S = 0.8
# While nothing listens the port alone is asked meanwhile, so that a server that is loaded is seen at once.
_PORT_PAUSE_S = 0.05
# A first completion may compile kernels.
_FIRST_COMPLETION_S = 120.0
_CALL_S = 10.0
# A server under load may be slow to tell its metrics as well.
_METRICS_S = 5.0
# Once a server listens it is loaded: what is wrong with it after that does not get better by waiting, unless its engine works.
UNWELL_FOR_S = 60.0
# Long enough for a completion that is not answered and the look at whether its engine works meanwhile.
_SERVES_STILL_S = 300.0
# Names and keys are the command line's, and never change while a server runs; a second look is for one that is just being replaced.
_SETTLED_FOR_S = 5.0
KEY_ADVICE = "Put the key that it takes under secrets.VLLM_API_KEY. A drop-in or an environment file of somebody else may have given it."
_BUSY_ADVICE = "Keep requests away from it until it has been seen to serve, or allow a longer ready_timeout."


@dataclass(frozen=True)
class Target:
    """The server that is to be ready."""

    unit: str
    served_name: str
    server: Server
    smoke: bool = True


class NotReady(GpuFleetError):
    """The server will not come, or has not come in time. ``status`` is the unit as it was then.

    ``unwell`` is what the server answers amiss, when it is up and has not come to serve. ``busy`` is whether its engine works
    all the same, ``served`` whether it had been seen to serve before. ``advice`` is what to do where no journal has to be read for it.
    """

    def __init__(
        self, msg: str, status: UnitStatus, timed_out: bool, unwell: Optional[ReadyState] = None, busy: bool = False, served: bool = False
    ) -> None:
        super().__init__(msg)
        self.status = status
        self.timed_out = timed_out
        self.unwell = unwell
        self.busy = busy
        self.served = served

    @property
    def refused(self) -> bool:
        """Whether it answers, and takes another API key than ours."""
        return self.unwell is not None and self.unwell.refused

    @property
    def advice(self) -> Optional[str]:
        """What to do about it; None where the journal has to say why."""
        return KEY_ADVICE if self.refused else _BUSY_ADVICE if self.busy else None


class _Trouble:
    """Since when a server that listens has not served, and whether that is only because it is busy: its engine goes on.

    An engine that hangs makes nothing, whatever was asked of it; one that is flooded from its first second on does.
    """

    def __init__(self, server: Server, clock: Clock) -> None:
        self._server = server
        self._clock = clock
        self._metrics: Dict[str, float] = {}
        self._began: Optional[float] = None
        self._worked: Optional[float] = None  # when its engine was last seen to go on
        self._looks = 0  # since then

    def note(self, look: ReadyState) -> None:
        """Take down one look."""
        if look.stage in ("unit", "loading", "ready"):
            self._began, self._worked, self._looks = None, None, 0
            return
        if look.silent and self._moved():
            self._worked, self._looks = self._clock.monotonic(), 0
        else:
            self._looks += 1
        if self._began is None:
            self._began = self._clock.monotonic()

    @property
    def there(self) -> bool:
        """Whether it listens and does not serve."""
        return self._began is not None

    @property
    def lasts(self) -> float:
        """How long it has not served, in seconds."""
        return 0.0 if self._began is None else self._clock.monotonic() - self._began

    @property
    def busy(self) -> bool:
        """Whether its engine works."""
        return self._worked is not None and not self.idle_for(UNWELL_FOR_S)

    def idle_for(self, seconds: float) -> bool:
        """Whether its engine was not seen to work for so long: in two looks at least, since one may take minutes."""
        since = self._began if self._worked is None else self._worked
        return since is not None and self._looks >= 2 and self._clock.monotonic() - since >= seconds

    def _moved(self) -> bool:
        try:
            now = self._server.metrics(_METRICS_S)
        except GpuFleetError:
            return False
        before, self._metrics = self._metrics, now
        return bool(engine_moved(before, now))


def probe(target: Target, clock: Clock, limit: float) -> ReadyState:
    """One look at a server whose unit runs, without waiting for anything but its answers: at most ``limit`` seconds in all."""
    return Readiness(target.server, target.served_name, target.smoke, limit, limit, clock).check(True, limit=limit)


def wait_ready(
    target: Target,
    systemd: Systemd,
    clock: Clock,
    timeout: float,
    restarts: int,
    on_look: Optional[Callable[[UnitStatus, str], None]] = None,
    busy_for: Optional[float] = None,
) -> ReadyState:
    """Look until the server is ready. ``restarts`` is the unit's count of restarts from which on one more is a crash.

    Raises NotReady when the unit has failed or died, when systemd has begun to start it again, when it listens but does not
    come to serve, or after ``timeout`` seconds. One that is only too busy to answer is waited for to the end, or for
    ``busy_for`` seconds.
    """
    deadline = Deadline(clock, timeout)
    readiness = Readiness(target.server, target.served_name, target.smoke, _FIRST_COMPLETION_S, _CALL_S, clock)
    pause = _FIRST_PAUSE_S
    trouble = _Trouble(target.server, clock)
    while True:
        status = systemd.status(target.unit)
        crash = _crash(status, restarts)
        if crash is not None:
            raise NotReady("%s %s" % (target.unit, crash), status, False)
        unit_detail = "the unit is %s (%s)" % (status.active_state, status.sub_state)
        look = readiness.check(status.running, unit_detail, max(1.0, deadline.remaining))
        # The server that answered has to be the one that runs: it may have died and been started again meanwhile.
        if look.ready and systemd.status(target.unit).main_pid == status.main_pid:
            return look
        if on_look is not None:
            on_look(status, look.detail)
        trouble.note(look)
        unwell = look if trouble.there else None
        busy = trouble.busy and look.silent
        if busy and (deadline.expired or (busy_for is not None and trouble.lasts >= busy_for)):
            text = "%s runs, but for %d s it was too busy to answer: %s" % (target.unit, trouble.lasts, look.detail)
            raise NotReady(text, status, True, unwell, busy=True)
        if look.refused and trouble.lasts >= _SETTLED_FOR_S:
            text = "%s answers, but it refuses the API key of this declaration, so that it cannot be seen to serve: %s"
            raise NotReady(text % (target.unit, look.detail), status, True, unwell)
        if deadline.expired:
            raise NotReady("%s did not serve within %d s: %s" % (target.unit, timeout, look.detail), status, True, unwell)
        if trouble.idle_for(_SETTLED_FOR_S if look.other_name else UNWELL_FOR_S):
            text = "%s listens, but has not served for %d s: %s" % (target.unit, trouble.lasts, look.detail)
            raise NotReady(text, status, True, unwell)
        _wait(target.server, clock, min(pause, deadline.remaining), look.stage == "loading")
        pause = min(_LONGEST_PAUSE_S, pause * 1.3)


def wait_steady(
    target: Target, systemd: Systemd, clock: Clock, seconds: float, restarts: int, seen: ReadyState,
    on_look: Optional[Callable[[UnitStatus, str], None]] = None,
) -> ReadyState:
    """See a server that serves go on doing so for ``seconds``, and serve at their end; ``seen`` is how it was seen to serve before.

    One that is only too busy to answer by then goes on. Raises NotReady as ``wait_ready`` does.
    """
    end = Deadline(clock, seconds)
    pid = None
    while True:
        status = systemd.status(target.unit)
        pid = status.main_pid if pid is None else pid
        crash = _crash(status, restarts)
        if crash is None and status.main_pid != pid:
            crash = "was started again"
        if crash is not None:
            raise NotReady("%s served, and then %s" % (target.unit, crash), status, False, served=True)
        if end.expired:
            break
        if on_look is not None:
            on_look(status, seen.detail)
        clock.sleep(min(_LONGEST_PAUSE_S, end.remaining))
    try:
        return wait_ready(target, systemd, clock, _SERVES_STILL_S, restarts, on_look, UNWELL_FOR_S)
    except NotReady as exc:
        if exc.busy:
            return seen
        exc.served = True
        raise


def _wait(server: Server, clock: Clock, seconds: float, loading: bool) -> None:
    """Until the next look; for a server that loads no longer than until it listens."""
    pause = Deadline(clock, seconds)
    while not pause.expired:
        clock.sleep(min(_PORT_PAUSE_S, pause.remaining) if loading else pause.remaining)
        if loading and server.listens():
            return


def _crash(status: UnitStatus, restarts: int) -> Optional[str]:
    if status.failed:
        return "failed (%s)" % _how(status)
    if status.crash_looping or status.n_restarts > restarts:
        return "crashed and is being started again by systemd (%s)" % _how(status)
    if status.inactive:
        return "ended by itself (%s)" % _how(status)
    if status.stopping:
        return "is being stopped (%s)" % _how(status)
    return None


def _how(status: UnitStatus) -> str:
    if status.start_pre_status is not None:
        from .._diagnosis.guard import is_guard  # seldom needed

        who = "its guard" if is_guard(status.start_pre_path) else "%s, which its unit runs before the server," % status.start_pre_path
        return "%s ended with exit status %d" % (who, status.start_pre_status)
    if status.exec_main_code is not None:
        return "result %s, main process %s with status %d" % (status.result, status.exec_main_code, status.exec_main_status)
    return "result %s" % status.result
