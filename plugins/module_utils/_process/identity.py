# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Signalling exactly the process that was looked at, never one that got its pid later."""

from __future__ import annotations

import os
import select
import signal as signals
import time
from dataclasses import dataclass
from types import TracebackType
from typing import Callable, Optional, Type

from .procfs import ancestors, read_process
from .types import ProcessInfo

# Outcomes of ProvenProcess.signal().
SENT = "sent"
GONE = "gone"
CHANGED = "changed"
DENIED = "denied"


@dataclass(frozen=True)
class Identity:
    """What makes a process this one. ``exe`` is None where the link could not be read."""

    pid: int
    start_ticks: int
    exe: Optional[str]
    uid: int

    @classmethod
    def of(cls, info: ProcessInfo) -> Identity:
        """The identity of a process that was read."""
        return cls(info.pid, info.start_ticks, info.exe, info.uid)


class ProvenProcess:
    """A process held by a pidfd, so that the number can't come to mean another one.

    Where the kernel has no pidfds the identity is read again directly before each signal instead: the window shrinks to
    microseconds, but does not close.
    """

    def __init__(self, identity: Identity, pidfd: Optional[int], root: str = "/proc") -> None:
        self.identity = identity
        self._pidfd = pidfd
        self._root = root

    @property
    def pid(self) -> int:
        """The pid."""
        return self.identity.pid

    @property
    def held(self) -> bool:
        """Whether a pidfd holds it."""
        return self._pidfd is not None

    def still_same(self) -> bool:
        """Whether the pid still means the process that was looked at, and it has not ended (a zombie has)."""
        info = read_process(self.pid, self._root)
        return info is not None and not info.zombie and _same(self.identity, info)

    def signal(self, sig: int) -> str:
        """Send one signal after proving the identity again: ``sent``, ``gone``, ``changed`` (another process) or ``denied``."""
        info = read_process(self.pid, self._root)
        if info is None or info.zombie:
            return GONE
        if not _same(self.identity, info):
            return CHANGED
        try:
            if self._pidfd is not None:
                _send(self._pidfd, sig)
            else:
                os.kill(self.pid, sig)
        except ProcessLookupError:
            return GONE
        except PermissionError:
            return DENIED
        return SENT

    def wait(self, timeout: float) -> bool:
        """Wait at most ``timeout`` seconds for its end; whether it has ended. Returns at once when it does."""
        if self._pidfd is not None:
            poller = select.poll()
            poller.register(self._pidfd, select.POLLIN)
            return bool(poller.poll(max(0, int(timeout * 1000 + 0.999))))
        end = time.monotonic() + timeout
        while self.still_same():
            left = end - time.monotonic()
            if left <= 0:
                return False
            time.sleep(min(0.05, left))
        return True

    def close(self) -> None:
        """Let go of the pidfd."""
        if self._pidfd is not None:
            os.close(self._pidfd)
            self._pidfd = None

    def __enter__(self) -> ProvenProcess:
        return self

    def __exit__(
        self, kind: Optional[Type[BaseException]], value: Optional[BaseException], trace: Optional[TracebackType]
    ) -> None:
        self.close()


def open_proven(info: ProcessInfo, root: str = "/proc") -> Optional[ProvenProcess]:
    """Hold the process that ``info`` describes; None when it ended, became another, or must never be signalled.

    First the pidfd is opened, then the identity is read again: in this order nothing can slip between. Refused are pids up
    to 1, this process and its ancestors.
    """
    if info.pid <= 1 or info.pid in ancestors(os.getpid(), root):
        return None
    pidfd = _open_pidfd(info.pid)
    if pidfd is not None and pidfd < 0:
        return None
    process = ProvenProcess(Identity.of(info), pidfd, root)
    if process.still_same():
        return process
    process.close()
    return None


_GONE_FD = -1


def _open_pidfd(pid: int) -> Optional[int]:
    """A pidfd; None where the kernel or Python has none to give; negative when there is no such process."""
    opener: Optional[Callable[[int], int]] = getattr(os, "pidfd_open", None)
    if opener is None:
        return None
    try:
        return opener(pid)
    except ProcessLookupError:
        return _GONE_FD
    except OSError:
        return None  # ENOSYS (kernel before 5.3), EPERM (a sandbox that filters the call)


def _send(pidfd: int, sig: int) -> None:
    sender: Callable[[int, int], None] = getattr(signals, "pidfd_send_signal")
    sender(pidfd, sig)


def _same(identity: Identity, info: ProcessInfo) -> bool:
    if info.start_ticks != identity.start_ticks or info.uid != identity.uid:
        return False
    # exec keeps pid and start time: what was a wrapper when it was looked at may be something else by now
    return identity.exe is None or info.exe is None or info.exe == identity.exe
