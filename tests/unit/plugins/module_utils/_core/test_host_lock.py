# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""One change at a time; the second one hears who is first."""

from __future__ import annotations

import errno
import multiprocessing
import os
import signal
import time
from multiprocessing.connection import Connection
from pathlib import Path

import pytest

from ansible_collections.gpufleet.vllm.plugins.module_utils._core.errors import GpuFleetError
from ansible_collections.gpufleet.vllm.plugins.module_utils._core.host_lock import HostLock, holder_of, quiet_since


def _hold(directory: str, ready: Connection) -> None:
    with HostLock(directory, "vllm_service started kimi"):
        ready.send("held")
        signal.pause()


def test_the_second_one_is_refused_with_who_and_since_when_and_a_dead_holder_holds_nothing(tmp_path: Path) -> None:
    here, there = multiprocessing.Pipe()
    holder = multiprocessing.get_context("fork").Process(target=_hold, args=(str(tmp_path), there))
    try:
        assert holder_of(str(tmp_path)) is None
        holder.start()
        assert here.recv() == "held"
        assert (holder_of(str(tmp_path)) or {})["pid"] == holder.pid
        with pytest.raises(GpuFleetError) as refused, HostLock(str(tmp_path), "another"):
            pass
        assert "vllm_service started kimi" in refused.value.msg
        assert f"(pid {holder.pid})" in refused.value.msg
        assert refused.value.result["lock_holder"]["pid"] == holder.pid
    finally:
        assert holder.pid is not None
        os.kill(holder.pid, signal.SIGKILL)
        holder.join()
    assert (tmp_path / "change.lock").read_text() != "", "the dead holder's note is still there"
    assert holder_of(str(tmp_path)) is None
    with HostLock(str(tmp_path), "another"):
        pass
    with HostLock(str(tmp_path), "again"):
        pass


def test_a_link_in_the_locks_place_is_not_followed(tmp_path: Path) -> None:
    target = tmp_path / "precious"
    target.write_text("theirs")
    (tmp_path / "change.lock").symlink_to(target)
    with pytest.raises(GpuFleetError, match="Cannot open the lock"), HostLock(str(tmp_path), "x"):
        pass
    assert target.read_text() == "theirs"


def test_the_file_tells_whether_somebody_had_the_lock_meanwhile(tmp_path: Path) -> None:
    directory = str(tmp_path)
    assert quiet_since(directory) == 0, "nobody ever took it"
    with HostLock(directory, "the first") as lock:
        assert lock.quiet_since == 0 and quiet_since(directory) is None
    first = quiet_since(directory)
    assert first
    with HostLock(directory, "nobody came between") as lock:
        assert lock.quiet_since == first
    time.sleep(0.02)  # the clock of files has ticks
    with HostLock(directory, "somebody did") as lock:
        assert lock.quiet_since != first


def test_everybody_may_look_whatever_the_umask_of_the_first_one(tmp_path: Path) -> None:
    run = tmp_path / "run" / "gpufleet"
    before = os.umask(0o077)
    try:
        with HostLock(str(run), "the first one"):
            pass
    finally:
        os.umask(before)
    assert [path.stat().st_mode & 0o777 for path in (run, run.parent)] == [0o755, 0o755]
    run.chmod(0o700)
    with HostLock(str(run), "somebody's own wish"):
        assert run.stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("call", ["pwrite", "ftruncate"])
def test_a_full_file_system_is_told_and_leaves_nobody_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str) -> None:
    def full(*_arguments: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patched:
        patched.setattr(os, call, full)
        with pytest.raises(GpuFleetError, match="change.lock: No space left on device. Free room in .*, then run again"):
            HostLock(str(tmp_path), "first").__enter__()
    with HostLock(str(tmp_path), "second"):
        pass
