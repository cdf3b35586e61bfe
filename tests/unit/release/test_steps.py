# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A release stops at the first step that fails, says why, and lays out nothing."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
import tree
from release import __main__ as release
from release.installed import CommandFailed, Installed
from release.steps import StepFailed, Steps, hold


def test_a_step_that_fails_is_the_last(capsys: pytest.CaptureFixture[str]) -> None:
    steps = Steps()
    steps.run("first", lambda: "well")

    def bad() -> str:
        hold(["one thing", "another"])
        return "never"

    with pytest.raises(StepFailed, match="one thing\n    another"):
        steps.run("second", bad)
    first, second = capsys.readouterr().out.splitlines()
    assert first.endswith("s  ok  well") and second.endswith("FAILED") and steps.passed == 1


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository of one commit, in the place of this one."""
    for command in (["init", "-q"], ["-c", "user.name=x", "-c", "user.email=x@example.com", "commit", "-q", "--allow-empty", "-m", "x"]):
        subprocess.run(["git", *command], cwd=tmp_path, check=True)
    monkeypatch.setattr(tree, "ROOT", tmp_path)
    return tmp_path


def test_nothing_is_released_beside_a_commit(checkout: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    assert release.committed().startswith("commit ")
    (checkout / "galaxy.yml").write_text("repository: https://git.example.com/x\n", encoding="utf-8")
    with pytest.raises(StepFailed, match="not committed: \\?\\? galaxy.yml"):
        release.committed()
    monkeypatch.setattr(release, "DIST", checkout / "dist")
    assert release.main() == 1
    said = capsys.readouterr().out
    assert "Nothing was put into dist/." in said and "0 passed, 1 failed" in said and "https://git.example.com/x" in said
    assert not (checkout / "dist").exists()


def test_the_committed_tree_is_what_a_clone_has(checkout: Path) -> None:
    (checkout / "README.md").write_text("committed\n", encoding="utf-8")
    subprocess.run(["git", "add", "README.md"], cwd=checkout, check=True)
    subprocess.run(["git", "-c", "user.name=x", "-c", "user.email=x@example.com", "commit", "-qm", "y"], cwd=checkout, check=True)
    (checkout / "README.md").write_text("changed\n", encoding="utf-8")
    with tree.committed() as place:
        assert (place / "README.md").read_text(encoding="utf-8") == "committed\n"
    assert not place.exists()


def test_a_collections_path_has_to_be_empty(tmp_path: Path) -> None:
    (tmp_path / "home" / "collections").mkdir(parents=True)
    with pytest.raises(CommandFailed, match="is not empty"):
        Installed(tmp_path / "x.tar.gz", tmp_path / "home")


def test_a_command_that_does_not_end_is_told_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    slow = tmp_path / "bin" / "slow"
    slow.parent.mkdir()
    slow.write_text("#!/bin/sh\necho said before; exec sleep 60\n", encoding="utf-8")
    slow.chmod(0o755)
    monkeypatch.setattr("release.installed.BIN", slow.parent)
    place = Installed.__new__(Installed)  # nothing is installed
    place._cwd, place._settings = tmp_path, {}
    with pytest.raises(CommandFailed, match="slow now did not end in 1 s\nsaid before"):
        place.run("slow", "now", timeout=1)
