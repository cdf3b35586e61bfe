# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a short run leaves to the whole, and that it says so."""

from __future__ import annotations

import ast
import subprocess
import sys
from types import SimpleNamespace
from typing import Any, List, Optional

import pytest
import short_run
import stages
from tree import ROOT

LINES = short_run.listed(short_run.LIST.read_text(encoding="utf-8"))


def item(nodeid: str) -> Any:
    return SimpleNamespace(nodeid=nodeid)


FIRST, SECOND = item("tests/e2e/test_x.py::test_a[1]"), item("tests/e2e/test_x.py::test_a[2::3]")
OTHER = item("tests/e2e/test_y.py::test_a[1]")


def test_the_list_is_read_without_its_remarks() -> None:
    assert short_run.listed("# why\n\ntests/sim\n  tests/e2e/test_x.py  # whole\n") == ["tests/sim", "tests/e2e/test_x.py"]


@pytest.mark.parametrize("line", ["tests/e2e/test_x.py::test_a", "tests/e2e/test_x.py", "tests/e2e", "tests"])
def test_of_a_listed_test_one_case_is_run_and_always_the_same(line: str) -> None:
    run, left = short_run.split([FIRST, SECOND], [line])
    assert len(run) == 1 and sorted(run + left, key=[FIRST, SECOND].index) == [FIRST, SECOND]
    assert short_run.split([FIRST, SECOND], [line]) == (run, left)


@pytest.mark.parametrize(
    ("lines", "run"),
    [
        (["tests/e2e/test_x.py::test_a[*]"], [FIRST, SECOND]),
        (["tests/e2e/test_x.py[*]"], [FIRST, SECOND]),
        (["tests[*]"], [FIRST, SECOND, OTHER]),
        (["tests/e2e/test_y.py"], [OTHER]),
        (["tests/e2e/test_y.py::test_b", "tests/e2e/test_z.py", "tests/sim"], []),
        ([], []),
    ],
)
def test_what_is_not_listed_is_left(lines: List[str], run: List[Any]) -> None:
    assert short_run.split([FIRST, SECOND, OTHER], lines) == (run, [each for each in (FIRST, SECOND, OTHER) if each not in run])


def test_over_all_tests_each_distribution_has_some() -> None:
    many = [item("tests/e2e/test_%s.py::test_a[%s]" % (name, base)) for name in "abcdefgh" for base in ("bookworm", "trixie")]
    run, left = short_run.split(many, ["tests/e2e"])
    assert len(run) == len(left) == 8
    assert {each.nodeid.partition("[")[2] for each in run} == {"bookworm]", "trixie]"}


@pytest.mark.parametrize("line", LINES)
def test_what_is_listed_is_there(line: str) -> None:
    path, _colons, name = line.replace(short_run.EVERY_CASE, "").partition("::")
    assert (ROOT / path).exists()
    if name:
        tree = ast.parse((ROOT / path).read_text(encoding="utf-8"))
        tests = [node.name for node in tree.body if isinstance(node, ast.FunctionDef)]
        assert name in tests


@pytest.mark.parametrize("processes", [None, 2])
def test_how_many_were_left_is_said_and_stands_in_the_stages_line(processes: Optional[int]) -> None:
    """Also by a run of several processes, where each leaves out the same."""
    words = ["tests/unit/gates/test_short_run.py::test_what_is_not_listed_is_left", "-q"] + (["-n", str(processes)] if processes else [])
    command = [sys.executable, "-m", "pytest", *words]
    done = subprocess.run([*command, "--short"], cwd=ROOT, capture_output=True, text=True, check=False)
    assert "\n6 more in make test-all\n" in done.stdout
    if processes is None:
        assert "more" not in subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert stages.judge("3 passed in 1 s\n%s" % done.stdout, 0) == stages.Outcome(3, 0, None, "6 more in make test-all")


def test_the_whole_runs_the_same_stages_with_everything_in_them() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for stage in [*stages.STAGES, *stages.WHOLE.values()]:
        assert "\n%s: " % stage in makefile
    assert set(stages.WHOLE) <= set(stages.STAGES)
    recipes = {name: makefile.split("\n%s: " % name)[1].split("\n\n")[0] for pair in stages.WHOLE.items() for name in pair}
    for stage in ("lab-test", "lab-newest", "lab-real"):
        assert "--short" in recipes[stage] and "--short" not in recipes[stages.WHOLE[stage]]
