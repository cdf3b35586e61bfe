# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The child that may hang, and the parent that does not."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Iterator

import pytest

from ansible_collections.gpufleet.vllm.plugins.module_utils._gpu import child as child_module
from ansible_collections.gpufleet.vllm.plugins.module_utils._gpu import driver
from ansible_collections.gpufleet.vllm.plugins.module_utils._gpu.raw import RawReading
from ansible_collections.gpufleet.vllm.plugins.module_utils._gpu.worker import Beat, Handler, Worker, WorkerGone
from ansible_collections.gpufleet.vllm.plugins.module_utils._process.readers import READER_NAME


def handler(beat: Beat) -> Handler:
    """Answers requests that are a verb and an argument."""

    def handle(request: Any) -> Any:
        verb, argument = request
        if verb == "echo":
            return argument
        if verb == "steps":
            for number in range(argument):
                beat("step %d" % number)
                time.sleep(0.1)
            return "done"
        if verb == "hang":
            if argument == "ignoring":
                signal.signal(signal.SIGTERM, signal.SIG_IGN)
            beat("the call that hangs")
            time.sleep(600)
        if verb == "slow, then hang":
            beat("slow, about nothing")
            time.sleep(2 * argument)
            beat("slow on GPU 1")
            time.sleep(argument)
            beat("the call that hangs")
            time.sleep(600)
        if verb == "crash":
            beat("the call that crashes")
            os.kill(os.getpid(), signal.SIGSEGV)
        if verb == "print":
            os.write(1, b"rubbish")
            os.write(2, b"rubbish")
            print("rubbish")
            return None
        if verb == "descriptors":
            links = [Path("/proc/self/fd") / name for name in os.listdir("/proc/self/fd")]
            return [os.readlink(link) for link in links if link.is_symlink()]
        raise ValueError("no verb %s" % verb)

    return handle


@pytest.fixture
def worker() -> Iterator[Worker]:
    """A worker, closed afterwards."""
    started = Worker(handler)
    yield started
    started.close()


def test_requests_of_any_size_are_answered(worker: Worker) -> None:
    big = {"list": list(range(100_000)), "none": None}
    assert worker.ask(("echo", big), 10) == big
    assert worker.ask(("echo", 1), 10) == 1


def test_the_limit_is_for_one_step_not_for_all(worker: Worker) -> None:
    assert worker.ask(("steps", 6), 0.4) == "done"


@pytest.mark.parametrize("kind", ["plain", "ignoring"])
def test_a_call_that_hangs_is_given_up_and_named(worker: Worker, kind: str) -> None:
    started = time.monotonic()
    with pytest.raises(WorkerGone, match="the call that hangs did not answer within 0.3 s") as gone:
        worker.ask(("hang", kind), 0.3)
    assert 0.3 <= time.monotonic() - started < 2
    assert gone.value.hung and gone.value.step == "the call that hangs"
    with pytest.raises(ProcessLookupError):
        os.kill(worker.pid, 0)
    with pytest.raises(WorkerGone):
        worker.ask(("echo", 1), 1)


def test_a_child_that_does_not_even_die_is_left_behind(worker: Worker, monkeypatch: pytest.MonkeyPatch) -> None:
    # a process in state D does not die of SIGKILL: waiting for it would hang us with it
    real = os.kill
    monkeypatch.setattr(os, "kill", lambda pid, number: None)
    started = time.monotonic()
    with pytest.raises(WorkerGone):
        worker.ask(("hang", "plain"), 0.2)
    assert time.monotonic() - started < 2
    monkeypatch.undo()
    real(worker.pid, signal.SIGKILL)
    os.waitpid(worker.pid, 0)


def test_a_crash_is_told_apart_from_a_hang(worker: Worker) -> None:
    with pytest.raises(WorkerGone, match="signal 11") as gone:
        worker.ask(("crash", None), 5)
    assert not gone.value.hung and gone.value.step == "the call that crashes"


def test_what_the_child_prints_goes_nowhere(worker: Worker, capfd: pytest.CaptureFixture[str]) -> None:
    worker.ask(("print", None), 5)
    assert capfd.readouterr() == ("", "")


def test_the_child_keeps_no_descriptor_of_the_parents(tmp_path: Path) -> None:
    with (tmp_path / "lock").open("w") as lock:
        worker = Worker(handler)
        held = worker.ask(("descriptors", None), 5)
        worker.close()
        assert lock.fileno() > 2
    # 0, 1, 2, the two pipes, and the one that lists them
    assert len(held) <= 6


def test_an_exception_in_the_child_reaches_the_parent(worker: Worker) -> None:
    with pytest.raises(RuntimeError, match="no verb nonsense"):
        worker.ask(("nonsense", None), 5)
    assert worker.ask(("echo", 2), 5) == 2


def test_the_child_ends_with_its_parent(tmp_path: Path) -> None:
    code = """
import os, sys, time
from ansible_collections.gpufleet.vllm.plugins.module_utils._gpu.worker import Worker
worker = Worker(lambda beat: lambda request: request)
worker.ask(1, 5)
print(worker.pid, flush=True)
os._exit(0)
"""
    collections = Path(__file__).resolve().parents[5] / "collections"
    done = subprocess.run([sys.executable, "-c", code], env={**os.environ, "PYTHONPATH": str(collections)},
                          capture_output=True, text=True, check=True, timeout=30)
    pid = int(done.stdout)
    deadline = time.monotonic() + 5
    while Path("/proc/%d" % pid).exists() and "Z" not in Path("/proc/%d/stat" % pid).read_text().rsplit(")", 1)[1][:3]:
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_the_slowest_step_on_something_that_came_back_is_known(worker: Worker) -> None:
    """What it took to get ready says nothing about how long a question may take."""
    with pytest.raises(WorkerGone) as gone:
        worker.ask(("slow, then hang", 0.3), 0.9)
    assert 0.3 <= gone.value.slowest < 0.6


def test_a_step_on_something_has_a_limit_of_its_own(worker: Worker) -> None:
    worker.begin(("slow, then hang", 0.4))
    with pytest.raises(WorkerGone, match="slow on GPU 1 did not answer within 0.2 s") as gone:
        worker.finish(5.0, on_which=0.2)
    assert not gone.value.late


def test_the_whole_has_an_end_also_where_every_step_answers(worker: Worker) -> None:
    worker.ask(("echo", 1), 10)
    started = time.monotonic()
    with pytest.raises(WorkerGone, match=r"step \d did not answer before the reading's time was over") as gone:
        worker.ask(("steps", 100), 5.0, None, started + 0.45)
    assert gone.value.late and gone.value.hung and 0.45 <= time.monotonic() - started < 2


def test_several_work_at_once_and_one_that_hangs_is_not_waited_for_twice() -> None:
    """Answers of any length wait until somebody fetches them, and the time that takes is not held against the child."""
    started = time.monotonic()
    workers = [Worker(handler) for _number in range(4)]
    try:
        workers[0].begin(("hang", "plain"))
        workers[1].begin(("echo", 1), ("echo", "x" * 300_000), ("steps", 2))
        for hung in workers[2:]:
            hung.begin(("hang", "plain"))
        for hung in (workers[0], *workers[2:]):
            with pytest.raises(WorkerGone, match="the call that hangs did not answer within 2 s"):
                hung.finish(2.0)
        assert time.monotonic() - started < 5.5
        assert workers[1].finish(30.0) == 1 and len(workers[1].finish(30.0)) == 300_000 and workers[1].finish(30.0) == "done"
    finally:
        for worker in workers:
            worker.close()


@pytest.mark.parametrize("limit", [1e9, 1e308, float("inf")])
def test_a_limit_beyond_the_systems_timers_is_a_limit(worker: Worker, limit: float) -> None:
    assert worker.ask(("steps", 1), limit) == "done"


def test_a_reader_says_what_it_is(worker: Worker) -> None:
    worker.ask(("echo", 1), 10)
    assert Path("/proc/%d/comm" % worker.pid).read_text(encoding="ascii").strip() == READER_NAME


def test_a_child_that_could_not_be_ended_is_still_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    """It hangs in the kernel with the GPUs' nodes open, and must not be taken for somebody who has memory there."""
    child = subprocess.Popen(["sleep", "60"])

    class Stuck:
        pid = child.pid

        def __init__(self, _make_handler: object) -> None:
            pass

        def ask(self, *_arguments: object) -> RawReading:
            raise WorkerGone("nvmlInit_v2", True, "it hung")

    monkeypatch.setattr(child_module, "Worker", Stuck)
    reader = driver.Driver("nvml", 60.0, None, "/proc", "/dev")
    try:
        reader.read(None, False, 1)
        assert reader.helpers == [child.pid]
    finally:
        child.kill()
        child.wait()
    assert reader.helpers == []  # its number may be another's from now on
