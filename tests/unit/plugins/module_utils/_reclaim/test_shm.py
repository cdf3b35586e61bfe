# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What is left in shared memory: only known names, only what no live process has open or mapped, only seen twice."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import FrozenSet, Iterator, List

import pytest

from ansible_collections.gpufleet.vllm.plugins.module_utils._core.errors import GpuFleetError
from ansible_collections.gpufleet.vllm.plugins.module_utils._reclaim import shm as subject
from ansible_collections.gpufleet.vllm.plugins.module_utils._reclaim.done import ShmEntry
from ansible_collections.gpufleet.vllm.plugins.module_utils._reclaim.shm import find_stale, remove

MINE: FrozenSet[int] = frozenset({os.getuid()})


@pytest.fixture
def segments(tmp_path: Path) -> Path:
    """A directory with one entry of each kind."""
    for name in (
        "vllm_offload_3f1c9a", "vllm-lock", "sem.vllm_lock", "nccl-AbC123", "psm_0a1b2c3d", "sem.mp-k2j3h4",
        "PostgreSQL.1234", "psm_notes.txt", "sem.other", "pulse-shm-1",
    ):
        (tmp_path / name).write_bytes(b"x" * 4096)
    (tmp_path / "vllm_directory").mkdir()
    (tmp_path / "vllm_link").symlink_to("/etc/passwd")
    return tmp_path


def names(entries: List[ShmEntry]) -> List[str]:
    """The names alone."""
    return [os.path.basename(entry.path) for entry in entries]


KNOWN = ["nccl-AbC123", "psm_0a1b2c3d", "sem.mp-k2j3h4", "sem.vllm_lock", "vllm-lock", "vllm_offload_3f1c9a"]


def test_only_known_names_and_regular_files(segments: Path) -> None:
    assert names(find_stale(MINE, str(segments))) == KNOWN


def test_names_that_any_python_program_uses_count_only_for_known_owners(segments: Path) -> None:
    found = names(find_stale(frozenset({os.getuid() + 1}), str(segments)))
    assert found == [name for name in KNOWN if not name.startswith(("psm_", "sem.mp-"))]


def test_with_users_every_name_counts_only_for_them(segments: Path) -> None:
    assert find_stale(frozenset({os.getuid() + 1}), str(segments), strict=True) == []
    assert names(find_stale(MINE, str(segments), strict=True)) == KNOWN


def test_a_file_with_a_second_name_may_be_in_use_by_that_one(segments: Path) -> None:
    (segments / "anything").hardlink_to(segments / "vllm-lock")
    assert names(find_stale(MINE, str(segments))) == [name for name in KNOWN if name != "vllm-lock"]


def test_what_takes_its_place_after_the_second_look_stays(segments: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = find_stale(MINE, str(segments))
    again = find_stale(MINE, str(segments))
    fresh = segments / "vllm-lock"
    (segments / "staged").write_bytes(b"of a server that has just started")
    (segments / "staged").rename(fresh)
    assert "vllm-lock" not in names(list(remove(first, again))) and fresh.read_bytes().startswith(b"of a server")


@pytest.fixture
def users(segments: Path) -> Iterator[None]:
    """A process that maps one (and closed its descriptor), and holds another open."""
    code = (
        "import mmap, os, sys, time\n"
        "fd = os.open(sys.argv[1] + '/psm_0a1b2c3d', os.O_RDWR)\n"
        "held = mmap.mmap(fd, 4096)\n"
        "os.close(fd)\n"
        "other = open(sys.argv[1] + '/vllm_offload_3f1c9a')\n"
        "print('up', flush=True)\n"
        "time.sleep(60)\n"
    )
    child = subprocess.Popen([sys.executable, "-S", "-c", code, str(segments)], stdout=subprocess.PIPE)
    assert child.stdout is not None
    child.stdout.readline()
    yield
    child.kill()
    child.wait()
    child.stdout.close()


def test_what_a_live_process_has_open_or_mapped_stays(segments: Path, users: None) -> None:
    assert names(find_stale(MINE, str(segments))) == [
        name for name in KNOWN if name not in ("psm_0a1b2c3d", "vllm_offload_3f1c9a")
    ]


def test_only_what_two_looks_saw_unchanged_is_removed(segments: Path) -> None:
    first = find_stale(MINE, str(segments))
    touched = segments / "vllm-lock"
    touched.unlink()
    (segments / "keep-the-inode-busy").touch()
    touched.write_bytes(b"another one")
    (segments / "nccl-AbC123").unlink()
    (segments / "vllm_late").write_bytes(b"x")
    removed = remove(first, find_stale(MINE, str(segments)))
    assert names(list(removed)) == [name for name in KNOWN if name not in ("vllm-lock", "nccl-AbC123")]
    assert touched.exists() and (segments / "vllm_late").exists() and (segments / "PostgreSQL.1234").exists()
    assert not (segments / "vllm_offload_3f1c9a").exists()


def test_sizes_are_what_the_memory_really_holds(tmp_path: Path) -> None:
    with open(tmp_path / "vllm_offload_a", "wb") as handle:
        handle.truncate(1 << 30)  # a segment that was never written holds nothing
    with open(tmp_path / "vllm_offload_b", "wb") as handle:
        handle.write(b"x" * (3 << 20))
    found = find_stale(MINE, str(tmp_path))
    assert [entry.mib for entry in found] == [0, 3]
    assert found[1].to_result() == {"path": str(tmp_path / "vllm_offload_b"), "mib": 3}


def test_no_directory_no_leftovers(tmp_path: Path) -> None:
    assert find_stale(MINE, str(tmp_path / "none")) == []


def test_nothing_is_proven_where_a_process_cannot_be_seen(segments: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(base: str, wanted: object) -> object:
        if base == "/proc/%d" % os.getpid():
            raise PermissionError(13, "Permission denied")
        return set()

    monkeypatch.setattr(subject, "_opened", refuse)
    with pytest.raises(GpuFleetError, match="nothing in shared memory is proven stale"):
        find_stale(MINE, str(segments))
