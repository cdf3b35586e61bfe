# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The demo as a stranger runs it: every proof holds, and the story is told to its end."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from lab import Lab

ROOT = Path(__file__).resolve().parents[2]


def test_the_demo_holds_what_it_promises(lab: Lab) -> None:
    done = subprocess.run(
        [sys.executable, "tests/demo/demo.py"],
        cwd=ROOT, env={**os.environ, "DEMO_KEEP": "1"}, stdin=subprocess.DEVNULL,
        capture_output=True, text=True, timeout=290, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    steps = [(int(step), int(of)) for step, of in re.findall(r"^\[(\d)/(\d)\] ", done.stdout, re.MULTILINE)]
    assert steps == [(number, len(steps)) for number in range(1, len(steps) + 1)]
    for host in ("gpu01", "gpu02", "gpu03"):
        assert done.stdout.count("✓ %s answers as kimi-k2.5-int4" % host) == 2
    assert "\033[" not in done.stdout, "colours in something that is no terminal"
    assert "make lab-down" in done.stdout.splitlines()[-1]
