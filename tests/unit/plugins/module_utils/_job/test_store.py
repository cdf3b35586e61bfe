# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The record, what came of it, and the progress: whole or not there, and for whom they are meant."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

import pytest

from ansible_collections.gpufleet.vllm.plugins.module_utils._core.errors import GpuFleetError
from ansible_collections.gpufleet.vllm.plugins.module_utils._core.files import (
    WantedFile,
    apply_change,
    compare,
    restore,
)
from ansible_collections.gpufleet.vllm.plugins.module_utils._core.scrub import scrubber
from ansible_collections.gpufleet.vllm.plugins.module_utils._job.progress import Progress, follow, read
from ansible_collections.gpufleet.vllm.plugins.module_utils._job.record import undo_from_json, undo_to_json
from ansible_collections.gpufleet.vllm.plugins.module_utils._job.store import Store, wait_for_result
from ansible_collections.gpufleet.vllm.plugins.module_utils._job.watch import of_interest
from ansible_collections.gpufleet.vllm.plugins.module_utils._service.outcome import Undo
from ansible_collections.gpufleet.vllm.tests.unit.plugins.module_utils._service.world import managed


def test_one_record_at_a_time_for_root_alone(tmp_path: Path) -> None:
    store = Store(str(tmp_path / "var" / "change"))
    assert store.load() is None and not store.exists()
    assert store.create({"id": "a"}) and not store.create({"id": "b"})
    assert store.load() == {"id": "a"}
    assert stat.S_IMODE(os.stat(tmp_path / "var" / "change").st_mode) == 0o700
    assert stat.S_IMODE(os.stat(tmp_path / "var" / "change" / "record.json").st_mode) == 0o600
    store.save({"id": "a", "stage": "x"})
    store.finish({"id": "a", "result": {"ready": True}})
    assert not store.exists() and store.last() == {"id": "a", "result": {"ready": True}}
    assert [path.name for path in (tmp_path / "var" / "change").iterdir()] == ["last.json"]


def test_what_came_of_a_change_is_told_for_that_change(tmp_path: Path) -> None:
    store = Store(str(tmp_path))
    store.create({"id": "a"})
    assert wait_for_result("a", 0, str(tmp_path)) == {"id": "a", "done": False}
    store.finish({"id": "a", "result": {"ready": True}})
    assert wait_for_result("a", 0, str(tmp_path)) == {"id": "a", "done": True, "result": {"ready": True}}
    assert wait_for_result("b", 0, str(tmp_path)) == {"id": "b", "done": False, "unknown": True}


@pytest.mark.parametrize("text", ["{", "[]", ""])
def test_a_record_that_somebody_spoiled_is_named_with_what_to_do(tmp_path: Path, text: str) -> None:
    (tmp_path / "record.json").write_text(text)
    with pytest.raises(GpuFleetError, match=r"record\.json.*[Rr]emove the file"):
        Store(str(tmp_path)).load()


def test_an_undo_comes_back_from_the_disk_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "vllm.yaml"
    path.write_bytes(b"before\xff")
    os.chmod(path, 0o640)
    os.utime(path, ns=(1_700_000_000_123_456_789, 1_700_000_001_987_654_321))
    before = path.stat()
    change = compare(WantedFile(str(path), b"after", 0o644, os.getuid(), os.getgid()))
    created = compare(WantedFile(str(tmp_path / "new"), b"x", 0o600, os.getuid(), os.getgid(), secret=True))
    assert change is not None and created is not None
    undo = Undo(changes=[change, created], unit_text=True, started="b", disabled=["c"], enabled=["d"], down_since=1.5, down_at=2.5)
    undo.will_stop(managed("old", gpus=(0, 3), gpu_uuids=("MIG-1",)), served=True)
    for each in undo.changes:
        apply_change(each)
    back = undo_from_json(undo_to_json(undo))
    assert back.stopped == undo.stopped and (back.unit_text, back.started, back.disabled, back.enabled) == (True, "b", ["c"], ["d"])
    assert (back.down_since, back.down_at) == (1.5, 2.5)
    for each in reversed(back.changes):
        restore(each)
    after = path.stat()
    assert path.read_bytes() == b"before\xff" and (after.st_mode, after.st_mtime_ns) == (before.st_mode, before.st_mtime_ns)
    assert not (tmp_path / "new").exists()


def test_news_are_for_everybody_counted_and_told_once(tmp_path: Path) -> None:
    path = str(tmp_path / "run" / "progress.json")
    assert follow("a", 0, 0, path) == {"id": "a", "seq": 0, "unknown": True}
    progress = Progress(path, "a", unit="vllm-new.service")
    progress.tell(phase="load", shards="1/8")
    progress.tell(phase="load")
    assert read(path) == {"id": "a", "seq": 1, "unit": "vllm-new.service", "phase": "load", "shards": "1/8"}
    assert stat.S_IMODE(os.stat(path).st_mode) == 0o644
    again = Progress(path, "a", unit="vllm-new.service")  # the job was killed and started again
    again.tell(phase="rollback")
    assert follow("a", 1, 5, path)["seq"] == 2 and follow("-", 0, 0, path)["phase"] == "rollback"
    assert follow("a", 2, 0, path)["seq"] == 2 and follow("b", 0, 0, path)["unknown"]
    Progress(path, "b").tell(phase="load")
    assert follow("b", 0, 0, path)["seq"] == 1


def test_news_that_cannot_be_told_stop_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "run").write_text("in the way")
    progress = Progress(str(tmp_path / "run" / "progress.json"), "a")
    progress.tell(phase="load")
    progress.tell(phase="commit")
    assert capsys.readouterr().err.count("Progress cannot be told") == 1


def test_secrets_are_taken_out_of_everything_that_is_told() -> None:
    scrub = scrubber(["sk-long-secret", "abc", "two\nlines"])
    told = scrub({"msg": "key sk-long-secret failed", "data": [("abc", "two\nlines", 1, None, "lines")]})
    assert "sk-long-secret" not in str(told) and "lines" not in str(told) and told["data"][0][2:4] == [1, None]
    assert told["data"][0][0] == "abc"


@pytest.mark.parametrize("secret", ["fail", "failed", "rolled_back", "diagnosis", "load"])
def test_a_secret_that_is_a_word_of_ours_hides_no_failure(secret: str) -> None:
    result = {"failed": True, "rolled_back": False, "diagnosis": {"kind": "unknown"}, "timings": {"load": 1.0}, "msg": "it is " + secret}
    told = scrubber([secret])(result)
    assert secret not in told.pop("msg")
    result.pop("msg")
    assert told == result


def test_only_lines_about_the_load_are_told_without_control_characters() -> None:
    lines = [
        "(EngineCore pid=1) INFO [loader.py] Loading safetensors checkpoint shards:  19% Completed | 12/64 [00:01<00:05,  9.1it/s]",
        "\x1b[32m(Worker_TP0 pid=2) INFO Model loading took 91.2 GiB and 62.1 seconds\x1b[0m\r",
        "INFO: 10.0.0.1 - \"POST /v1/completions\" prompt: 'something private'",
    ]
    assert of_interest(lines) == {"line": "(Worker_TP0 pid=2) INFO Model loading took 91.2 GiB and 62.1 seconds", "shards": "12/64"}
    assert of_interest(lines[2:]) == {}


def test_what_came_of_a_change_is_told_also_with_a_disk_that_is_full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    directory, spare = tmp_path / "change", tmp_path / "run"
    spare.mkdir()
    store = Store(str(directory), str(spare))
    store.create({"id": "a"})
    store.finish({"id": "a", "ended": 1.0, "result": 1})
    store.create({"id": "b"})
    real = os.fsync

    def full(fd: int) -> None:
        if os.readlink("/proc/self/fd/%d" % fd).startswith(str(directory / ".new-")):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        real(fd)

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(GpuFleetError, match="Cannot write to .*change: No space left on device"):
        store.save({"id": "b", "stage": "x"})
    store.finish({"id": "b", "ended": 2.0, "result": 2})
    assert not store.exists() and store.last() == {"id": "b", "ended": 2.0, "result": 2}
    assert sorted(path.name for path in directory.iterdir()) == ["last.json"], "a part of a file was left behind"
    assert stat.S_IMODE(os.stat(next(spare.iterdir())).st_mode) == 0o600
    monkeypatch.setattr(os, "fsync", real)
    store.create({"id": "c"})
    store.finish({"id": "c", "ended": 3.0, "result": 3})
    assert store.last() == {"id": "c", "ended": 3.0, "result": 3} and not list(spare.iterdir())
