# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a checkpoint's headers say goes into the plan by role."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ansible_collections.gpufleet.vllm.plugins.module_utils._memory_plan.plan import plan_memory
from ansible_collections.gpufleet.vllm.plugins.module_utils._memory_plan.types import checkpoint_bytes
from ansible_collections.gpufleet.vllm.plugins.module_utils._model.checkpoint import Checkpoint
from ansible_collections.gpufleet.vllm.plugins.module_utils._model.facts import facts_from_config

from .test_plan import H100, LLAMA


def test_what_a_checkpoint_says_of_itself() -> None:
    parts = {"embedding": 10**9, "head": 10**9, "rest": 14 * 10**9, "encoder": 10**9, "nextn": 2 * 10**9}
    found = Checkpoint("/models/x", "safetensors", ("a",), 19 * 10**9, {"F32": 0, "BF16": 19 * 10**9}, parts)
    checkpoint = checkpoint_bytes(found)
    planned = plan_memory(facts_from_config(LLAMA), [H100], {}, checkpoint, "0.31.0")
    assert planned.weights_source == "checkpoint"
    assert planned.weights_mib_per_gpu == -(-17 * 10**9 // 2**20)  # without next-token prediction
    # Stored wide, loaded in half precision.
    wide = replace(found, dtype_bytes={"F32": 19 * 10**9})
    halved = plan_memory(facts_from_config(LLAMA), [H100], {}, checkpoint_bytes(wide), "0.31.0")
    assert halved.weights_mib_per_gpu == pytest.approx(8.5e9 / 2**20, abs=1)
    full = plan_memory(facts_from_config(LLAMA), [H100], {"dtype": "float32"}, checkpoint_bytes(wide), "0.31.0")
    assert full.weights_mib_per_gpu == planned.weights_mib_per_gpu


def test_a_checkpoint_that_is_not_complete_says_nothing() -> None:
    assert checkpoint_bytes(Checkpoint("/models/x", "safetensors", ("a",), 10**9, missing_files=("b",))) is None
    assert checkpoint_bytes(Checkpoint("/models/x", "")) is None
