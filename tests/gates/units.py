# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""`make unit`: the unit tests, and a gate on what they alone reach of plugins/module_utils.

    tests/gates/units.py -n 3      more arguments go to pytest

The tests of plugins/module_utils run with the newest ansible-core under coverage: there Python itself tells which lines are reached,
where an older one is traced and takes twice as long. All others run with the oldest. What a test in the lab reaches does not count: it
runs on hosts. The lines that no test reaches are in build/reached.txt.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Dict, Iterable, List, Mapping, NamedTuple, Optional

from checks import verdict
from tree import ROOT

# Not named coverage.*: coverage takes such files for its own data, and removes them.
BUILD = ROOT / "build"
PART = "plugins/module_utils/"
TESTS = "tests/unit/" + PART
NEWEST = ROOT / ".venv-newest" / "bin" / "python"
# Of the statements, in percent.
AT_LEAST = 90.0
_COUNT = re.compile(r"\b([0-9]+) (passed|failed|errors?|skipped|deselected)\b")


def reached(report: Mapping[str, Any], part: str = PART) -> float:
    """How much of the files under a directory was reached, in percent, from coverage's JSON report; 0.0 when there are none."""
    totals = [each["summary"] for path, each in report["files"].items() if path.startswith(part) or "/" + part in path]
    possible = sum(each["num_statements"] for each in totals)
    return 100.0 * sum(each["covered_lines"] for each in totals) / possible if possible else 0.0


def problem(percent: float) -> Optional[str]:
    """What is wrong with it; None: nothing."""
    if percent >= AT_LEAST:
        return None
    return "%.1f %% of plugins/module_utils by unit tests alone, at least %.0f are wanted: see build/reached.txt" % (percent, AT_LEAST)


def count(lines: Iterable[str]) -> str:
    """What several runs of pytest came to together, from the last line of each, as pytest would put it."""
    found: Dict[str, int] = {}
    for line in lines:
        for number, word in _COUNT.findall(line):
            found[word] = found.get(word, 0) + int(number)
    return ", ".join("%d %s" % (number, word) for word, number in sorted(found.items()))


def main(words: List[str]) -> int:
    """Entry point."""
    started = time.monotonic()
    report = BUILD / "reached.json"
    report.unlink(missing_ok=True)
    measured = [str(NEWEST), "-m", "pytest", TESTS, "-q", "--cov", "--cov-report=json:%s" % report]
    measured.append("--cov-report=term-missing:skip-covered")
    others = [sys.executable, "-m", "pytest", "tests/unit", "--ignore=" + TESTS, "-q"]
    # Some of them take seconds: whoever has run out of tests takes over what another has before it.
    runs = [_run([*command, "--dist", "worksteal", *words]) for command in (measured, others)]
    code = next((one.code for one in runs if one.code), 0)
    if not runs[0].table or not report.exists():
        print("FAILED: coverage left no report")
        return code or 1
    percent = reached(json.loads(report.read_text(encoding="utf-8")))
    wrong = problem(percent)
    told = "%.1f %% of plugins/module_utils by unit tests alone, at least %.0f" % (percent, AT_LEAST)
    print(verdict("coverage", time.monotonic() - started, wrong, told))
    print(count(one.last for one in runs))
    return code or (1 if wrong else 0)


class Ran(NamedTuple):
    """One run of pytest: its exit status, its last line, and whether it has shown a table of coverage."""

    code: int
    last: str
    table: bool


def _run(command: List[str]) -> Ran:
    environment = {**os.environ, "COVERAGE_CORE": "sysmon"}
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, errors="replace", env=environment) as child:
        kept: List[str] = []
        table = _show(child.stdout or [], BUILD / "reached.txt", kept)
    return Ran(child.returncode, next((line for line in reversed(kept) if _COUNT.search(line)), ""), table)


def _show(lines: Iterable[str], path: Path, kept: List[str]) -> bool:
    """Pass on what pytest prints, into ``kept`` as well; its table of coverage into a file. Returns whether there was one."""
    table: List[str] = []
    inside = False
    for line in lines:
        inside = inside or (line.startswith("Name ") and "Stmts" in line)
        if inside:
            table.append(line)
            inside = not line.startswith("TOTAL ")
        else:
            kept.append(line)
            print(line, end="", flush=True)
    if table:
        path.write_text("".join(table), encoding="utf-8")
    return bool(table)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
