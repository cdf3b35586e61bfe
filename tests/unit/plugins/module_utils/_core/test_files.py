# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Files are written whole or not at all, and a diff never tells a secret."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from ansible_collections.gpufleet.vllm.plugins.module_utils._core.errors import GpuFleetError
from ansible_collections.gpufleet.vllm.plugins.module_utils._core.files import (
    WantedFile,
    apply_change,
    changes,
    compare,
    make_directory,
    restore,
)

UID, GID = os.geteuid(), os.getegid()


def wanted(path: Path, content: bytes | None = b"new\n", mode: int = 0o644, **more: bool) -> WantedFile:
    return WantedFile(str(path), content, mode, UID, GID, **more)


def test_a_file_is_created_with_its_mode_and_a_second_look_finds_nothing_to_do(tmp_path: Path) -> None:
    path = tmp_path / "etc" / "vllm" / "a.env"
    change = compare(wanted(path, mode=0o600))
    assert change is not None and change.what == "created"
    apply_change(change)
    assert path.read_bytes() == b"new\n"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert compare(wanted(path, mode=0o600)) is None
    assert os.listdir(path.parent) == ["a.env"], "a temporary file was left behind"


@pytest.mark.parametrize(("before", "mode", "after", "what"), [
    (b"old\n", 0o644, b"new\n", "content"), (b"new\n", 0o600, b"new\n", "mode"), (b"old\n", 0o644, None, "removed"),
])
def test_each_kind_of_change_is_made_and_undone(tmp_path: Path, before: bytes, mode: int, after: bytes | None, what: str) -> None:
    path = tmp_path / "file"
    path.write_bytes(before)
    path.chmod(mode)
    change = compare(wanted(path, after))
    assert change is not None and change.what == what
    apply_change(change)
    assert (path.read_bytes() if path.exists() else None) == after
    restore(change)
    assert path.read_bytes() == before
    assert stat.S_IMODE(path.stat().st_mode) == mode


def test_a_mode_is_set_without_touching_the_content_or_its_time(tmp_path: Path) -> None:
    path = tmp_path / "unit"
    path.write_bytes(b"new\n")
    path.chmod(0o664)
    os.utime(path, (1_000_000_000, 1_000_000_000))
    before = path.stat()
    change = compare(wanted(path))
    assert change is not None and change.what == "mode"
    for step, mode in ((apply_change, 0o644), (restore, 0o664)):
        step(change)
        after = path.stat()
        assert stat.S_IMODE(after.st_mode) == mode and path.read_bytes() == b"new\n"
        assert (after.st_mtime_ns, after.st_ino) == (before.st_mtime_ns, before.st_ino)
    assert os.listdir(tmp_path) == ["unit"]


def test_an_owner_is_set_without_touching_the_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "unit"
    path.write_bytes(b"new\n")
    path.chmod(0o644)
    os.utime(path, (1_000_000_000, 1_000_000_000))
    given: list[tuple[int, int]] = []
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(os, "fchown", lambda _fd, uid, gid: given.append((uid, gid)))
    change = compare(WantedFile(str(path), b"new\n", 0o644, UID + 1, GID + 2))
    assert change is not None and change.what == "mode"
    apply_change(change)
    assert given == [(UID + 1, GID + 2)] and path.stat().st_mtime == 1_000_000_000


def test_undoing_a_creation_removes_the_file(tmp_path: Path) -> None:
    change = compare(wanted(tmp_path / "file"))
    assert change is not None
    apply_change(change)
    restore(change)
    assert not (tmp_path / "file").exists()


def test_what_is_no_regular_file_is_left_alone(tmp_path: Path) -> None:
    target = tmp_path / "target"
    target.write_text("theirs")
    (tmp_path / "link").symlink_to(target)
    for path in (tmp_path / "link", tmp_path):
        with pytest.raises(GpuFleetError, match="left alone"):
            compare(wanted(path))
    assert target.read_text() == "theirs"


def test_a_failed_write_leaves_the_old_file_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"old\n")
    change = compare(wanted(path))
    assert change is not None

    def no_space(_fd: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", no_space)
    with pytest.raises(GpuFleetError, match="No space left"):
        apply_change(change)
    assert path.read_bytes() == b"old\n"
    assert os.listdir(tmp_path) == ["file"]


def test_a_diff_shows_what_changes_but_no_secret_and_no_archive(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"TOKEN=old\n")
    plain, = changes([wanted(path, b"TOKEN=new\n")])
    assert plain.to_diff()["before"] == "TOKEN=old\n" and plain.to_diff()["after"] == "TOKEN=new\n"
    for more in ({"secret": True}, {"opaque": True}):
        hidden, = changes([wanted(path, b"TOKEN=new\n", **more)])
        text = "".join(hidden.to_diff().values())
        assert "TOKEN" not in text and "old" not in text.replace("hold", "")
        assert hidden.to_diff()["before"] != hidden.to_diff()["after"], "a change must be visible as one"


def test_a_directory_gets_its_mode_once(tmp_path: Path) -> None:
    path = str(tmp_path / "d")
    assert make_directory(path, 0o750, UID, GID)
    assert not make_directory(path, 0o750, UID, GID)
    assert make_directory(path, 0o755, UID, GID)
    (tmp_path / "f").write_text("")
    with pytest.raises(GpuFleetError, match="in the way"):
        make_directory(str(tmp_path / "f"), 0o755, UID, GID)


def test_undoing_what_was_never_done_touches_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "unit"
    path.write_bytes(b"before")
    path.chmod(0o644)
    change = compare(WantedFile(str(path), b"after", 0o644, os.getuid(), os.getgid()))
    assert change is not None

    def refuse(*_given: object, **_more: object) -> None:
        raise OSError(30, "Read-only file system")

    for name in ("utime", "rename", "unlink"):
        monkeypatch.setattr(os, name, refuse)
    restore(change)
    assert path.read_bytes() == b"before"
