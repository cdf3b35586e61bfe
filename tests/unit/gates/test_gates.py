# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The gates themselves: a run that did nothing, or left something out, must not look like a good one."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import List, Optional, Tuple

import checks
import importer
import make_venv
import pytest
import pythons
import stages


@pytest.mark.parametrize(
    ("output", "returncode", "passed", "problem"),
    [
        ("....\n12 passed in 0.50s\n", 0, 12, None),
        ("====== 12 passed, 3 warnings in 1.00s ======\n", 0, 12, None),
        ("7 passed, 0 failed\n", 0, 7, None),
        ("2 passed, 1 failed\n", 1, 2, "exit code 1"),
        ("1 failed, 3 passed in 2.0s\n", 0, 3, "1 failed, though it ended with 0"),
        ("3 passed, 1 error in 2.0s\n", 0, 3, "1 failed, though it ended with 0"),
        ("11 passed, 1 skipped in 3.0s\n", 0, 11, "1 left out"),
        ("11 passed, 2 deselected in 3.0s\n", 0, 11, "2 left out"),
        ("4 skipped in 0.1s\n", 0, 0, "it ran no test"),
        ("no tests ran in 0.01s\n", 0, 0, "it ran no test"),
        ("", 0, 0, "it ran no test"),
        ("12 passed in 0.5s\nmake: *** [Makefile:1: unit] Error 2\n", 2, 12, "exit code 2"),
    ],
)
def test_a_stage_is_judged_by_what_it_did(output: str, returncode: int, passed: int, problem: Optional[str]) -> None:
    outcome = stages.judge(output, returncode)
    assert (outcome.passed, outcome.problem) == (passed, problem)


def test_a_check_that_fails_shows_its_output_and_the_rest_still_runs(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    good = checks.Check("good", [sys.executable, "-c", "print('fine')"], tmp_path)
    bad = checks.Check("bad", [sys.executable, "-c", "print('the reason'); raise SystemExit(3)"], tmp_path)
    absent = checks.Check("absent", [str(tmp_path / "nothing")], tmp_path)
    noisy = checks.Check("noisy", [sys.executable, "-c", "print('a warning')"], tmp_path, judge=checks.quiet)
    assert checks.run_all([bad, absent, noisy, good]) == 1
    printed = capsys.readouterr().out
    assert "FAILED: exit code 3" in printed and "the reason" in printed
    assert "FAILED: cannot be run" in printed
    assert "FAILED: it printed something" in printed
    assert "fine" not in printed
    assert printed.endswith("1 passed, 3 failed\n")


def test_each_gate_of_a_stage_has_its_line_in_the_whole() -> None:
    good = checks.verdict("ansible-core 2.19.14", 180.04, None, "49 tests")
    bad = checks.verdict("ruff", 1.0, "exit code 1")
    assert good == "  ansible-core 2.19.14      180.0 s  ok: 49 tests"
    assert stages.gates("starts\n%s\n    $ ruff check\n    x  2.0 s  okay\n%s\n2 passed, 0 failed\n" % (good, bad)) == [good, bad]


def test_the_real_one_runs_beside_the_stage_before_it() -> None:
    assert stages.in_turn(["lint", "lab-newest", "lab-real"]) == [["lint"], ["lab-newest", "lab-real"]]
    assert stages.in_turn(["lab-newest-all", "lab-real-all"]) == [["lab-newest-all", "lab-real-all"]]
    assert stages.in_turn(["lab-real", "lab-newest"]) == [["lab-real"], ["lab-newest"]] and stages.in_turn([]) == []


def test_stages_side_by_side_have_a_line_each_and_one_that_fails_its_whole_output(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "Makefile").write_text("a:\n\t@sleep 0.3; echo 3 passed\nb:\n\t@echo boom; echo 1 failed; exit 1\n", encoding="utf-8")
    monkeypatch.setattr(stages, "LOGS", tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(stages, "ROOT", tmp_path)
    assert [(outcome.passed, outcome.failed) for outcome in stages.together(["a", "b"])] == [(3, 0), (0, 1)]
    told = capsys.readouterr().out
    assert "boom" in told and told.count(" passed  ") == 2 and "FAILED: exit code 2" in told


def test_no_checks_is_a_failure() -> None:
    assert checks.run_all([]) == 1


def test_a_shim_is_no_interpreter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shim = tmp_path / "python3.13"
    shim.write_text("#!/bin/sh\necho 'python3.13: command not found' >&2\nexit 127\n", encoding="utf-8")
    shim.chmod(0o755)
    delegate = tmp_path / "python3"
    delegate.write_text('#!/bin/sh\nexec "%s" "$@"\n' % Path(sys.base_prefix, "bin", "python3"), encoding="utf-8")
    delegate.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert pythons.ask(str(shim)) is None
    found = pythons.find_pythons()
    assert found
    assert not any(str(tmp_path) in python.path for python in found)


def test_a_virtual_environment_is_no_interpreter_to_build_on() -> None:
    if sys.prefix == sys.base_prefix:
        pytest.fail("the unit tests run in the project's virtual environment: make unit")
    assert pythons.ask(sys.executable) is None


def interpreter(minor: int, has_venv: bool = True) -> pythons.Interpreter:
    return pythons.Interpreter((3, minor, 1), "/usr/bin/python3.%d" % minor, "/usr", has_venv)


@pytest.mark.parametrize(
    ("found", "chosen"),
    [([(13, True), (11, True)], 11), ([(14, True), (12, True), (10, True)], 12), ([(12, True), (11, False)], 12)],
)
def test_the_environment_takes_the_oldest_supported_interpreter_that_is_whole(
    monkeypatch: pytest.MonkeyPatch, found: List[Tuple[int, bool]], chosen: int
) -> None:
    monkeypatch.delenv("PYTHON", raising=False)
    monkeypatch.setattr(make_venv, "find_pythons", lambda: [interpreter(*each) for each in found])
    assert make_venv.choose().minor == (3, chosen)


@pytest.mark.parametrize(("found", "chosen"), [([11, 12, 13, 14], 13), ([11, 12], 12), ([14, 11], 14)])
def test_the_newest_core_runs_on_one_that_it_supports(monkeypatch: pytest.MonkeyPatch, found: List[int], chosen: int) -> None:
    monkeypatch.delenv("PYTHON_NEWEST", raising=False)
    monkeypatch.setattr(make_venv, "find_pythons", lambda: [interpreter(minor) for minor in found])
    assert make_venv.choose(make_venv.NEWEST).minor == (3, chosen)


def test_where_nothing_runs_the_newest_core_two_ways_to_such_a_python_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PYTHON_NEWEST", raising=False)
    monkeypatch.setattr(make_venv, "find_pythons", lambda: [interpreter(11)])
    with pytest.raises(SystemExit) as caught:
        make_venv.choose(make_venv.NEWEST)
    said = str(caught.value)
    assert "needs Python 3.12 to 3.14; found here: 3.11 at /usr/bin/python3.11." in said
    assert "apt-get install" in said and "uv python install 3.13" in said and "PYTHON_NEWEST=" in said


@pytest.mark.parametrize("kind", [make_venv.OLDEST, make_venv.NEWEST])
def test_an_environment_is_made_anew_when_any_file_that_it_is_made_from_has_changed(kind: make_venv.Kind) -> None:
    named, found = [kind.requirements], set()
    while named:
        found.add(name := named.pop())
        lines = Path(make_venv.ROOT, name).read_text(encoding="utf-8").splitlines()
        named += [line.split()[1] for line in lines if line.startswith("-r ")]
    assert set(kind.files) == found


@pytest.mark.parametrize(
    ("found", "said"),
    [
        ([(11, False)], "lacks its venv module. On Debian and Ubuntu:\n    apt-get install -y python3-venv"),
        ([(10, True), (9, True)], "found here: 3.10 at /usr/bin/python3.10, 3.9 at /usr/bin/python3.9."),
        ([], "found here: none."),
    ],
)
def test_what_is_missing_is_said_with_the_command_that_installs_it(
    monkeypatch: pytest.MonkeyPatch, found: List[Tuple[int, bool]], said: str
) -> None:
    monkeypatch.delenv("PYTHON", raising=False)
    monkeypatch.setattr(make_venv, "find_pythons", lambda: [interpreter(*each) for each in found])
    with pytest.raises(SystemExit) as caught:
        make_venv.choose()
    assert said in str(caught.value)
    assert "apt-get install" in str(caught.value)


def test_a_named_interpreter_that_is_none_is_named_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHON", "/nonexistent/python")
    with pytest.raises(SystemExit, match="found here: /nonexistent/python"):
        make_venv.choose()


@pytest.mark.parametrize(
    ("output", "returncode", "found"),
    [
        ("Loading role a\n%s\n" % importer.DONE, 0, []),
        ("WARNING: no changelog\n%s\n" % importer.DONE, 0, ["WARNING: no changelog"]),
        ("ERROR: The import failed\n", 0, ["ERROR: The import failed", "galaxy-importer ended with exit code 0"]),
        ("", 1, ["galaxy-importer ended with exit code 1"]),
    ],
)
def test_what_galaxy_warns_of_fails(output: str, returncode: int, found: List[str]) -> None:
    assert importer.problems(output, returncode) == found
