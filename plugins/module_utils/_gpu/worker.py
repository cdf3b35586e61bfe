# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A child process that makes calls which may never return, and a parent that never waits longer than it said.

The child notes in shared memory what it is about to do and when: a step, "what" or "what on WHICH". The parent waits for the answer
until the current step, not the whole request, has taken ``timeout`` seconds, or the whole has taken its time; then it kills the child
and, when even SIGKILL does not help (a call stuck in the kernel), leaves it behind.
"""

from __future__ import annotations

import fcntl
import gc
import math
import mmap
import os
import select
import signal
import struct
import sys
import time
from typing import Any, Callable, Optional, Tuple

try:
    # what does the work: the module around it costs several times as much to load, for classes that nobody needs here
    from _pickle import dumps, loads
except ImportError:  # a Python without it
    from pickle import dumps, loads

from .._process.readers import take_reader_name

_STEP_SIZE = 256
# When the current step began, how long the slowest "on WHICH" before it took, the length of the text that follows.
_STEP_HEADER = struct.Struct("=ddH")
_LENGTH = struct.Struct("=Q")
_WHICH = " on "
# How long a killed child may take to be reaped before it is given up; where there is no time left for that, still so long.
_REAP_S = 0.5
_LEAST_REAP_S = 0.05
# poll() counts milliseconds in 32 bits; after so long it is asked again.
_LONGEST_POLL_S = 86400.0

Beat = Callable[[str], None]
Handler = Callable[[Any], Any]


class WorkerGone(Exception):
    """The child gave no answer: it hung (``hung``), or died. ``step`` is what it was doing; ``slowest`` how many seconds the
    slowest step "on WHICH" took that came to its end. ``late``: the whole time was over, and the step itself is not to blame."""

    def __init__(self, step: str, hung: bool, detail: str, slowest: float = 0.0, late: bool = False) -> None:
        super().__init__(detail)
        self.step = step
        self.hung = hung
        self.detail = detail
        self.slowest = slowest
        self.late = late


class Worker:
    """One forked child. ``make_handler`` is called in the child with the function that notes a step, and returns what
    answers requests; requests and answers are plain picklable data."""

    def __init__(self, make_handler: Callable[[Beat], Handler]) -> None:
        self._steps = mmap.mmap(-1, _STEP_SIZE)
        request_read, self._requests = os.pipe()
        self._answers, answer_write = os.pipe()
        self._pid = os.fork()
        if self._pid == 0:
            _child(make_handler, self._steps, request_read, answer_write)
        os.close(request_read)
        os.close(answer_write)
        self._alive = True

    @property
    def pid(self) -> int:
        """The child's pid."""
        return self._pid

    def ask(
        self, request: Any, timeout: float, meanwhile: Optional[Callable[[], None]] = None, until: float = math.inf
    ) -> Any:
        """The answer to a request; ``meanwhile`` is called while the child works on it. Raises as :meth:`finish` does."""
        self.begin(request)
        if meanwhile is not None:
            meanwhile()
        return self.finish(timeout, until)

    def begin(self, *requests: Any) -> None:
        """Hand the child its work, one request after the other; each answer is to be fetched with :meth:`finish`."""
        if not self._alive:
            raise WorkerGone("", False, "the reading process has ended")
        self._steps[: _STEP_HEADER.size] = _STEP_HEADER.pack(time.monotonic(), 0.0, 0)
        payloads = map(dumps, requests)
        try:
            os.write(self._requests, b"".join(_LENGTH.pack(len(payload)) + payload for payload in payloads))
        except BrokenPipeError:
            pass  # it is dead, which whoever waits for its answer is told

    def finish(self, timeout: float, until: float = math.inf, on_which: Optional[float] = None) -> Any:
        """The answer to the next request of those that were begun.

        Raises WorkerGone when a step takes longer than ``timeout`` seconds (one "on WHICH" longer than ``on_which``), when it is
        ``until`` (monotonic) and the child still at work, or when the child dies (the worker is closed then); RuntimeError with
        the child's traceback when the handler raised.
        """
        limits = timeout, timeout if on_which is None else on_which, until
        header = self._receive(_LENGTH.size, limits)
        success, value = loads(self._receive(_LENGTH.unpack(header)[0], limits))
        if not success:
            raise RuntimeError("The reading process failed:\n%s" % value)
        return value

    def close(self) -> None:
        """End the child and reap it if it lets itself be reaped."""
        if self._alive:
            self._stop()

    def _receive(self, size: int, limits: Tuple[float, float, float]) -> bytes:
        parts = b""
        heard = -math.inf  # while it writes a long answer, no step begins
        poller = select.poll()
        poller.register(self._answers, select.POLLIN)
        while len(parts) < size:
            started, _slowest, step = self._step()
            limit, until = limits[_WHICH in step], limits[2]
            due = max(started, heard) + limit
            left = min(due, until) - time.monotonic()
            # the next step may have a shorter limit than this one
            pause = min(left, limits[0], limits[1], _LONGEST_POLL_S)
            if not poller.poll(max(0, int(pause * 1000) + 1)):
                before, now = started, time.monotonic()
                started, slowest, step = self._step()
                if now < until and (now < due or started != before):
                    continue  # the step may have moved on meanwhile: look again
                self._stop(max(_LEAST_REAP_S, min(_REAP_S, until - now)))
                late = now < due
                within = "before the reading's time was over" if late else "within %g s" % round(limit, 2)
                raise WorkerGone(step, True, "%s did not answer %s" % (step or "the driver", within), slowest, late)
            part = os.read(self._answers, size - len(parts))
            if not part:
                raise self._died()
            parts += part
            heard = time.monotonic()
        return parts

    def _died(self) -> WorkerGone:
        _started, slowest, step = self._step()
        status = self._stop()
        how = "signal %d" % os.WTERMSIG(status) if status is not None and os.WIFSIGNALED(status) else "an unexpected exit"
        return WorkerGone(step, False, "%s ended the reading process by %s" % (step or "the driver's library", how), slowest)

    def _stop(self, reap: float = _REAP_S) -> Optional[int]:
        """Kill the child; its wait status, or None when it did not die in time and was left behind."""
        self._alive = False
        os.close(self._requests)
        os.close(self._answers)
        status: Optional[int] = None
        try:
            os.kill(self._pid, signal.SIGKILL)
        except ProcessLookupError:
            pass  # died by itself
        end = time.monotonic() + reap
        pause = 0.0002
        while True:
            try:
                pid, found = os.waitpid(self._pid, os.WNOHANG)
            except ChildProcessError:
                break  # reaped elsewhere (SIGCHLD ignored)
            if pid:
                status = found
                break
            if time.monotonic() >= end:
                break
            time.sleep(pause)
            pause = min(pause * 2, 0.01)
        self._steps.close()
        return status

    def _step(self) -> Tuple[float, float, str]:
        started, slowest, length = _STEP_HEADER.unpack(self._steps[: _STEP_HEADER.size])
        end = _STEP_HEADER.size + min(length, _STEP_SIZE - _STEP_HEADER.size)
        return started, slowest, self._steps[_STEP_HEADER.size: end].decode("utf-8", "replace")


def _note(steps: mmap.mmap, step: str, now: float) -> None:
    text = step.encode("utf-8")[: _STEP_SIZE - _STEP_HEADER.size]
    started, slowest, length = _STEP_HEADER.unpack(steps[: _STEP_HEADER.size])
    if _WHICH.encode("ascii") in steps[_STEP_HEADER.size: _STEP_HEADER.size + length]:
        slowest = max(slowest, now - started)
    steps[: _STEP_HEADER.size + len(text)] = _STEP_HEADER.pack(now, slowest, len(text)) + text


def _child(make_handler: Callable[[Beat], Handler], steps: mmap.mmap, requests: int, answers: int) -> None:
    """The child's whole life; never returns."""
    code = 1
    try:
        gc.disable()  # what the parent left behind must not be finalised here
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGALRM, signal.SIGCHLD, signal.SIGPIPE):
            signal.signal(number, signal.SIG_DFL)
        requests, answers = _only_descriptors(requests, answers)
        take_reader_name()
        handler = make_handler(lambda step: _note(steps, step, time.monotonic()))
        while True:
            header = _read(requests, _LENGTH.size)
            if not header:
                break  # the parent is done, or dead
            request = loads(_read(requests, _LENGTH.unpack(header)[0]))
            try:
                answer = dumps((True, handler(request)))
            except Exception:  # noqa: BLE001 - whatever it is, the parent must hear of it
                import traceback

                answer = dumps((False, traceback.format_exc()))
            _write(answers, _LENGTH.pack(len(answer)) + answer)
        code = 0
    finally:
        os._exit(code)


def _only_descriptors(requests: int, answers: int) -> Tuple[int, int]:
    """Keep the two pipes and nothing else: no lock, no connection of the parent's may live on in a child that hangs, and
    what the C library prints must not reach the parent's output."""
    requests, answers = (fcntl.fcntl(number, fcntl.F_DUPFD, 3) for number in (requests, answers))
    null = os.open(os.devnull, os.O_RDWR)
    for number in (0, 1, 2):
        os.dup2(null, number)
    sys.stdout = sys.stderr = open(os.devnull, "w", encoding="utf-8")  # those of the parent may stand on closed descriptors
    for name in os.listdir("/proc/self/fd"):
        if int(name) > 2 and int(name) not in (requests, answers, sys.stdout.fileno()):
            try:
                os.close(int(name))
            except OSError:
                pass  # the listing's own descriptor, closed already
    return requests, answers


def _read(descriptor: int, size: int) -> bytes:
    parts = b""
    while len(parts) < size:
        part = os.read(descriptor, size - len(parts))
        if not part:
            return b""
        parts += part
    return parts


def _write(descriptor: int, data: bytes) -> None:
    while data:
        data = data[os.write(descriptor, data):]
