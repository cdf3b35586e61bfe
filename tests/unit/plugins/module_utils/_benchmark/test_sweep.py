# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a benchmark that was killed leaves in the directory for temporary files is removed by the next one, and nothing else is."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from ansible_collections.gpufleet.vllm.plugins.module_utils._benchmark.sweep import PREFIX, hold, owners_of, sweep
from ansible_collections.gpufleet.vllm.plugins.module_utils._benchmark.tool import workplace
from ansible_collections.gpufleet.vllm.plugins.module_utils._core.runner import Runner

US = frozenset({os.geteuid()})


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def left_over(place: Path, name: str = "a") -> Path:
    path = place / (PREFIX + name)
    path.mkdir()
    (path / "load.py").write_text("pass")
    return path


def later() -> float:
    return time.time() + 3600


def test_what_nobody_holds_is_removed(temporary: Path) -> None:
    path = left_over(temporary)
    assert sweep(US, later()) == [str(path)] and not path.exists()


def test_what_somebody_works_in_stays(temporary: Path) -> None:
    with workplace(Runner(), None) as place:
        assert sweep(US, later()) == [] and os.path.isdir(place.directory)
    assert os.listdir(temporary) == []


def test_a_holder_that_was_killed_holds_nothing(temporary: Path) -> None:
    path = left_over(temporary)
    holder = subprocess.Popen(
        [sys.executable, "-c", "import fcntl, os, sys\nfd = os.open(sys.argv[1], os.O_RDONLY)\nfcntl.flock(fd, fcntl.LOCK_EX)\n"
                               "print('held', flush=True)\nsys.stdin.read()", str(path)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE,
    )  # fmt: skip
    assert holder.stdout is not None and holder.stdout.readline() == b"held\n"
    assert sweep(US, later()) == []
    holder.kill()
    holder.communicate()
    assert sweep(US, later()) == [str(path)]


def test_what_is_not_ours_stays(temporary: Path) -> None:
    path = left_over(temporary)
    other = temporary / "somebody"
    other.mkdir()
    (temporary / (PREFIX + "link")).symlink_to(other)
    (temporary / (PREFIX + "file")).write_text("")
    assert sweep(frozenset({os.geteuid() + 1}), later()) == []
    assert sweep(US, later()) == [str(path)] and other.is_dir()
    assert sorted(os.listdir(temporary)) == [PREFIX + "file", PREFIX + "link", "somebody"]


def test_one_that_was_made_just_now_is_about_to_be_held(temporary: Path) -> None:
    path = left_over(temporary)
    assert sweep(US) == [] and path.is_dir()
    os.close(hold(str(path)))


def test_the_users_directories_are_ours() -> None:
    assert os.geteuid() in owners_of(None) and os.geteuid() in owners_of("root")
