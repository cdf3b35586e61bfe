# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Ending processes, on real ones: TERM first, parents first, each its whole grace, and never somebody else."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any, Callable, Iterator, List

import pytest

from ansible_collections.gpufleet.vllm.plugins.module_utils._core.clock import Clock
from ansible_collections.gpufleet.vllm.plugins.module_utils._process.identity import ProvenProcess
from ansible_collections.gpufleet.vllm.plugins.module_utils._process.procfs import read_process
from ansible_collections.gpufleet.vllm.plugins.module_utils._process.types import ProcessInfo
from ansible_collections.gpufleet.vllm.plugins.module_utils._reclaim import processes as subject
from ansible_collections.gpufleet.vllm.plugins.module_utils._reclaim.done import Signalled
from ansible_collections.gpufleet.vllm.plugins.module_utils._reclaim.planned import Signal
from ansible_collections.gpufleet.vllm.tests.unit.plugins.module_utils._reclaim.world import holder

Start = Callable[[str], subprocess.Popen[str]]

IDLE = "print('up', flush=True); time.sleep(60)"
DEAF = "signal.signal(signal.SIGTERM, signal.SIG_IGN); " + IDLE


@pytest.fixture
def start() -> Iterator[Start]:
    """start(code) -> a Python process that has printed its first line."""
    children: List[subprocess.Popen[str]] = []

    def begin(code: str) -> subprocess.Popen[str]:
        child = subprocess.Popen(
            [sys.executable, "-S", "-c", "import os, signal, sys, time; " + code], stdout=subprocess.PIPE, text=True
        )
        children.append(child)
        assert child.stdout is not None
        child.stdout.readline()
        return child

    yield begin
    for child in children:
        child.kill()
        child.wait()
        assert child.stdout is not None
        child.stdout.close()


def read(pid: int) -> ProcessInfo:
    """A process that is there."""
    found = read_process(pid)
    assert found is not None
    return found


def end(*infos: ProcessInfo, grace: float = 5.0, holds: Callable[[int, str], bool] = lambda pid, root: True) -> List[Signalled]:
    """End processes as a plan would."""
    wanted = [Signal(holder(info.pid, info=info), "test") for info in infos]
    return subject.end_processes(wanted, grace, Clock(), "/proc", holds)


def test_term_is_enough_for_most(start: Start) -> None:
    child = start(IDLE)
    begun = time.monotonic()
    (result,) = end(read(child.pid))
    assert (result.outcome, result.signals) == ("terminated", ("TERM",))
    assert child.wait(5) == -signal.SIGTERM
    assert time.monotonic() - begun < 1.0


def test_kill_follows_after_the_whole_grace(start: Start) -> None:
    child = start(DEAF)
    begun = time.monotonic()
    (result,) = end(read(child.pid), grace=0.6)
    assert (result.outcome, result.signals) == ("killed", ("TERM", "KILL"))
    assert child.wait(5) == -signal.SIGKILL
    assert 0.6 <= time.monotonic() - begun < 2.0


def test_a_process_that_cleans_up_within_its_grace_is_not_killed(start: Start, tmp_path: Path) -> None:
    trace = tmp_path / "cleaned"
    clean_up = "lambda *a: (time.sleep(0.7), open(%r, 'w').close(), os._exit(0))" % str(trace)
    child = start("signal.signal(signal.SIGTERM, %s); %s" % (clean_up, IDLE))
    (result,) = end(read(child.pid), grace=3.0)
    assert (result.outcome, result.signals) == ("terminated", ("TERM",))
    assert trace.exists()


def test_a_stopped_process_can_act_on_its_term(start: Start) -> None:
    child = start(IDLE)
    child.send_signal(signal.SIGSTOP)
    for attempt in range(200):
        if read(child.pid).state == "T":
            break
        time.sleep(0.01)
    (result,) = end(read(child.pid), grace=3.0)
    assert (result.outcome, result.signals) == ("terminated", ("TERM",))


FAMILY = (
    "log = %r\n"
    "def told(who, then):\n"
    "    def handler(*a):\n"
    "        with open(log, 'a') as f: f.write(who + ' ' + str(time.monotonic()) + chr(10))\n"
    "        then()\n"
    "    return handler\n"
    "child = os.fork()\n"
    "if not child:\n"
    "    signal.signal(signal.SIGTERM, told('child', lambda: os._exit(0)))\n"
    "    time.sleep(60)\n"
    "signal.signal(signal.SIGTERM, told('parent', %s))\n"
    "time.sleep(0.1)\n"
    "print(child, flush=True)\n"
    "while True: time.sleep(1)\n"
)


def family(tmp_path: Path, on_term: str) -> Iterator[Any]:
    log = tmp_path / "log"
    parent = subprocess.Popen(
        [sys.executable, "-S", "-c", "import os, signal, sys, time\n" + FAMILY % (str(log), on_term)],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert parent.stdout is not None
    child = int(parent.stdout.readline())
    yield parent, child, log
    parent.kill()
    parent.wait()
    parent.stdout.close()
    left = read_process(child)
    if left is not None and left.ppid == 1:
        os.kill(child, signal.SIGKILL)


@pytest.fixture
def orderly(tmp_path: Path) -> Iterator[Any]:
    """A parent that takes its child down itself."""
    yield from family(tmp_path, "lambda: (os.kill(child, signal.SIGKILL), os.waitpid(child, 0), os._exit(0))")


@pytest.fixture
def deaf(tmp_path: Path) -> Iterator[Any]:
    """A parent that does not react."""
    yield from family(tmp_path, "lambda: None")


def test_a_parent_is_asked_before_its_children_are_hit(orderly: Any) -> None:
    parent, child, log = orderly
    results = {each.holder.pid: each for each in end(read(child), read(parent.pid), grace=4.0)}
    assert results[parent.pid].signals == ("TERM",)
    assert results[child].signals == () and results[child].outcome == "gone"
    assert [line.split()[0] for line in log.read_text().splitlines()] == ["parent"]


def test_children_of_a_deaf_parent_are_asked_after_a_while_and_each_gets_its_own_grace(deaf: Any) -> None:
    parent, child, log = deaf
    results = {each.holder.pid: each for each in end(read(child), read(parent.pid), grace=1.0)}
    assert results[parent.pid].signals == ("TERM", "KILL")
    assert results[child].signals == ("TERM",)
    lines = [line.split() for line in log.read_text().splitlines()]
    assert [who for who, _when in lines] == ["parent", "child"]
    assert 0.2 <= float(lines[1][1]) - float(lines[0][1]) < 0.9


def test_one_that_is_gone_was_not_signalled(start: Start) -> None:
    child = start(IDLE)
    info = read(child.pid)
    child.kill()
    child.wait()
    (result,) = end(info)
    assert (result.outcome, result.signals) == ("gone", ())


def test_a_pid_that_means_another_process_by_now_is_not_signalled(start: Start) -> None:
    child = start(IDLE)
    info = read(child.pid)
    (result,) = end(replace(info, start_ticks=info.start_ticks - 1))
    assert (result.outcome, result.signals) == ("gone", ())
    (result,) = end(replace(info, uid=info.uid + 1))
    assert (result.outcome, result.signals) == ("refused", ())
    (result,) = end(replace(info, exe="/usr/bin/other"))
    assert (result.outcome, result.signals) == ("refused", ())
    assert child.poll() is None


def test_one_that_let_go_of_the_gpu_is_left_alone(start: Start) -> None:
    child = start(IDLE)
    (result,) = end(read(child.pid), holds=lambda pid, root: False)
    assert (result.outcome, result.signals, result.detail) == ("refused", (), "it holds no GPU any more")
    assert child.poll() is None


def test_neither_itself_nor_its_ancestors_are_ever_signalled() -> None:
    results = end(read(os.getpid()), read(os.getppid()), read(1))
    assert [(each.outcome, each.signals) for each in results] == [("refused", ())] * 3


def test_one_that_survives_even_kill_is_reported_not_waited_for_without_end(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    child = start(IDLE)
    monkeypatch.setattr(subject, "KILL_WAIT_S", 0.3)
    # signals that arrive but end nothing, as on a process that the kernel does not let go of
    monkeypatch.setattr(ProvenProcess, "signal", lambda self, sig: "sent")
    begun = time.monotonic()
    (result,) = end(read(child.pid), grace=0.2)
    assert (result.outcome, result.signals) == ("survived", ("TERM", "KILL"))
    assert time.monotonic() - begun < 2.0


def test_the_rest_of_a_stopped_unit(start: Start) -> None:
    children = [start(IDLE), start(DEAF)]
    left = subject.end_all([read(each.pid) for each in children], 0.3, 2.0, Clock())
    assert left == []
    assert [each.wait(5) for each in children] == [-signal.SIGTERM, -signal.SIGKILL]
