# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The longest max_model_len that vLLM takes from a configuration."""

from __future__ import annotations

from typing import Any

import pytest

from ansible_collections.gpufleet.vllm.plugins.module_utils._model.facts import facts_from_config
from ansible_collections.gpufleet.vllm.plugins.module_utils._model.length import length_limit

YARN = {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({"max_position_embeddings": 196608}, 196608),
        ({"max_position_embeddings": 32768, "rope_scaling": YARN}, 131072),
        ({"max_position_embeddings": 131072, "rope_scaling": YARN}, 131072),
        ({"max_position_embeddings": 32768, "rope_parameters": {**YARN, "rope_type": "yarn"}}, 131072),
        ({"max_position_embeddings": 32768, "rope_parameters": {"a": YARN, "b": {"rope_type": "default"}}}, 131072),
        ({"max_position_embeddings": 294912, "yarn": {"original_max_position_embeddings": 8192, "factor": 36}}, 294912),
        ({"max_position_embeddings": 4096, "rope_scaling": {"type": "linear", "factor": 4.0}}, 16384),
        ({"max_position_embeddings": 4096, "rope_scaling": {"type": "dynamic", "factor": 2.0}}, 8192),
        ({"max_position_embeddings": 131072, "rope_scaling": {"rope_type": "llama3", "factor": 8.0}}, 131072),
        ({"max_position_embeddings": 131072, "rope_scaling": {"type": "longrope", "factor": 32.0}}, 131072),
        ({"max_position_embeddings": 131072, "model_type": "gemma3_text", "rope_scaling": {"rope_type": "linear", "factor": 8.0}}, 131072),
        ({"max_position_embeddings": 8192, "model_max_length": 131072}, 131072),  # Command-R
        ({"max_target_positions": 448}, 448),
        # What isn't understood is not taken for the plain length.
        ({"max_position_embeddings": 4096, "rope_scaling": {"type": "linear", "factor": "four"}}, None),
        ({"max_position_embeddings": 4096, "rope_scaling": {"type": "linear", "factor": float("inf")}}, None),
        ({}, None),
    ],
)  # fmt: skip
def test_the_length_that_is_derived(config: dict[str, Any], expected: int | None) -> None:
    assert length_limit(facts_from_config(config)) == expected
    assert length_limit(facts_from_config({"text_config": {"num_attention_heads": 8, **config}})) == expected
