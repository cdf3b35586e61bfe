# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Sanity with two ansible-cores: what they leave out, and which they are."""

from __future__ import annotations

from pathlib import Path
from typing import List

import cores
import pytest
import sanity
import stages
import units

ABSENT = 'WARNING: Skipping sanity test "import" on Python 3.14 because it could not be found.'
PRESENT = ABSENT.replace("3.14", "3.9")
TOOL = 'WARNING: Skipping sanity test "shellcheck" due to missing shellcheck.'
RAN = 'Running sanity test "compile" on Python 3.9\nRunning sanity test "compile" on Python 3.13\nRunning sanity test "pep8"\n'


def test_only_an_interpreter_that_is_not_here_may_be_skipped() -> None:
    assert sanity.unexpected_skips("\n".join([RAN, ABSENT, PRESENT, TOOL]), {"3.9", "3.11"}) == [PRESENT, TOOL]


def test_a_good_run_names_the_pythons_of_the_hosts() -> None:
    result = sanity.judge(RAN + ABSENT, 0, {"3.9", "3.13"}, [])
    assert result == sanity.Result(3, 0, ["3.9", "3.13"], [])


@pytest.mark.parametrize(
    ("output", "returncode", "ignore_files", "failed", "problems"),
    [
        ("", 0, [], 1, ["it ran no test"]),
        (RAN, 1, [], 1, ["ansible-test ended with exit code 1"]),
        (RAN + "ERROR: The 2 sanity test(s) listed below (out of 3) failed.", 1, [], 2, ["ansible-test ended with exit code 1"]),
        (RAN + TOOL, 0, [], 1, ["unexpected skip: " + TOOL]),
        (RAN, 0, ["ignore-2.19.txt"], 1, ["ignore file: ignore-2.19.txt"]),
    ],
)
def test_a_run_that_left_something_out_is_none(
    output: str, returncode: int, ignore_files: List[str], failed: int, problems: List[str]
) -> None:
    result = sanity.judge(output, returncode, {"3.9", "3.13"}, ignore_files)
    assert (result.failed, result.problems) == (failed, problems)


def core(version: str, python: str) -> cores.Core:
    return cores.Core(Path("/x/.venv"), version, python, Path("/x"))


def test_the_two_cores_are_the_oldest_that_is_promised_and_a_newer_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cores, "supported_from", lambda: "2.9")
    assert cores.complaints([core("2.9.14", "3.11"), core("2.21.5", "3.13")]) == []
    assert "needs Python 3.11 to 3.13" in cores.complaints([core("2.21.5", "3.14"), core("2.22.0", "3.14")])[0]
    assert "no newer" in cores.complaints([core("2.9.14", "3.11"), core("2.9.20", "3.12")])[0]


def test_the_environments_of_this_checkout_hold_them() -> None:
    assert cores.core(cores.OLDEST).minor == cores.supported_from()


def test_an_environment_without_a_core_says_how_to_make_one(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="make venv venv-newest"):
        cores.core(tmp_path)


def test_only_what_the_hosts_run_counts_as_reached() -> None:
    def summary(lines: int, covered: int) -> object:
        return {"summary": {"num_statements": lines, "covered_lines": covered}}

    report = {"files": {
        "x/plugins/module_utils/_a/b.py": summary(80, 70),
        "plugins/module_utils/c.py": summary(20, 15),
        "x/plugins/action/d.py": summary(1000, 0),
    }}  # fmt: skip
    assert units.reached(report) == 85.0
    assert units.reached({"files": {}}) == 0.0
    assert units.problem(90.0) is None
    assert "89.9 % of plugins/module_utils" in str(units.problem(89.94))


def test_several_runs_count_as_one() -> None:
    lines = ["12 passed in 0.50s", "1 failed, 3 passed, 2 errors in 2.0s", ""]
    assert units.count(lines) == "2 errors, 1 failed, 15 passed"
    assert stages.judge(units.count(lines), 1).failed == 3 and stages.judge(units.count(lines[:1]), 0).passed == 12
