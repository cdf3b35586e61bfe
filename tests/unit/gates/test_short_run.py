# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a short run leaves to the whole, and that it says so."""

from __future__ import annotations

import subprocess
import sys
from types import SimpleNamespace
from typing import Any, Dict, List, Optional, Tuple

import pytest
import short_run
import stages
from tree import ROOT


def item(nodeid: str, **marks: Tuple[Any, ...]) -> Any:
    held: Dict[str, Any] = {name: SimpleNamespace(args=arguments) for name, arguments in marks.items()}
    return SimpleNamespace(nodeid=nodeid, get_closest_marker=held.get)


FIRST, SECOND = item("tests/e2e/test_x.py::test_a[1]"), item("tests/e2e/test_x.py::test_a[2::3]")
MANY = [item("tests/e2e/test_%s.py::test_a[%s]" % (name, base)) for name in "abcdefgh" for base in ("bookworm", "trixie")]


@pytest.mark.parametrize(
    "items",
    [
        [item("tests/e2e/test_x.py::test_a"), item("tests/e2e/test_x.py::test_b")],
        # The same name in another file is another test.
        [FIRST, item("tests/e2e/test_y.py::test_a[2]")],
        # Nothing on hosts: a case takes no time.
        [item("tests/sim/test_x.py::test_a[1]"), item("tests/sim/test_x.py::test_a[2]")],
        [item("tests/e2e/test_x.py::test_a[%d]" % number, every_case=("each is a promise",)) for number in (1, 2)],
    ],
)
def test_what_has_one_case_or_shall_have_all_is_run(items: List[Any]) -> None:
    assert short_run.split(items) == (items, [])


def test_of_a_test_on_hosts_one_case_is_run_and_always_the_same() -> None:
    run, left = short_run.split([FIRST, SECOND])
    assert len(run) == 1 and sorted(run + left, key=[FIRST, SECOND].index) == [FIRST, SECOND]
    assert short_run.split([FIRST, SECOND]) == (run, left)


def test_over_all_tests_each_distribution_has_some() -> None:
    run, left = short_run.split(MANY)
    assert len(run) == len(left) == 8
    assert {each.nodeid.partition("[")[2] for each in run} == {"bookworm]", "trixie]"}


def test_what_is_thorough_is_left_wherever_it_is() -> None:
    slow = item("tests/sim/test_x.py::test_a", thorough=("test_b shows it of two",))
    assert short_run.split([slow]) == ([], [slow])


@pytest.mark.parametrize("arguments", [(), ("",), (3,), ("a", "b")])
def test_a_mark_says_why(arguments: Tuple[Any, ...]) -> None:
    for name in ("thorough", "every_case"):
        wrong = item("tests/e2e/test_x.py::test_a", **{name: arguments})
        assert [name in line for line in short_run.reasons([wrong, FIRST])] == [True]
    assert short_run.reasons([item("tests/e2e/test_x.py::test_a", thorough=("why",))]) == []


@pytest.mark.parametrize("processes", [None, 2])
def test_how_many_were_left_is_said_and_stands_in_the_stages_line(processes: Optional[int]) -> None:
    """Also by a run of several processes, where each leaves out the same."""
    words = ["tests/unit/gates/test_marked_for_short_run.py", "--short", "-q"] + (["-n", str(processes)] if processes else [])
    done = subprocess.run([sys.executable, "-m", "pytest", *words], cwd=ROOT, capture_output=True, text=True, check=False)
    outcome = stages.judge(done.stdout, done.returncode)
    assert outcome == stages.Outcome(1, 0, None, "1 more in make test-all"), done.stdout
    assert "more" not in subprocess.run(
        [sys.executable, "-m", "pytest", words[0], "-q"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout


def test_the_whole_runs_the_same_stages_with_everything_in_them() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for stage in [*stages.STAGES, *stages.WHOLE.values()]:
        assert "\n%s: " % stage in makefile
    assert set(stages.WHOLE) <= set(stages.STAGES)
    recipes = {name: makefile.split("\n%s: " % name)[1].split("\n\n")[0] for name in ("lab-test", "lab-all")}
    assert "--short" in recipes["lab-test"] and "--short" not in recipes["lab-all"]
