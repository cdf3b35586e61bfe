# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""`make unit`: the unit tests, and a gate on what they alone reach of plugins/module_utils.

    tests/gates/units.py [-n 2]      more arguments go to pytest

What a test in the lab reaches does not count: it runs on hosts. One run serves both: the tests are run as they are, under
coverage. The lines that no test reaches are in build/reached.txt.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, List, Mapping, Optional

from checks import verdict
from tree import ROOT

# Not named coverage.*: coverage takes such files for its own data, and removes them.
BUILD = ROOT / "build"
PART = "plugins/module_utils/"
# Of the statements and branches together, in percent.
AT_LEAST = 90.0


def reached(report: Mapping[str, Any], part: str = PART) -> float:
    """How much of the files under a directory was reached, in percent, from coverage's JSON report; 0.0 when there are none."""
    totals = [each["summary"] for path, each in report["files"].items() if path.startswith(part) or "/" + part in path]
    possible = sum(each["num_statements"] + each["num_branches"] for each in totals)
    covered = sum(each["covered_lines"] + each["covered_branches"] for each in totals)
    return 100.0 * covered / possible if possible else 0.0


def problem(percent: float) -> Optional[str]:
    """What is wrong with it; None: nothing."""
    if percent >= AT_LEAST:
        return None
    return "%.1f %% of plugins/module_utils by unit tests alone, at least %.0f are wanted: see build/reached.txt" % (percent, AT_LEAST)


def main(words: List[str]) -> int:
    """Entry point."""
    started = time.monotonic()
    report = BUILD / "reached.json"
    report.unlink(missing_ok=True)
    command = [sys.executable, "-m", "pytest", "tests/unit", "-q", "--cov", "--cov-report=json:%s" % report]
    command += ["--cov-report=term-missing:skip-covered", *words]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, errors="replace") as child:
        table = _show(child.stdout or [], BUILD / "reached.txt")
    if not table or not report.exists():
        print("FAILED: coverage left no report")
        return child.returncode or 1
    percent = reached(json.loads(report.read_text(encoding="utf-8")))
    wrong = problem(percent)
    told = "%.1f %% of plugins/module_utils by unit tests alone, at least %.0f" % (percent, AT_LEAST)
    print(verdict("coverage", time.monotonic() - started, wrong, told))
    return child.returncode or (1 if wrong else 0)


def _show(lines: Any, path: Path) -> bool:
    """Pass on what pytest prints, its table of coverage into a file; returns whether there was one."""
    inside = seen = False
    with path.open("w", encoding="utf-8") as table:
        for line in lines:
            if line.startswith("Name ") and "Stmts" in line:
                inside = seen = True
            if inside:
                table.write(line)
                inside = not line.startswith("TOTAL ")
            else:
                print(line, end="", flush=True)
    return seen


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
