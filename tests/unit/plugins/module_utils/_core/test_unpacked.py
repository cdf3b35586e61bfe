# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A program whose files lie beside it, compiled."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from ansible_collections.gpufleet.vllm.plugins.module_utils._core.unpacked import unpack, unpacked
from ansible_collections.gpufleet.vllm.plugins.module_utils._core.zipapp import build


@pytest.fixture
def program(tmp_path: Path) -> Path:
    """A program that looks for its files in the directory ``code`` beside it."""
    path = tmp_path / "change.pyz"
    path.write_bytes(build("_job.main", "packed", str(tmp_path / "code")))
    return path


@pytest.fixture
def code(program: Path) -> Path:
    """That directory, with the files in it."""
    directory = program.parent / "code"
    before = os.umask(0o077)
    try:
        unpack(str(program), str(directory))
    finally:
        os.umask(before)
    return directory


def run(program: Path) -> str:
    """What it prints on being asked how it is used."""
    return subprocess.run([sys.executable, str(program), "--help"], capture_output=True, text=True, check=True, timeout=60).stdout


def mark(place: str) -> None:
    """Make what lies there known when it runs."""
    main = Path(place) / "packed" / "_job" / "main.py"
    main.write_text("def main(words):\n    print('unpacked')\n    return 0\n", encoding="utf-8")


def test_it_runs_what_lies_there_compiled(program: Path, code: Path) -> None:
    place = unpacked(str(program), str(code))
    assert place is not None and list(Path(place).glob("packed/_job/__pycache__/main.*.pyc"))
    mark(place)
    assert run(program) == "unpacked\n"


def test_it_runs_by_itself_as_well(program: Path) -> None:
    assert unpacked(str(program), str(program.parent / "code")) is None
    assert "usage: change.pyz" in run(program)


def test_another_program_does_not_run_it_and_takes_its_place(program: Path, code: Path) -> None:
    first = unpacked(str(program), str(code))
    assert first is not None
    mark(first)
    other = program.with_name("new")
    other.write_bytes(program.read_bytes())
    other.rename(program)
    assert unpacked(str(program), str(code)) is None and "usage: change.pyz" in run(program)
    unpack(str(program), str(code))
    second = unpacked(str(program), str(code))
    # Whoever runs the one before comes to need its files as he goes.
    assert sorted(str(code / name) for name in os.listdir(code)) == sorted([first, str(second)])


def test_what_nobody_runs_any_more_goes(program: Path, code: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = [unpacked(str(program), str(code))]
    real = time.time
    for hours in (0, 2, 4):
        other = program.with_name("new")
        other.write_bytes(program.read_bytes())
        other.rename(program)
        monkeypatch.setattr(time, "time", lambda hours=hours: real() + hours * 3600.0)
        unpack(str(program), str(code))
        made.append(unpacked(str(program), str(code)))
        kept = made if hours == 0 else made[-2:]
        assert sorted(str(code / name) for name in os.listdir(code)) == sorted(map(str, kept))


@pytest.mark.parametrize("which", ["directory", "place"])
@pytest.mark.parametrize("mode", [0o775, 0o757])
def test_what_others_may_write_is_not_run(program: Path, code: Path, which: str, mode: int) -> None:
    place = unpacked(str(program), str(code))
    assert place is not None
    mark(place)
    os.chmod(code if which == "directory" else place, mode)
    assert unpacked(str(program), str(code)) is None and "usage: change.pyz" in run(program)


def test_neither_is_what_others_own(program: Path, code: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.lstat
    monkeypatch.setattr(os, "lstat", lambda path: os.stat_result((*real(path)[:4], real(program).st_uid + 1, *real(path)[5:10])))
    assert unpacked(str(program), str(code)) is None


def test_a_link_to_it_is_not_followed(program: Path, code: Path) -> None:
    code.rename(code.with_name("elsewhere"))
    code.symlink_to(code.with_name("elsewhere"))
    assert unpacked(str(program), str(code)) is None


def test_everybody_may_read_it(program: Path, code: Path) -> None:
    place = Path(str(unpacked(str(program), str(code))))
    assert all(path.stat().st_mode & 0o444 == 0o444 for path in [place, *place.rglob("*")])


def test_once_is_enough(program: Path, code: Path) -> None:
    place = unpacked(str(program), str(code))
    unpack(str(program), str(code))
    assert unpacked(str(program), str(code)) == place and len(os.listdir(code)) == 1
