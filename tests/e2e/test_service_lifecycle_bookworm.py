# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The lifecycle matrix on Debian 12; a file of its own, so that it runs beside the other one."""

from __future__ import annotations

import pytest
from e2e.lifecycle import CELLS, NAMES, hold_to

from lab import Host, Lab


@pytest.fixture(scope="module")
def machine(lab: Lab) -> Host:
    """A host, clean once."""
    chosen = lab.hosts["gpu01"]
    chosen.reset()
    return chosen


@pytest.mark.parametrize(("state", "name"), CELLS, ids=NAMES)
def test_each_state_from_each_state(machine: Host, state: str, name: str) -> None:
    hold_to(machine, state, name)
