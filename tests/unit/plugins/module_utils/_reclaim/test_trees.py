# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Random trees of processes against random scopes; the end-to-end tests run five hundred more."""

from __future__ import annotations

import os

from ansible_collections.gpufleet.vllm.tests.unit.plugins.module_utils._reclaim.trees import grow

TREES = int(os.environ.get("GPUFLEET_TREES", "50"))
SEED = int(os.environ.get("GPUFLEET_TREES_SEED", "1"))


def test_nobody_outside_the_scope_is_signalled_and_everybody_inside_is_gone_or_named() -> None:
    forest = grow(TREES, SEED)
    # A property that holds because nothing happens proves nothing.
    assert forest.ended >= TREES // 5 and forest.spared >= TREES and forest.units >= TREES // 20
