# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The outside world of this room, in one place, so that tests can put their own in."""

from __future__ import annotations

import pwd
from dataclasses import dataclass, field
from typing import Callable, FrozenSet, List, Mapping, Optional, Sequence

from .._core.clock import Clock
from .._core.host_lock import RUN_DIRECTORY
from .._core.runner import Completed, Runner
from .._gpu.reader import GpuReader, open_reader
from .._process.holders import device_holders
from .._systemd.manager import Systemd
from .patience import call_limit
from .processes import HoldsGpu, holds_gpu
from .request import ReclaimRequest


class UserManagerRunner(Runner):
    """Runs ``systemctl`` against one user's manager instead of the system's.

    The manager only listens to its own user, so the command runs as that user; neither a login session nor a password is
    needed for it.
    """

    def __init__(self, runner: Runner, uid: int) -> None:
        self._runner = runner
        self._prefix = ["setpriv", "--reuid=%d" % uid] + _groups(uid) + ["--"]
        runtime = "/run/user/%d" % uid
        self._env = {"XDG_RUNTIME_DIR": runtime, "DBUS_SESSION_BUS_ADDRESS": "unix:path=%s/bus" % runtime}

    def run(
        self,
        argv: Sequence[str],
        timeout: float = 30.0,
        stdin: Optional[str] = None,
        env: Optional[Mapping[str, str]] = None,
    ) -> Completed:
        """As :meth:`Runner.run`, as the user, with ``--user`` put behind ``systemctl``."""
        words = list(argv)
        if words and words[0] == "systemctl":
            words.insert(1, "--user")
        return self._runner.run(self._prefix + words, timeout=timeout, stdin=stdin, env=dict(self._env, **(env or {})))


def _groups(uid: int) -> List[str]:
    try:
        return ["--regid=%d" % pwd.getpwuid(uid).pw_gid, "--init-groups"]
    except KeyError:
        return ["--regid=%d" % uid, "--clear-groups"]  # an account that the host does not know


def _user_systemd(uid: int) -> Systemd:
    return Systemd(UserManagerRunner(Runner(), uid), uid=uid)


@dataclass(frozen=True)
class Ports:
    """Everything through which a reclaim touches its host."""

    runner: Runner = field(default_factory=Runner)
    clock: Clock = field(default_factory=Clock)
    systemd: Systemd = field(default_factory=lambda: Systemd(Runner()))
    user_systemd: Callable[[int], Systemd] = _user_systemd
    open_reader: Callable[[], GpuReader] = open_reader
    holds_gpu: HoldsGpu = holds_gpu
    device_holders: Callable[[str], Mapping[int, FrozenSet[str]]] = device_holders
    proc_root: str = "/proc"
    shm_root: str = "/dev/shm"
    run_root: str = RUN_DIRECTORY

    @property
    def claims_root(self) -> str:
        """Where starting units claim their GPUs (the guard's --lock-dir in the units that we write)."""
        return self.run_root + "/locks"


def host_ports(request: ReclaimRequest) -> Ports:
    """The real world: a driver call may take its share of the whole time and no more."""
    return Ports(open_reader=lambda: open_reader(timeout=call_limit(request.timeout), protect=request.protect))
