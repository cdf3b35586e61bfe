# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Named checks run two at a time: a line each as it ends, and the whole output of those that fail."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Callable, List, Mapping, NamedTuple, Optional, Sequence

# The environment's own tools come first, also when a gate is run by itself.
PATH = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)])
# Each of them is one process that computes, and the smallest machine that this is for has two cores.
_AT_ONCE = 2
# What is wrong with a run that ended with 0, judged by its output; None: nothing.
Judge = Callable[[str], Optional[str]]


class Check(NamedTuple):
    """One command. ``env`` is added to the environment; ``judge`` looks at the output of a run that ended with 0."""

    name: str
    argv: Sequence[str]
    cwd: Path
    env: Mapping[str, str] = {}
    judge: Optional[Judge] = None


def quiet(output: str) -> Optional[str]:
    """A judge for tools that warn with exit code 0."""
    return "it printed something" if output.strip() else None


def verdict(name: str, seconds: float, problem: Optional[str], told: str = "") -> str:
    """A gate's one line: its name, how long it took, and ok or what is wrong. ``told`` says what ok stands for."""
    end = "FAILED: " + problem if problem is not None else "ok" + (told and ": " + told)
    return "  %-24s %6.1f s  %s" % (name, seconds, end)


def run(check: Check) -> bool:
    """Run one check and print its line. Returns whether it passed."""
    started = time.monotonic()
    try:
        done = subprocess.run(
            list(check.argv),
            cwd=check.cwd,
            env={**os.environ, "PATH": PATH, **check.env},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            check=False,
        )
        output, problem = done.stdout, "exit code %d" % done.returncode if done.returncode else None
    except OSError as exc:
        output, problem = "", "cannot be run: %s" % exc
    if problem is None and check.judge is not None:
        problem = check.judge(output)
    seconds = time.monotonic() - started
    lines = [verdict(check.name, seconds, problem)]
    if problem is not None:
        lines += ["    $ %s" % " ".join(check.argv), *("    %s" % line for line in output.splitlines()), ""]
    # At once: another check may end at the same moment.
    sys.stdout.write("".join("%s\n" % line for line in lines))
    sys.stdout.flush()
    return problem is None


def run_all(checks: List[Check]) -> int:
    """Run every check, also after one has failed. Returns the exit code; the last line counts."""
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        passed = list(pool.map(run, checks)).count(True)
    print("%d passed, %d failed" % (passed, len(checks) - passed))
    return 0 if checks and passed == len(checks) else 1


def main(checks: List[Check]) -> None:
    """Entry point of a gate: run the checks named on the command line, or all."""
    wanted = sys.argv[1:]
    unknown = set(wanted) - {check.name for check in checks}
    if unknown:
        raise SystemExit("No such check: %s. There are: %s" % (", ".join(unknown), ", ".join(c.name for c in checks)))
    sys.exit(run_all([check for check in checks if not wanted or check.name in wanted]))
