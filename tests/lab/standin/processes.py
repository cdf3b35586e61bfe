# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Processes: forked, named as vLLM names them, watched through pidfds, talking in JSON packets."""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import sys
import time
import traceback
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import setproctitle

from . import log

PREFIX = os.environ.get("VLLM_PROCESS_NAME_PREFIX", "VLLM")
_ENDING = (signal.SIGTERM, signal.SIGINT)


def set_title(name: str) -> None:
    """Take vLLM's title for a process of this name, and the name in log lines."""
    setproctitle.setproctitle(f"{PREFIX}::{name}")
    log.set_process_name(name)


class Link:
    """One end of a connection that carries JSON objects; a peer that is gone is no error."""

    def __init__(self, end: socket.socket) -> None:
        self._end = end

    @staticmethod
    def pair() -> tuple[Link, Link]:
        """Two connected ends."""
        one, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        return Link(one), Link(other)

    def fileno(self) -> int:
        return self._end.fileno()

    def send(self, message: dict[str, Any]) -> bool:
        """False: the peer is gone."""
        try:
            self._end.send(json.dumps(message).encode())
        except (BrokenPipeError, ConnectionResetError):
            return False
        return True

    def receive(self) -> dict[str, Any] | None:
        """The next message; None: the peer is gone."""
        try:
            data = self._end.recv(1 << 20)
        except ConnectionResetError:
            return None
        if not data:
            return None
        message: dict[str, Any] = json.loads(data)
        return message

    def close(self) -> None:
        self._end.close()


def readable(link: Link) -> bool:
    """Whether a message (or the peer's end) waits to be received."""
    poller = select.poll()
    poller.register(link, select.POLLIN)
    return bool(poller.poll(0))


class Child:
    """A forked process."""

    def __init__(self, pid: int, name: str) -> None:
        self.pid = pid
        self.name = name
        self.pidfd = os.pidfd_open(pid)
        self.exit_code: int | None = None  # negative: the signal

    def fileno(self) -> int:
        return self.pidfd

    def wait(self, seconds: float | None) -> bool:
        """Whether it ends in this time (None: however long it takes)."""
        if self.exit_code is not None:
            return True
        poller = select.poll()
        poller.register(self.pidfd, select.POLLIN)
        if not poller.poll(None if seconds is None else max(seconds, 0) * 1000):
            return False
        _pid, status = os.waitpid(self.pid, 0)
        self.exit_code = os.waitstatus_to_exitcode(status)
        return True

    def signal(self, number: int) -> None:
        """Send it a signal unless it is gone."""
        if not self.wait(0):
            signal.pidfd_send_signal(self.pidfd, number)


def fork(name: str, run: Callable[[], int], keep: Iterable[int]) -> Child:
    """Fork a child that does run() with no descriptors but keep and the standard ones, and exits with its result."""
    kept = {0, 1, 2, *keep}
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _ENDING)
    pid = os.fork()
    if pid:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        return Child(pid, name)
    code = 1
    try:
        for number in _ENDING:
            signal.signal(number, signal.SIG_DFL)
        signal.set_wakeup_fd(-1)
        for descriptor in map(int, os.listdir("/proc/self/fd")):
            if descriptor not in kept:
                try:
                    os.close(descriptor)
                except OSError:
                    pass  # the listing's own
        # run() sets its handlers first and unblocks the signals then.
        code = run()
    except SystemExit as leave:
        code = leave.code if isinstance(leave.code, int) else 0
    except BaseException:  # noqa: BLE001 - a child must never return into its parent's code
        traceback.print_exc()
    finally:
        os._exit(code)


def unblock_signals() -> None:
    """Let SIGTERM and SIGINT through, once the handlers stand."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _ENDING)


def start_resource_tracker() -> tuple[Child, int]:
    """multiprocessing's resource tracker: it lives until the last holder of the returned descriptor is gone."""
    readable, writable = os.pipe()

    def run() -> int:
        for number in _ENDING:
            signal.signal(number, signal.SIG_IGN)
        unblock_signals()
        setproctitle.setproctitle(
            f"{sys.executable} -c from multiprocessing.resource_tracker import main;main({readable})"
        )
        Path("/proc/self/comm").write_text("python3", encoding="ascii")  # it is started as a program of its own
        while os.read(readable, 64):
            pass
        return 0

    child = fork("resource_tracker", run, [readable])
    os.close(readable)
    return child, writable


def descendants(pid: int) -> list[int]:
    """All processes below pid."""
    children: dict[int, list[int]] = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                stat = Path("/proc", entry, "stat").read_text(encoding="utf-8", errors="replace")
            except OSError:
                continue
            children.setdefault(int(stat.rpartition(")")[2].split()[1]), []).append(int(entry))
    found: list[int] = []
    waiting = [pid]
    while waiting:
        below = children.get(waiting.pop(), [])
        found += below
        waiting += below
    return found


def kill_tree(child: Child) -> None:
    """SIGKILL all below child, then child, as vLLM does after its patience is over."""
    for pid in descendants(child.pid):
        try:
            name = Path("/proc", str(pid), "comm").read_text(encoding="utf-8", errors="replace").strip()
            log.warning("system_utils.py:248", f"[shutdown] force killing sub process {name} pid {pid}")
            os.kill(pid, signal.SIGKILL)
        except (OSError, ProcessLookupError):
            continue
    child.signal(signal.SIGKILL)
    child.wait(5)


def end_processes(children: list[Child], timeout: float) -> None:
    """SIGTERM, wait for timeout seconds, SIGKILL with all below: vLLM's process manager."""
    for child in children:
        if not child.wait(0):
            log.info("utils.py:628", f"[shutdown] Process manager: send sigterm to process {child.name}")
            child.signal(signal.SIGTERM)
    deadline = time.monotonic() + timeout
    remaining = [child for child in children if not child.wait(deadline - time.monotonic())]
    if remaining:
        log.warning(
            "utils.py:648", f"[shutdown] Process manager: force killing remaining processes count={len(remaining)}"
        )
    for child in remaining:
        log.warning(
            "utils.py:653",
            f"[shutdown] Process manager: force killing remaining process {child.name} pid {child.pid}",
        )
        kill_tree(child)


def leave_cgroup() -> None:
    """Move this process to a cgroup of its own at the root, out of any unit. OSError: not allowed."""
    for line in Path("/proc/self/cgroup").read_text(encoding="utf-8").splitlines():
        _number, controllers, _path = line.split(":", 2)
        roots = ["/sys/fs/cgroup", "/sys/fs/cgroup/unified"] if not controllers else []
        if controllers == "name=systemd":
            roots = ["/sys/fs/cgroup/systemd"]
        for root in map(Path, roots):
            if (root / "cgroup.procs").exists():
                mine = root / "standin-escaped"
                mine.mkdir(exist_ok=True)
                (mine / "cgroup.procs").write_text("0", encoding="ascii")
