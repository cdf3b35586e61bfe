# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""One change of services at a time on a host.

Two swaps that run at once would stop what the other starts, and a clean-up would end what a swap is about to start. The
lock is an flock on a file under /run, so that the kernel releases it when its holder dies, however it dies.
"""

from __future__ import annotations

import fcntl
import json
import os
import time
from types import TracebackType
from typing import Any, Dict, Optional, Tuple, Type

from .directories import make_directories
from .errors import GpuFleetError

# Where it is on a host.
RUN_DIRECTORY = "/run/gpufleet"
_NAME = "change.lock"
LOCK_FILE = RUN_DIRECTORY + "/" + _NAME
_CHANGES = "is changing the services of this host"


class HostLock:
    """Held while a host's services are changed; says who holds it when it cannot be had."""

    def __init__(self, directory: str, purpose: str, doing: str = _CHANGES) -> None:
        """``purpose`` says who it is, and ``doing`` what that is to others: "Another run ..."."""
        self._doing = doing
        self._directory = directory
        self._path = os.path.join(directory, _NAME)
        self._purpose = purpose
        self._fd: Optional[int] = None
        # What quiet_since said, or would have said, in the moment before it was taken.
        self.quiet_since: Optional[int] = None

    def __enter__(self) -> "HostLock":
        try:
            make_directories(self._directory)
            fd, is_new = _open(self._path)
        except OSError as exc:
            raise GpuFleetError(
                "Cannot open the lock file %s: %s. Free room in %s, or correct its rights, then run again."
                % (self._path, exc.strerror, self._directory)
            ) from exc
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = _read(fd)
            os.close(fd)
            raise GpuFleetError(busy_message(holder), lock_holder=holder) from None
        self.quiet_since = 0 if is_new else os.fstat(fd).st_mtime_ns
        note = {"pid": os.getpid(), "since": time.time(), "purpose": self._purpose, "doing": self._doing}
        try:
            os.ftruncate(fd, 0)
            os.pwrite(fd, json.dumps(note).encode("utf-8"), 0)
        except OSError as exc:
            os.close(fd)
            raise GpuFleetError(
                "Cannot write the lock file %s: %s. Free room in %s, then run again." % (self._path, exc.strerror, self._directory)
            ) from exc
        self._fd = fd
        return self

    def __exit__(
        self,
        exc_type: Optional[Type[BaseException]],
        exc: Optional[BaseException],
        traceback: Optional[TracebackType],
    ) -> None:
        if self._fd is not None:
            os.ftruncate(self._fd, 0)
            os.close(self._fd)
            self._fd = None


def _open(path: str) -> Tuple[int, bool]:
    """The lock's file, and whether nobody had made it before."""
    flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
    try:
        return os.open(path, flags | os.O_EXCL, 0o644), True
    except FileExistsError:
        return os.open(path, flags, 0o644), False


def _read(fd: int) -> Dict[str, Any]:
    try:
        note = json.loads(os.pread(fd, 4096, 0).decode("utf-8"))
    except (ValueError, OSError):
        return {}  # the holder has the lock but has not written its note yet
    return note if isinstance(note, dict) else {}


def holder_of(directory: str, proc_root: str = "/proc") -> Optional[Dict[str, Any]]:
    """Who holds the lock now, without taking it for a moment; None when nobody does, {} when its holder has not said yet.

    The kernel's list is asked, not the note in the file: a holder that was killed leaves its note behind.
    """
    try:
        fd = os.open(os.path.join(directory, _NAME), os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:
        return None  # never taken on this host, or not by us
    try:
        return _read(fd) if _is_locked(os.fstat(fd), proc_root) else None
    finally:
        os.close(fd)


def quiet_since(directory: str, proc_root: str = "/proc") -> Optional[int]:
    """When the lock was last taken or let go, in ns; 0 where nobody ever took it, None while somebody holds it.

    As long as this stays the same nobody has changed the services of the host under the lock.
    """
    try:
        fd = os.open(os.path.join(directory, _NAME), os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except FileNotFoundError:
        return 0
    except OSError:
        return None
    try:
        status = os.fstat(fd)
        return None if _is_locked(status, proc_root) else status.st_mtime_ns
    finally:
        os.close(fd)


def _is_locked(status: os.stat_result, proc_root: str) -> bool:
    """Whether /proc/locks has an flock on this file: ``1: FLOCK  ADVISORY  WRITE 4711 00:1a:1234 0 EOF``."""
    wanted = "%02x:%02x:%d" % (os.major(status.st_dev), os.minor(status.st_dev), status.st_ino)
    try:
        with open(proc_root + "/locks", encoding="ascii", errors="replace") as handle:
            lines = [line.split() for line in handle]
    except OSError as exc:
        raise GpuFleetError("Cannot see who holds locks on this host: %s/locks: %s." % (proc_root, exc.strerror)) from exc
    # "->" marks one that waits for the lock before it
    return any(words[1:2] == ["FLOCK"] and wanted in words for words in lines)


def busy_message(holder: Dict[str, Any]) -> str:
    """The sentence for somebody who would have to wait for ``holder``."""
    if not holder:
        return "Another run %s right now. Wait until it has ended, then run again." % _CHANGES
    since = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(float(holder.get("since", 0))))
    return (
        "Another run %s right now: %s (pid %s), since %s. Wait until it has ended, then run again."
        % (holder.get("doing", _CHANGES), holder.get("purpose", "unknown"), holder.get("pid"), since)
    )
