# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The outside world of this room, in one place, so that tests can put their own in."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Callable, Mapping, Optional, Sequence

from .._core.clock import Clock
from .._core.runner import Completed, Runner
from .._gpu.reader import GpuReader, open_reader
from .._systemd.manager import Systemd
from .processes import HoldsGpu, holds_gpu
from .request import ReclaimRequest

_DRIVER_CALL_S = 60.0


class UserManagerRunner(Runner):
    """Runs ``systemctl`` against one user's manager instead of the system's.

    Root may talk to the manager's private socket in the user's runtime directory; neither a login session nor a bus is
    needed for that, and nothing runs as the user.
    """

    def __init__(self, runner: Runner, uid: int) -> None:
        self._runner = runner
        self._env = {"XDG_RUNTIME_DIR": "/run/user/%d" % uid, "DBUS_SESSION_BUS_ADDRESS": ""}

    def run(
        self,
        argv: Sequence[str],
        timeout: float = 30.0,
        stdin: Optional[str] = None,
        env: Optional[Mapping[str, str]] = None,
    ) -> Completed:
        """As :meth:`Runner.run`, with ``--user`` put behind ``systemctl``."""
        words = list(argv)
        if words and words[0] == "systemctl":
            words.insert(1, "--user")
        return self._runner.run(words, timeout=timeout, stdin=stdin, env=dict(self._env, **(env or {})))


def _user_systemd(uid: int) -> Systemd:
    return Systemd(UserManagerRunner(Runner(), uid))


@dataclass(frozen=True)
class Ports:
    """Everything through which a reclaim touches its host."""

    runner: Runner = field(default_factory=Runner)
    clock: Clock = field(default_factory=Clock)
    systemd: Systemd = field(default_factory=lambda: Systemd(Runner()))
    user_systemd: Callable[[int], Systemd] = _user_systemd
    open_reader: Callable[[], GpuReader] = open_reader
    holds_gpu: HoldsGpu = holds_gpu
    proc_root: str = "/proc"
    shm_root: str = "/dev/shm"


def host_ports(request: ReclaimRequest) -> Ports:
    """The real world: a driver call may take no longer than the whole reclaim."""
    return Ports(open_reader=lambda: open_reader(timeout=min(_DRIVER_CALL_S, request.timeout), protect=request.protect))
