# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Fixtures of the tests of the simulated driver and the stand-in vLLM."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from lab.driver.testing import LocalDriver, running_driver


@pytest.fixture
def driver_local(tmp_path: Path) -> Iterator[LocalDriver]:
    """A driver with the default eight GPUs, for one test."""
    with running_driver(tmp_path) as started:
        yield started
