# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The script for a machine with a real GPU, against the simulated driver: so that it runs on the day it is needed."""

from __future__ import annotations

import sys
from pathlib import Path

from lab.driver.testing import CLIENT, LocalDriver

SCRIPT = Path(__file__).resolve().parents[1] / "gpu" / "check_real_gpu.py"


def test_it_agrees_with_a_driver_that_tells_the_truth(driver_local: LocalDriver) -> None:
    holder = f"{sys.executable} {CLIENT} --gpu 1 --mib 1024 --seconds 6"
    done = driver_local.run(sys.executable, str(SCRIPT), "--gpu", "1", "--holder", holder, "--dev", str(driver_local.dev))
    assert done.returncode == 0, done.stdout + done.stderr
    assert "all as it should be" in done.stdout and "WRONG" not in done.stdout


def test_it_says_what_is_wrong(driver_local: LocalDriver) -> None:
    driver_local.gpus.set(1, process_memory="not_available", unlisted=True)
    holder = f"{sys.executable} {CLIENT} --gpu 1 --mib 1024 --seconds 6"
    # without its device nodes the holder is nobody
    done = driver_local.run(sys.executable, str(SCRIPT), "--gpu", "1", "--holder", holder, "--dev", "/nowhere")
    assert done.returncode == 1 and "WRONG the holder is listed once: []" in done.stdout
