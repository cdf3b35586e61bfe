# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What goes wrong in what only helps does not keep a change from its end, nor a host from its server."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any, NoReturn

import pytest

from ansible_collections.gpufleet.vllm.plugins.module_utils._core.runner import Runner
from ansible_collections.gpufleet.vllm.plugins.module_utils._core.unpacked import unpacked
from ansible_collections.gpufleet.vllm.plugins.module_utils._core.zipapp import build
from ansible_collections.gpufleet.vllm.plugins.module_utils._job import main as program
from ansible_collections.gpufleet.vllm.plugins.module_utils._job.progress import Progress
from ansible_collections.gpufleet.vllm.plugins.module_utils._service import transaction
from ansible_collections.gpufleet.vllm.tests.unit.plugins.module_utils._job.host import NEW, OLD, Host, Reader, patch


def _failing(host: Host) -> None:
    host.install("old")
    host.begin(env={"HINT": "broken"})


@pytest.mark.parametrize("fault", [OSError(5, "Input/output error"), RuntimeError("the driver's process is gone"), KeyError("used")])
def test_a_driver_that_breaks_with_the_new_server_keeps_no_old_one_down(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: Exception
) -> None:
    patch(monkeypatch)
    host = Host(tmp_path)
    _failing(host)
    real = Reader.snapshot

    def snapshot(self: Reader, gpus: Any = None, processes: bool = True) -> Any:
        if NEW in host.started_with:
            raise fault
        return real(self, gpus, processes)

    monkeypatch.setattr(Reader, "snapshot", snapshot)
    if isinstance(fault, KeyError):  # what no reader raises would also end the look at the GPUs that is told at the end
        monkeypatch.setattr("ansible_collections.gpufleet.vllm.plugins.module_utils._service.run._gpus_now", lambda *_given: [])
    host.live()
    result = host.result()
    assert host.serving() == [OLD] == host.at_boot() and not host.store.exists()
    assert result["rolled_back"] and any("Before the old service was started again" in each for each in result["warnings"]), result


def test_a_step_that_fails_as_nobody_foresaw_does_not_end_the_way_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    patch(monkeypatch)
    host = Host(tmp_path)
    _failing(host)
    real = host.units.reset_failed
    calls = []

    def reset_failed(unit: str) -> None:
        calls.append(unit)
        if unit == NEW and calls.count(NEW) == 2:  # before its start, and after its end
            raise TypeError("a fault of ours")
        real(unit)

    monkeypatch.setattr(host.units, "reset_failed", reset_failed)
    host.live()
    assert host.serving() == [OLD] == host.at_boot()
    assert "TypeError: a fault of ours" in host.result()["msg"]


def test_a_failure_that_cannot_be_explained_is_undone_all_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    patch(monkeypatch)
    host = Host(tmp_path)
    _failing(host)

    def explained(*_given: Any) -> NoReturn:
        raise ValueError("a line that nobody foresaw")

    monkeypatch.setattr(transaction.Transaction, "_explained", explained)
    host.live()
    result = host.result()
    assert host.serving() == [OLD] and result["rolled_back"] and "vllm-new.service failed" in result["msg"]
    assert any("a line that nobody foresaw" in each for each in result["warnings"])


def test_an_unforeseen_fault_is_in_the_journal_without_secrets(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    patch(monkeypatch)
    host = Host(tmp_path)
    host.install("old")
    host.begin(secrets={"VLLM_API_KEY": "hush-hush"})

    def start(*_given: Any) -> NoReturn:
        raise TypeError("hush-hush is no number")

    monkeypatch.setattr(transaction.Transaction, "_start", start)
    host.live()
    said, msg = capsys.readouterr().err, host.result()["msg"]
    assert "Traceback" in said and "TypeError: ******** is no number" in said and "hush-hush" not in said + msg
    assert "journalctl -u gpufleet-change.service" in msg and host.serving() == [OLD]


def test_a_program_that_cannot_be_unpacked_runs(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def popen(*_given: Any, **_more: Any) -> NoReturn:
        raise BlockingIOError(11, "Resource temporarily unavailable")

    monkeypatch.setattr(subprocess, "Popen", popen)
    monkeypatch.setattr(sys, "argv", [__file__])
    program._unpack_beside()
    assert "not unpacked for its next start" in capsys.readouterr().err


def test_the_guard_is_unpacked_with_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    change, guard = tmp_path / "change.pyz", tmp_path / "guard.pyz"
    places = [(str(change), str(tmp_path / "code")), (str(guard), str(tmp_path / "guard-code"))]
    monkeypatch.setattr(program, "_programs", lambda: places)
    left: list[list[str]] = []
    monkeypatch.setattr(Runner, "leave", left.append)
    change.write_bytes(build("_job.main", "changed", places[0][1]))
    guard.write_bytes(build("_guard.main", "guarded", places[1][1]))
    program._unpack_beside()
    assert len(left) == 1 and left[0][-1] == "unpack"
    assert program.main(["unpack"]) == 0 and all(unpacked(*each) for each in places)
    program._unpack_beside()
    assert len(left) == 1
    # Of two of which one can't be, the other is.
    guard.write_bytes(b"no zip file at all")
    change.write_bytes(change.read_bytes())
    os.utime(change, (1, 1))
    assert program.main(["unpack"]) == 1 and unpacked(*places[0]) and "guard.pyz cannot be unpacked" in capsys.readouterr().err


def test_everybody_may_read_how_far_it_is_under_the_umask_of_a_unit(tmp_path: Path) -> None:
    path = tmp_path / "run" / "progress.json"
    before = os.umask(0o077)
    try:
        Progress(str(path), "a").tell(phase="load")
    finally:
        os.umask(before)
    assert [each.stat().st_mode & 0o777 for each in (path, path.parent)] == [0o644, 0o755]
