# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""One start at a time on each GPU, until the server that starts is ready or dead.

Two servers that load at once on one GPU take each other's memory for their own and size their caches wrongly. A file lock can't keep
them apart by itself: the guard that would hold it has ended before the server begins to load, and systemd kills whatever a guard
leaves behind. So each unit writes a claim, and whoever comes later looks whether the claimant still starts: its guard is alive,
or its cgroup has processes and its port does not answer yet. A claimant that died in whatever way holds nobody up.
"""

from __future__ import annotations

import fcntl
import json
import os
import socket
import time
from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple

from .leftovers import members

# Between the guard's end and the server's first process: systemd needs a moment.
_GRACE_S = 10.0
_MUTEX = ".mutex"
# It is held for microseconds; longer than this, and something is wrong with whoever holds it.
_MUTEX_S = 5.0
_SUFFIX = ".claim"


class Unusable(Exception):
    """The directory can't be used; the text says why."""


class StartLock:
    """The claims in one directory. ``now`` gives CLOCK_MONOTONIC, the same for everybody on the host until it reboots."""

    def __init__(
        self,
        directory: str,
        unit: str,
        now: Callable[[], float],
        proc_root: str = "/proc",
        cgroup_root: str = "/sys/fs/cgroup",
        answers: Optional[Callable[[str, int], bool]] = None,
    ) -> None:
        self._directory = directory
        self._unit = unit
        self._now = now
        self._proc = proc_root
        self._cgroup = cgroup_root
        self._answers = answers or port_answers
        self._claim: Dict[str, Any] = {}

    def take(self, gpus: Sequence[str], host: str, port: Optional[int]) -> Optional[Tuple[str, List[str]]]:
        """Claim these GPUs (by UUID); None when they are ours now, else the unit that still starts, and on which of them.

        Raises Unusable.
        """
        with _Mutex(self._directory):
            for other in self._others():
                shared = sorted(set(other["gpus"]) & set(gpus))
                if shared and self._starting(other):
                    return other["unit"], shared
            self._claim = {
                "unit": self._unit,
                "gpus": sorted(gpus),
                "host": host,
                "port": port,
                "pid": os.getpid(),
                "start_ticks": _start_ticks(os.getpid(), self._proc),
                "cgroup": _text(self._proc + "/self/cgroup"),
                "passed": None,
            }
            self._write()
        return None

    def passed(self) -> Optional[str]:
        """The guard lets the server start: from now on the server's life decides. What went wrong with saying so, if anything."""
        if self._claim:
            self._claim["passed"] = self._now()
            try:
                self._write()
            except Unusable as exc:
                return str(exc)
        return None

    def drop(self) -> None:
        """The guard does not let the server start."""
        if self._claim:
            self._claim = {}
            try:
                os.unlink(self._path(self._unit))
            except OSError:
                pass  # it ends with this process anyway: its claimant is then dead

    def _starting(self, claim: Dict[str, Any]) -> bool:
        if claim["passed"] is None:
            ticks = _start_ticks(claim["pid"], self._proc)
            return ticks is not None and ticks == claim["start_ticks"]
        if not isinstance(claim["port"], int):
            return False  # nobody can tell when it is ready
        if not members(claim["cgroup"], claim["unit"], self._cgroup):
            return bool(0 <= self._now() - claim["passed"] < _GRACE_S)
        return not self._answers(claim["host"], claim["port"])

    def _others(self) -> List[Dict[str, Any]]:
        found: List[Dict[str, Any]] = []
        for name in sorted(os.listdir(self._directory)):
            if name.endswith(_SUFFIX) and name != self._unit + _SUFFIX:
                claim = parse_claim(_text(os.path.join(self._directory, name)))
                if claim is not None:
                    found.append(claim)
        return found

    def _path(self, unit: str) -> str:
        return os.path.join(self._directory, unit + _SUFFIX)

    def _write(self) -> None:
        """Replace the claim as a whole. The old one may be another user's, from before the unit's user changed."""
        staged = "%s.%d" % (self._path("." + self._unit), os.getpid())
        try:
            with open(staged, "w", encoding="utf-8") as handle:
                json.dump(self._claim, handle)
            os.chmod(staged, 0o644)  # others must read it, whatever the unit's umask
            os.rename(staged, self._path(self._unit))
        except OSError as exc:
            raise Unusable("%s: %s" % (self._directory, exc.strerror)) from exc


def parse_claim(text: str) -> Optional[Dict[str, Any]]:
    """A claim that can be judged; None for anything else, which then holds nobody up."""
    try:
        claim = json.loads(text)
    except ValueError:
        return None
    kinds: Tuple[Tuple[str, Any], ...] = (
        ("unit", str), ("gpus", list), ("host", str), ("port", (int, type(None))), ("pid", int),
        ("start_ticks", (int, type(None))), ("cgroup", str), ("passed", (int, float, type(None))),
    )
    if not isinstance(claim, dict) or not all(isinstance(claim.get(key, kinds), kind) for key, kind in kinds):
        return None
    if claim["pid"] <= 0 or not all(isinstance(gpu, str) for gpu in claim["gpus"]):
        return None
    return claim


def port_answers(host: str, port: int) -> bool:
    """Whether somebody listens there: a vLLM server listens only when its model is loaded."""
    address = {"0.0.0.0": "127.0.0.1", "::": "::1", "": "127.0.0.1"}.get(host, host)
    try:
        with socket.create_connection((address, port), timeout=1.0):
            return True
    except OSError:
        return False


class _Mutex:
    """Held only while claims are read and written, so that it is never waited for long."""

    def __init__(self, directory: str) -> None:
        self._path = os.path.join(directory, _MUTEX)
        self._descriptor = -1

    def __enter__(self) -> None:
        try:
            # reading is enough for a lock, and all that is allowed on another user's file
            self._descriptor = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        except FileNotFoundError:
            self._descriptor = self._create()
        except OSError as exc:
            raise Unusable("%s: %s" % (self._path, exc.strerror)) from exc
        end = time.monotonic() + _MUTEX_S
        while True:
            try:
                fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return
            except OSError as exc:
                if time.monotonic() >= end:
                    os.close(self._descriptor)
                    raise Unusable("%s is held by somebody for %g s" % (self._path, _MUTEX_S)) from exc
            time.sleep(0.01)

    def _create(self) -> int:
        try:
            descriptor = os.open(self._path, os.O_RDONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o444)
            os.fchmod(descriptor, 0o444)  # whatever the unit's umask
            return descriptor
        except FileExistsError:
            return os.open(self._path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)  # another one was quicker
        except OSError as exc:
            raise Unusable("%s: %s" % (self._path, exc.strerror)) from exc

    def __exit__(self, *_exc: object) -> None:
        os.close(self._descriptor)


def _start_ticks(pid: int, root: str) -> Optional[int]:
    from .._process.procfs import start_ticks

    return start_ticks(pid, root)


def _text(path: str) -> str:
    try:
        with open(path, encoding="utf-8", errors="replace") as handle:
            return handle.read()
    except OSError:
        return ""
