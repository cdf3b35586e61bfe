# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Reading a model's files ahead: what is read, how much of it, and that nothing goes wrong by it."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path

import pytest

from ansible_collections.gpufleet.vllm.plugins.module_utils._service import warm as module
from ansible_collections.gpufleet.vllm.plugins.module_utils._service.interrupts import Interrupted
from ansible_collections.gpufleet.vllm.plugins.module_utils._service.warm import budget_bytes, warm, weight_files

MIB = 1024 * 1024


def model(directory: Path, **files: int) -> str:
    """A model directory with files of these sizes in MiB."""
    directory.mkdir()
    for name, size in files.items():
        (directory / name.replace("__", ".")).write_bytes(b"\0" * (size * MIB))
    return str(directory)


def always() -> bool:
    return True


def test_all_weights_are_read_and_nothing_else(tmp_path: Path) -> None:
    path = model(tmp_path / "m", a__safetensors=2, b__safetensors=3, c__bin=9, config__json=1)
    seen: list[tuple[int, int]] = []
    done = warm(path, 100 * MIB, always, lambda read, total: seen.append((read, total)))
    assert (done.read_mib, done.total_mib, done.note) == (5, 5, None)
    assert seen[-1] == (5, 5)


def test_the_first_of_the_known_formats_is_the_one(tmp_path: Path) -> None:
    path = model(tmp_path / "m", a__gguf=1, b__bin=2)
    assert [os.path.basename(file) for file, _size in weight_files(path)] == ["b.bin"]


def test_a_second_copy_of_the_weights_is_left_out_unless_it_is_the_only_one(tmp_path: Path) -> None:
    both = model(tmp_path / "both", model__safetensors=1, consolidated__safetensors=1)
    assert [os.path.basename(file) for file, _size in weight_files(both)] == ["model.safetensors"]
    only = model(tmp_path / "only", consolidated__safetensors=1)
    assert [os.path.basename(file) for file, _size in weight_files(only)] == ["consolidated.safetensors"]


def test_no_more_is_read_than_there_is_room_for_and_the_first_files_come_first(tmp_path: Path) -> None:
    path = model(tmp_path / "m", a__safetensors=2, b__safetensors=2, c__safetensors=2)
    done = warm(path, 3 * MIB, always)
    assert done.read_mib == 3
    assert done.note == "there is room for 3 of 6 MiB in the page cache"


def test_links_of_a_download_cache_are_followed_and_dangling_ones_left_out(tmp_path: Path) -> None:
    blobs = model(tmp_path / "blobs", x=2)
    snapshot = tmp_path / "snapshot"
    snapshot.mkdir()
    (snapshot / "a.safetensors").symlink_to(os.path.join(blobs, "x"))
    (snapshot / "b.safetensors").symlink_to(os.path.join(blobs, "gone"))
    done = warm(str(snapshot), 100 * MIB, always)
    assert (done.read_mib, done.total_mib, done.note) == (2, 2, None)


def test_it_ends_when_it_may_not_go_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = model(tmp_path / "m", a__safetensors=20)
    stuck(monkeypatch)
    done = warm(path, 100 * MIB, lambda: False)
    assert done.read_mib == 0
    assert done.note == "the time for it was up"


def stuck(monkeypatch: pytest.MonkeyPatch) -> None:
    """A file server that no longer answers."""
    monkeypatch.setattr(module, "_next_data", lambda fd, at, limit: threading.Event().wait())


def test_a_file_server_that_gives_nothing_is_not_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = model(tmp_path / "m", a__safetensors=2)
    stuck(monkeypatch)
    begun = time.monotonic()
    done = warm(path, 100 * MIB, always, stuck_s=0.5)
    assert done.note == "nothing came from the disk any more" and time.monotonic() - begun < 10


def test_what_asks_the_job_to_end_gets_through(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = model(tmp_path / "m", a__safetensors=2)
    stuck(monkeypatch)

    def asked_to_end() -> bool:
        raise Interrupted("This change was asked to end (SIGTERM).")

    with pytest.raises(Interrupted):
        warm(path, 100 * MIB, asked_to_end)


def test_the_end_of_the_last_reader_is_seen_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = model(tmp_path / "m", a__safetensors=1, b__safetensors=2)
    second_begun, real = threading.Event(), module._next_data

    def slow_at_the_second(fd: int, at: int, limit: int) -> int:
        if os.fstat(fd).st_size == 2 * MIB:
            second_begun.set()
            time.sleep(0.2)
        assert second_begun.wait(10)
        return real(fd, at, limit)

    monkeypatch.setattr(module, "_next_data", slow_at_the_second)
    monkeypatch.setattr(module, "_LOOK_S", 60.0)
    begun = time.monotonic()
    assert warm(path, 100 * MIB, always).read_mib == 3
    assert time.monotonic() - begun < 30


def test_holes_are_not_read(tmp_path: Path) -> None:
    path = model(tmp_path / "m", a__safetensors=1)
    with open(tmp_path / "m" / "a.safetensors", "r+b") as handle:
        handle.truncate(1 << 40)
    begun = time.monotonic()
    done = warm(path, 1 << 41, always)
    assert (done.read_mib, done.total_mib, done.note) == (1 << 20, 1 << 20, None) and time.monotonic() - begun < 10


def test_what_cannot_be_read_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert warm(str(tmp_path / "nowhere"), MIB, always).note == "no weight files were found"
    became_a_directory = [(str(tmp_path), MIB)]
    monkeypatch.setattr(module, "weight_files", lambda path: became_a_directory)
    done = warm("m", 100 * MIB, always)
    assert done.read_mib == 0
    assert done.note is not None and done.note.startswith("1 files could not be read (%s" % tmp_path)


def test_the_room_is_a_share_of_what_is_available() -> None:
    assert budget_bytes("MemTotal: 100 kB\nMemAvailable:   1000 kB\n") == 700 * 1024
    assert budget_bytes("MemTotal: 100 kB\n") == 0
    assert budget_bytes("MemAvailable: many\n") == 0
