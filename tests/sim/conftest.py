# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Fixtures of the tests of the simulated driver and the stand-in vLLM."""

from __future__ import annotations

import json
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from sim.standin_fixtures import standin_bench, standin_place

from lab.driver.testing import LocalDriver, running_driver

# pytest finds these here for every test of this directory.
__all__ = ["standin_bench", "standin_place"]

# Runs a snippet on the real pynvml; what the snippet puts into `out` comes back.
_PRELUDE = """
import json, sys
import pynvml as n
out = None
n.nvmlInit()
def gpu(index): return n.nvmlDeviceGetHandleByIndex(index)
def code(function, *arguments):
    try:
        function(*arguments)
    except n.NVMLError as error:
        return error.value
    return 0
"""


@pytest.fixture(scope="session")
def driver_session() -> Iterator[LocalDriver]:
    """One driver for all tests that need no variant of the library, where other users can reach it too."""
    with tempfile.TemporaryDirectory(prefix="driver-") as directory:
        Path(directory).chmod(0o755)
        with running_driver(Path(directory)) as started:
            yield started


@pytest.fixture
def driver_local(driver_session: LocalDriver) -> Iterator[LocalDriver]:
    """A driver with the default eight GPUs, idle and with nothing counted."""
    yield driver_session
    driver_session.clean()


@pytest.fixture
def driver_nvml(driver_local: LocalDriver) -> Callable[[str], Any]:
    """Runs a snippet on the real pynvml in a child, after nvmlInit; returns what it assigns to `out`."""
    return lambda snippet: driver_out(driver_local.python(_PRELUDE + snippet + "\nprint(json.dumps(out))"))


def driver_out(done: subprocess.CompletedProcess[str]) -> Any:
    """The JSON that a child printed last; an AssertionError with its stderr when it failed."""
    assert done.returncode == 0, f"exit {done.returncode}\n{done.stdout}\n{done.stderr}"
    return json.loads(done.stdout.splitlines()[-1])
