# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the tests of a whole benchmark have in common."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from ansible_collections.gpufleet.vllm.tests.unit.plugins.module_utils._benchmark.streaming import streaming
from ansible_collections.gpufleet.vllm.tests.unit.plugins.module_utils._benchmark.world import World


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    with streaming() as server:
        yield World(tmp_path, server)
