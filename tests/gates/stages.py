# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""`make test` and `make test-all`: every stage, one line each with its time, above it one for each gate in it; the whole output
of a stage only when it fails.

    tests/gates/stages.py [--all | STAGE ...]

A stage counts what it did in its last lines ("12 passed"). One that did nothing, or left something out, has failed: a
test that did not run proves nothing. What `make test` leaves to `make test-all` is counted in its line. Full outputs stay in
build/logs/.
"""

from __future__ import annotations

import re
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import List, NamedTuple, Optional, Sequence

ROOT = Path(__file__).resolve().parent.parent.parent
LOGS = ROOT / "build" / "logs"
STAGES = ["lint", "docs", "unit", "sanity", "lab-test", "lab-newest", "lab-real"]
# The real vLLM keeps one core busy at a time, and waits besides.
SIDE_BY_SIDE = {"lab-newest": "lab-real", "lab-newest-all": "lab-real-all"}
# The same with everything in it.
WHOLE = {"sanity": "sanity-all", "lab-test": "lab-all", "lab-newest": "lab-newest-all", "lab-real": "lab-real-all"}
# A gate's line, as checks.verdict() writes it.
_LEFT = re.compile(r"^[0-9]+ more in make test-all$", re.MULTILINE)
_GATE = re.compile(r"^  \S.* +[0-9]+\.[0-9] s  (ok|FAILED)\b.*$", re.MULTILINE)


class Outcome(NamedTuple):
    """What one stage came to. ``problem`` is None when it is fine; ``left`` says what it left to the whole, "" is nothing."""

    passed: int
    failed: int
    problem: Optional[str]
    left: str = ""


def judge(output: str, returncode: int) -> Outcome:
    """Read a stage's own count out of its output."""
    counts = {"passed": 0, "failed": 0, "error": 0, "errors": 0, "skipped": 0, "deselected": 0}
    lines = [line for line in output.splitlines() if re.search(r"\b[0-9]+ (passed|failed|errors?|skipped)\b", line)]
    for number, word in re.findall(r"\b([0-9]+) ([a-z]+)\b", lines[-1] if lines else ""):
        if word in counts:
            counts[word] = int(number)
    failed = counts["failed"] + counts["error"] + counts["errors"]
    problem = None
    if returncode:
        problem = "exit code %d" % returncode
    elif failed:
        problem = "%d failed, though it ended with 0" % failed
    elif not counts["passed"]:
        problem = "it ran no test"
    elif counts["skipped"] or counts["deselected"]:
        problem = "%d left out" % (counts["skipped"] + counts["deselected"])
    more = _LEFT.findall(output)
    return Outcome(counts["passed"], failed, problem, more[-1] if more else "")


def gates(output: str) -> List[str]:
    """The lines of the gates within a stage."""
    return [found.group(0) for found in _GATE.finditer(output)]


def run(stage: str) -> Outcome:
    """Run one stage, keep its output, print its line."""
    started = time.monotonic()
    log = LOGS / (stage + ".log")
    with log.open("w", encoding="utf-8") as handle:
        done = subprocess.run(
            ["make", "--no-print-directory", stage],
            cwd=ROOT, stdin=subprocess.DEVNULL, stdout=handle, stderr=subprocess.STDOUT, check=False,
        )  # fmt: skip
    output = log.read_text(encoding="utf-8", errors="replace")
    outcome = judge(output, done.returncode)
    line = "%-10s %5d passed  %7.1f s  %s" % (stage, outcome.passed, time.monotonic() - started, _verdict(outcome))
    # At once: another stage may be telling of itself.
    print("\n".join([*([output] if outcome.problem is not None else []), *gates(output), line]), flush=True)
    return outcome


def in_turn(stages: Sequence[str]) -> List[List[str]]:
    """The stages in their order, those together that run side by side."""
    turns: List[List[str]] = []
    for stage in stages:
        if turns and SIDE_BY_SIDE.get(turns[-1][-1]) == stage:
            turns[-1].append(stage)
        else:
            turns.append([stage])
    return turns


def together(stages: Sequence[str]) -> List[Outcome]:
    """Run these stages at the same time. What each prints comes when it has ended, whole."""
    with ThreadPoolExecutor(len(stages)) as pool:
        return list(pool.map(run, stages))


def _verdict(outcome: Outcome) -> str:
    if outcome.problem:
        return "FAILED: " + outcome.problem
    return "ok, " + outcome.left if outcome.left else "ok"


def main() -> int:
    """Entry point."""
    words = sys.argv[1:]
    stages = [WHOLE.get(stage, stage) for stage in STAGES] if words == ["--all"] else words or STAGES
    LOGS.mkdir(parents=True, exist_ok=True)
    started = time.monotonic()
    outcomes = [outcome for stages_at_once in in_turn(stages) for outcome in together(stages_at_once)]
    bad = [outcome for outcome in outcomes if outcome.problem is not None]
    print("%-10s %12s  %7.1f s" % ("all", "", time.monotonic() - started))
    print(
        "%d passed, %d failed"
        % (sum(outcome.passed for outcome in outcomes), sum(max(1, outcome.failed) for outcome in bad))
    )
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
