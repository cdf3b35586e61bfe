# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The module's work, asked of the program that lies on a host already."""

from __future__ import annotations

import hashlib
import io
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from ansible_collections.gpufleet.vllm.plugins.module_utils._job import resident
from ansible_collections.gpufleet.vllm.plugins.module_utils._job.resident import serve
from ansible_collections.gpufleet.vllm.plugins.module_utils._service.program import build_program

# Refused before anything of the host is looked at.
REQUEST = {"params": {"name": "q", "state": "started", "model": "/models/q", "gpus": [], "port": 8000}}


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The program as it lies on a host."""
    path = tmp_path_factory.mktemp("program") / "change.pyz"
    path.write_bytes(build_program())
    return path


def ask(program: Path, digest: str, **more: bool) -> "subprocess.CompletedProcess[str]":
    """Run it as a controller does."""
    request = {**REQUEST, "check_mode": True, "wait": True, "diff": False, **more}
    words = [sys.executable, str(program), "module", digest]
    return subprocess.run(words, input=json.dumps(request), capture_output=True, text=True, check=False, timeout=60)


def test_it_answers_as_the_module_does(program: Path) -> None:
    digest = hashlib.sha256(program.read_bytes()).hexdigest()
    done = ask(program, digest)
    answer = json.loads(done.stdout)
    assert answer["id"] == digest and done.returncode == 0
    result = answer["result"]
    assert result["failed"] and result["actions"] == [] and result["rolled_back"] is False
    assert result["msg"].endswith("Nothing was touched."), result


def test_one_that_is_made_of_other_sources_does_nothing(program: Path) -> None:
    digest = hashlib.sha256(b"other sources").hexdigest()
    done = ask(program, digest)
    assert json.loads(done.stdout) == {"id": digest, "other": True} and done.returncode == 0


def test_one_that_was_replaced_while_the_other_ran_is_not_what_runs(tmp_path: Path) -> None:
    path = tmp_path / "change.pyz"
    path.write_bytes(b"what runs")
    seen = os.stat(path)
    other = tmp_path / "new"
    other.write_bytes(b"what is meant")
    other.rename(path)
    digest = hashlib.sha256(b"what is meant").hexdigest()
    assert serve(digest, str(path), seen) == {"id": digest, "other": True}


def test_neither_is_one_whose_files_were_unpacked_of_another(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "change.pyz"
    path.write_bytes(b"what is meant")
    seen = os.stat(path)
    digest = hashlib.sha256(b"what is meant").hexdigest()
    monkeypatch.setattr(resident, "__file__", "/run/gpufleet/code/1-2-3/gpufleet_change/_job/resident.py")
    assert serve(digest, str(path), seen) == {"id": digest, "other": True}
    mark = "%d-%d-%d" % (seen.st_ino, seen.st_size, seen.st_mtime_ns)
    monkeypatch.setattr(resident, "__file__", "/run/gpufleet/code/%s/gpufleet_change/_job/resident.py" % mark)
    monkeypatch.setattr("sys.stdin", io.StringIO("no request"))
    with pytest.raises(ValueError):  # it goes on to what is asked
        serve(digest, str(path), seen)
