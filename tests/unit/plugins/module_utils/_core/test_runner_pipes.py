# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A command that is given up leaves no pipe open, whatever it had not read by then."""

from __future__ import annotations

import sys
import warnings

import pytest

from ansible_collections.gpufleet.vllm.plugins.module_utils._core.runner import Runner


@pytest.mark.parametrize("size", [10, 1_000_000], ids=["a line", "more than a pipe holds"])
def test_the_input_of_a_command_that_is_given_up_is_closed(size: int) -> None:
    with warnings.catch_warnings(record=True) as left_open:
        warnings.simplefilter("always", ResourceWarning)
        done = Runner().run([sys.executable, "-c", "import time; time.sleep(60)"], 0.0, stdin="x" * size)
    assert done.timed_out and not done.abandoned
    assert [str(each.message) for each in left_open] == []
