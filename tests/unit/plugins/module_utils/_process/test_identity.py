# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A signal reaches the process that was looked at, or nobody."""

from __future__ import annotations

import dataclasses
import os
import signal
import subprocess
import sys
import time
from typing import Iterator

import pytest

from ansible_collections.gpufleet.vllm.plugins.module_utils._process import identity
from ansible_collections.gpufleet.vllm.plugins.module_utils._process.identity import open_proven
from ansible_collections.gpufleet.vllm.plugins.module_utils._process.procfs import read_process
from ansible_collections.gpufleet.vllm.plugins.module_utils._process.types import ProcessInfo


@pytest.fixture
def child() -> "Iterator[subprocess.Popen[bytes]]":
    """A process to signal."""
    started = subprocess.Popen([sys.executable, "-c", "import time; print(1, flush=True); time.sleep(60)"], stdout=subprocess.PIPE)
    assert started.stdout is not None and started.stdout.readline()
    yield started
    started.kill()
    started.communicate()


@pytest.fixture(params=["pidfd", "no pidfd"])
def _way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "no pidfd":
        monkeypatch.setattr(identity, "_open_pidfd", lambda pid: None)
    elif not hasattr(os, "pidfd_open"):
        pytest.skip("this Python has no pidfd_open")


def read(pid: int) -> ProcessInfo:
    """The process, which must exist."""
    info = read_process(pid)
    assert info is not None
    return info


@pytest.mark.usefixtures("_way")
def test_the_proven_process_gets_the_signal_and_its_end_is_seen_at_once(child: "subprocess.Popen[bytes]") -> None:
    with_open = open_proven(read(child.pid))
    assert with_open is not None
    with with_open as process:
        assert process.still_same() and not process.wait(0.05)
        started = time.monotonic()
        assert process.signal(signal.SIGTERM) == identity.SENT
        assert process.wait(10)
        assert time.monotonic() - started < 2
        assert child.wait(10) == -signal.SIGTERM
        assert process.signal(signal.SIGKILL) == identity.GONE
        assert not process.still_same()


@pytest.mark.usefixtures("_way")
@pytest.mark.parametrize("change", [{"start_ticks": 1}, {"uid": 12345}, {"exe": "/usr/bin/other"}])
def test_another_process_under_the_same_pid_is_refused(child: "subprocess.Popen[bytes]", change: "dict[str, object]") -> None:
    # what the number meant when it was looked at is not what it means now
    stale = dataclasses.replace(read(child.pid), **change)  # type: ignore[arg-type]
    assert open_proven(stale) is None
    process = identity.ProvenProcess(identity.Identity.of(stale), None)
    assert process.signal(signal.SIGKILL) == identity.CHANGED
    assert child.poll() is None


def test_exec_between_look_and_signal_is_noticed() -> None:
    code = "import os,sys; print(1, flush=True); sys.stdin.readline(); os.execv('/bin/sleep', ['sleep', '60'])"
    child = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        assert child.stdout is not None and child.stdin is not None and child.stdout.readline()
        process = open_proven(read(child.pid))
        assert process is not None
        with process:
            child.stdin.write(b"\n")
            child.stdin.flush()
            deadline = time.monotonic() + 10
            while read(child.pid).comm != "sleep" and time.monotonic() < deadline:
                time.sleep(0.01)
            assert process.signal(signal.SIGKILL) == identity.CHANGED
        assert child.poll() is None
    finally:
        child.kill()
        child.communicate()


@pytest.mark.usefixtures("_way")
def test_the_host_itself_and_its_own_line_are_never_held() -> None:
    for pid in (1, os.getpid(), os.getppid()):
        assert open_proven(read(pid)) is None
    fake = dataclasses.replace(read(1), pid=0)
    assert open_proven(fake) is None
    assert open_proven(dataclasses.replace(fake, pid=-1)) is None


@pytest.mark.usefixtures("_way")
def test_what_ended_is_not_held() -> None:
    ended = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    info = read(ended.pid)
    ended.kill()
    ended.wait()
    assert open_proven(info) is None


def test_a_zombie_counts_as_ended() -> None:
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    process = open_proven(read(child.pid))
    assert process is not None
    child.kill()
    try:
        assert process.wait(10)
        assert not process.still_same() and process.signal(signal.SIGTERM) == identity.GONE
    finally:
        process.close()
        child.wait()
