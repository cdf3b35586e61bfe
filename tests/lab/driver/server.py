# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The driver's event loop: connections, the scenario file, processes that end, calls that hang.

One thread, one selector. Nothing here knows what a call means: that is nvml.py and requests.py.
"""

from __future__ import annotations

import os
import selectors
import socket
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

from . import codes, faults, procs
from .client import pack, unpack
from .faults import Faults
from .machine import Machine, Refused
from .nvml import Session
from .requests import Requests
from .scenario import Failure, Scenario, ScenarioError

MAX_LINE = 1 << 20


@dataclass(eq=False)
class Connection:
    """One client. Its file description may be shared by several processes; it ends with the last copy."""

    socket: socket.socket
    session: Session
    pids: tuple[int, ...]
    received: bytearray = field(default_factory=bytearray)
    unsent: bytearray = field(default_factory=bytearray)
    allocations: list[int] = field(default_factory=list)
    pidfd: int | None = None
    waiting: Waiting | None = None


@dataclass(frozen=True)
class Waiting:
    """A call that hangs: until when (None: until the scenario no longer says so), and what comes then."""

    failure: Failure
    until: float | None
    request: list[str]


class Server:
    """Serves one machine's driver on a unix socket, with a scenario file beside it."""

    def __init__(self, directory: Path) -> None:
        self.socket_path = directory / "driver.sock"
        self.scenario_path = directory / "scenario.json"
        self._seen: tuple[int, int, int] | None = None
        self._bad_scenario: str | None = None
        self.machine = Machine(Scenario())
        self.faults = Faults()
        self.requests = Requests(self.machine, self.reload, self._others)
        self._selector = selectors.DefaultSelector()
        self._connections: set[Connection] = set()
        self._listener: socket.socket | None = None

    # --- life

    def listen(self) -> None:
        """Bind the socket, open to every user. OSError: another driver listens there."""
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
        staged = self.socket_path.with_name(f".driver.sock.{os.getpid()}")
        staged.unlink(missing_ok=True)
        self._listener.bind(str(staged))
        staged.chmod(0o666)
        self._listener.listen(512)
        self._listener.setblocking(False)
        staged.replace(self.socket_path)
        self._selector.register(self._listener, selectors.EVENT_READ, None)

    def run(self, stops: list[int]) -> None:
        """Serve until something, or their end, can be read from one of the descriptors stops."""
        for stop in stops:
            self._selector.register(stop, selectors.EVENT_READ, stop)
        while True:
            for key, mask in self._selector.select(self._patience()):
                if isinstance(key.data, int):
                    return
                if key.data is None:
                    self._accept()
                elif isinstance(key.data, Connection):
                    if key.fd == key.data.pidfd:
                        self._process_ended(key.data)
                    else:
                        self._serve(key.data, mask)
            self._answer_waiting()

    def close(self) -> None:
        """Give up the socket and every connection: the module is unloaded."""
        for connection in list(self._connections):
            self._drop(connection)
        if self._listener is not None:
            self._listener.close()
            self.socket_path.unlink(missing_ok=True)
        self._selector.close()

    # --- the scenario file

    def reload(self) -> str | None:
        """Read the scenario file if it has changed. Returns what is wrong with it, or None."""
        try:
            stat = self.scenario_path.stat()
        except FileNotFoundError:
            mark = (0, 0, 0)
        else:
            mark = (stat.st_mtime_ns, stat.st_ino, stat.st_size)
        if mark == self._seen:
            return self._bad_scenario
        self._seen = mark
        try:
            text = self.scenario_path.read_text(encoding="utf-8") if mark[1] else "{}"
            scenario = Scenario.from_json(text)
        except (ScenarioError, UnicodeDecodeError, FileNotFoundError) as error:
            self._bad_scenario = str(error)
            print(f"scenario refused: {error}", file=sys.stderr, flush=True)
            return self._bad_scenario
        self._bad_scenario = None
        self.machine.load(scenario, time.monotonic())
        self.faults.forget(scenario)
        return None

    # --- connections

    def _accept(self) -> None:
        assert self._listener is not None
        try:
            accepted, _address = self._listener.accept()
        except BlockingIOError:
            return
        accepted.setblocking(False)
        pid, uid = procs.peer(accepted)
        connection = Connection(accepted, Session(pid=pid, uid=uid), (pid,))
        self._connections.add(connection)
        self._selector.register(accepted, selectors.EVENT_READ, connection)

    def _serve(self, connection: Connection, mask: int) -> None:
        if mask & selectors.EVENT_WRITE:
            self._flush(connection)
        if not mask & selectors.EVENT_READ:
            return
        try:
            chunk = connection.socket.recv(65536)
        except BlockingIOError:
            return
        except OSError:
            chunk = b""
        if not chunk or len(connection.received) > MAX_LINE:
            self._drop(connection)
            return
        connection.received += chunk
        self._work(connection)

    def _work(self, connection: Connection) -> None:
        """Answer the lines received so far; a call that hangs stops the connection until it is answered."""
        while connection.waiting is None and (end := connection.received.find(b"\n")) >= 0:
            raw = bytes(connection.received[:end])
            del connection.received[: end + 1]
            try:
                request = unpack(raw)
            except (ValueError, UnicodeDecodeError):
                self._drop(connection)
                return
            if request:
                self._request(connection, request)

    def _request(self, connection: Connection, request: list[str]) -> None:
        wrong = self.reload()
        if wrong is not None and request[0] != "control":
            self._send(connection, pack(codes.UNKNOWN, f"scenario refused: {wrong}"))
            return
        failure = self.requests.failure(self.faults, connection.session, request)
        if failure is None:
            self._answer(connection, request)
            return
        for order in faults.orders(failure):
            self._send(connection, pack(*order))
        if faults.hangs(failure):
            until = None if failure.hang_s == "forever" else time.monotonic() + float(failure.hang_s)
            connection.waiting = Waiting(failure, until, request)
        else:
            self._answer(connection, request, failure.code)

    def _answer(self, connection: Connection, request: list[str], code: int | None = None) -> None:
        if code is not None:
            self._send(connection, pack(code, codes.text_of(code)))
            return
        now = time.monotonic()
        try:
            if request[0] == "alloc":
                words = self._allocate(connection, request[1:], now)
            else:
                words = self.requests.answer(connection.session, connection.allocations, request, now)
        except Refused as refusal:
            self._send(connection, pack(refusal.code, *refusal.words))
        except (IndexError, ValueError) as error:
            self._send(connection, pack(codes.INVALID_ARGUMENT, f"bad request {request[:3]}: {error}"))
        else:
            self._send(connection, pack(codes.SUCCESS, *words))

    def _answer_waiting(self) -> None:
        hanging = [each for each in self._connections if each.waiting is not None]
        if not hanging:
            return
        self.reload()
        now = time.monotonic()
        for connection in hanging:
            waiting = connection.waiting
            assert waiting is not None
            due = waiting.until is not None and waiting.until <= now
            if due or waiting.failure not in self.machine.scenario.failures:
                connection.waiting = None
                self._answer(connection, waiting.request, waiting.failure.code if due else None)
                self._work(connection)

    def _patience(self) -> float | None:
        """How long the loop may sleep: until a hanging call is due or, with such calls, until the file may change."""
        hanging = [each.waiting for each in self._connections if each.waiting is not None]
        if not hanging:
            return None
        now = time.monotonic()
        due = [waiting.until - now for waiting in hanging if waiting.until is not None]
        return max(0.0, min([0.05, *due]))

    def _send(self, connection: Connection, raw: bytes) -> None:
        connection.unsent += raw
        self._flush(connection)

    def _flush(self, connection: Connection) -> None:
        if connection not in self._connections:
            return
        try:
            sent = connection.socket.send(connection.unsent)
        except BlockingIOError:
            sent = 0
        except OSError:
            connection.unsent.clear()
            return  # the reader sees the end of this connection
        del connection.unsent[:sent]
        wanted = selectors.EVENT_READ | (selectors.EVENT_WRITE if connection.unsent else 0)
        self._selector.modify(connection.socket, wanted, connection)

    def _drop(self, connection: Connection) -> None:
        """The last copy of a connection is closed: its memory begins to come back."""
        if connection not in self._connections:
            return
        self._connections.remove(connection)
        self._selector.unregister(connection.socket)
        connection.socket.close()
        self._forget_pidfd(connection)
        self.reload()
        now = time.monotonic()
        for number in connection.allocations:
            self.machine.release(number, now)

    def _others(self, session: Session) -> bool:
        """Whether another client holds the device nodes open: it has NVML initialised."""
        return any(each.session.initialised and each.session is not session for each in self._connections)

    # --- memory

    def _allocate(self, connection: Connection, arguments: list[str], now: float) -> list[object]:
        if connection.session.pid == 0:
            raise Refused(codes.UNKNOWN, "the driver can't see this process: it must run in an outer PID namespace")
        if connection.pidfd is None:
            connection.pids = procs.pid_chain(connection.session.pid)
            connection.pidfd = procs.open_pidfd(connection.session.pid)
            if connection.pidfd is not None:
                self._selector.register(connection.pidfd, selectors.EVENT_READ, connection)
        gpu, mib, kind, listed, as_pid = arguments
        number = self.machine.allocate(
            self.machine.find(gpu),
            int(mib),
            frozenset(kind.split("+")),
            connection.pids,
            now,
            listed=listed == "1",
            as_pid=int(as_pid) if as_pid else None,
        )
        connection.allocations.append(number)
        if connection.pidfd is None:
            self.machine.died(number)
        return [number]

    def _process_ended(self, connection: Connection) -> None:
        self._forget_pidfd(connection)
        for number in connection.allocations:
            self.machine.died(number)

    def _forget_pidfd(self, connection: Connection) -> None:
        if connection.pidfd is not None:
            self._selector.unregister(connection.pidfd)
            os.close(connection.pidfd)
            connection.pidfd = None
