# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a run has to have before it begins: where its report goes, and a part of the playbook that does something."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import List, Optional

import pytest

from ansible_collections.gpufleet.vllm.plugins.plugin_utils import _begin
from ansible_collections.gpufleet.vllm.plugins.plugin_utils._report import ReportError


def fault_of_directory(directory: Path | str, make: bool) -> Optional[str]:
    """What is told of a directory, None for one that will do."""
    try:
        _begin.check_directory(str(directory), make)
    except ReportError as exc:
        return str(exc)
    return None


@pytest.mark.parametrize("mode", [0o1777, 0o2770, 0o700])
@pytest.mark.parametrize("make", [True, False])
def test_a_directory_that_is_there_stays_as_it_is(tmp_path: Path, mode: int, make: bool) -> None:
    there = tmp_path / "there"
    there.mkdir()
    there.chmod(mode)
    assert fault_of_directory(there, make) is None
    assert stat.S_IMODE(there.stat().st_mode) == mode and list(there.iterdir()) == []


def test_a_relative_directory_is_one_of_the_current_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert fault_of_directory("some/reports", make=False) is None and list(tmp_path.iterdir()) == []
    assert fault_of_directory("some/reports", make=True) is None and (tmp_path / "some" / "reports").is_dir()
    assert fault_of_directory("~/reports", make=True) is None and (tmp_path / "home" / "reports").is_dir()


@pytest.mark.parametrize("make", [True, False])
@pytest.mark.parametrize("given", ["file", "file/x", "file/x/y", "nowhere", "nowhere/x", "n" * 300])
def test_what_is_no_directory_is_in_the_way(tmp_path: Path, make: bool, given: str) -> None:
    (tmp_path / "file").write_text("mine", encoding="utf-8")
    (tmp_path / "nowhere").symlink_to(tmp_path / "gone")
    fault = fault_of_directory(tmp_path / given, make)
    assert fault is not None and fault.startswith(f"No report can be written to {tmp_path / given} (")
    assert fault.endswith("). Give another `report_dir`, or correct this one.")
    assert (tmp_path / "file").read_text(encoding="utf-8") == "mine" and not (tmp_path / "gone").exists()


@pytest.mark.parametrize("make", [True, False])
@pytest.mark.parametrize(("given", "writable", "refused"), [
    ("shared", True, None), ("shared/new", True, None), ("shared", False, "shared"), ("shared/new/er", False, "shared"),
])  # fmt: skip
def test_the_system_says_who_may_write(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, make: bool, given: str, writable: bool, refused: Optional[str]
) -> None:
    asked: List[int] = []
    (tmp_path / "shared").mkdir()

    def access(path: str, mode: int) -> bool:
        asked.append(mode)
        return writable

    monkeypatch.setattr(os, "access", access)
    fault = fault_of_directory(tmp_path / given, make)
    assert (fault is None) is (refused is None) and set(asked) == {os.W_OK | os.X_OK}
    assert fault is None or f"(this user can't write to {tmp_path / str(refused)})" in fault
    assert (tmp_path / "shared" / "new").exists() is (make and writable and given != "shared")


@pytest.mark.parametrize(
    ("tags", "only", "skip", "running"),
    [
        (["always"], ["all"], [], ["status"]),
        (["always"], ["report"], [], []),
        (["always"], ["always"], [], []),
        (["always"], ["untagged"], [], []),
        (["always"], ["tagged"], [], ["status"]),
        (["always"], ["report", "status"], [], ["status"]),
        (["always"], ["all"], ["status"], []),
        (["always"], ["all"], ["all"], []),
        (["always"], ["all"], ["report"], ["status"]),
        (["always", "mine"], ["mine"], [], ["status"]),
        (["always", "mine"], ["all"], ["mine"], []),
    ],
)
def test_the_parts_are_those_that_ansible_runs(tags: List[str], only: List[str], skip: List[str], running: List[str]) -> None:
    assert _begin.parts_that_run(["status"], tags, only, skip) == running


@pytest.mark.parametrize(
    ("tags", "only", "skip", "running"),
    [
        (["always"], ["all"], [], ["swap", "report", "always"]),
        (["always"], ["always"], [], ["always"]),
        (["always"], ["report"], [], ["report", "always"]),
        (["always"], ["all"], ["swap"], ["report", "always"]),
        (["always"], ["all"], ["swap", "report"], ["always"]),
        (["always"], ["swap"], ["swap"], ["always"]),
        (["always"], ["swpa", "report"], [], ["report", "always"]),
        (["always", "mine"], ["mine"], ["swap"], ["report", "always"]),
        (["always"], ["swpa"], [], []),
        (["always", "mine"], ["swpa"], [], []),
        (["always"], ["untagged"], [], []),
    ],
)
def test_what_is_left_without_the_parts_counts_where_it_is_asked_for(
    tags: List[str], only: List[str], skip: List[str], running: List[str]
) -> None:
    assert _begin.parts_that_run(["swap", "report", "always"], tags, only, skip) == running


def test_a_run_without_any_of_its_parts_is_refused() -> None:
    _begin.check_parts(["swap", "always"], ["always"])
    _begin.check_parts([], [])
    with pytest.raises(ReportError, match="add `--tags swap`"):
        _begin.check_parts(["swap", "always"], [])


def test_a_name_that_no_role_has_is_refused() -> None:
    _begin.check_names(["model", "gpu_reclaim_gpus", "vllm_swap_plan_only", "vllm_benchmark_force", "vllm_own"])
    with pytest.raises(ReportError, match="there is no variable gpu_reclaim_gpu; did you mean gpu_reclaim_gpus"):
        _begin.check_names(["gpu_reclaim_gpu"])
    with pytest.raises(ReportError, match="gpu_borrow_usr.*vllm_benchmark_forse; did you mean vllm_benchmark_force"):
        _begin.check_names(["vllm_benchmark_forse", "gpu_borrow_usr"])


@pytest.mark.parametrize("batch", [1, "1", 12, "25%", "100%", [1, 4, "25%"], "[1, 4]", "[1,4]", '["25%", 4]', "['25%', '4']", [3]])
def test_what_serial_takes_is_a_batch(batch: object) -> None:
    _begin.check_batch(batch)


@pytest.mark.parametrize("batch", [0, "0", -1, "", "all", "0%", "1.5", 1.5, "1 4", "%", "25 %", [], "[]", [0], [1, "x"], [[1]], {"a": 1},
                                   None, True, "1\n", "[1, 4"])
def test_anything_else_is_refused_before_a_host_is_touched(batch: object) -> None:
    with pytest.raises(ReportError, match=r"(?s)^batch is '.*'\. It takes a number of hosts from 1 on"):
        _begin.check_batch(batch)


def test_what_the_inventory_says_of_hosts_and_batches_is_not_passed_over() -> None:
    for name in ("target", "batch"):
        written: dict[str, dict[str, object]] = {"gpu01": {"vllm_models": {}}, "gpu02": {name: "gpu02"}}
        with pytest.raises(ReportError, match=f"`{name}` is a variable of the inventory \\(gpu02\\).* -e {name}=…"):
            _begin.check_keywords(written, ["model"])
        _begin.check_keywords(written, ["model", name])
    _begin.check_keywords({"gpu01": {"model": "x"}}, [])
