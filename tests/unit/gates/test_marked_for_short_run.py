# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Two tests for test_short_run.py to run: one that a short run has, and one that it leaves out."""

from __future__ import annotations

import pytest


def test_that_a_short_run_has(request: pytest.FixtureRequest) -> None:
    assert request.node.get_closest_marker("thorough") is None


@pytest.mark.thorough("there has to be one to leave out")
def test_that_it_leaves_out(request: pytest.FixtureRequest) -> None:
    assert not request.config.getoption("short")
