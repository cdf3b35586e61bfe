# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What layers keep of the tokens they have seen, in the ways that configurations say it."""

from __future__ import annotations

from typing import Any

import pytest

from ansible_collections.gpufleet.vllm.plugins.module_utils._model.facts import facts_from_config

BASE = {"num_attention_heads": 16, "num_key_value_heads": 4, "head_dim": 128}
LETTERS = {"full": "f", "sliding": "s", "chunked": "c", "linear": "l", "full_and_linear": "b", "none": "-"}


def kinds(config: dict[str, Any]) -> str:
    """One letter for each layer."""
    return "".join(LETTERS[kind] for kind in facts_from_config({**BASE, **config}).layer_kinds)


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({"num_hidden_layers": 3}, "fff"),
        ({"num_hidden_layers": 3, "sliding_window": None}, "fff"),
        ({"num_hidden_layers": 3, "sliding_window": 4096, "use_sliding_window": False}, "fff"),
        ({"num_hidden_layers": 3, "sliding_window": 4096, "model_type": "mistral"}, "sss"),
        ({"num_hidden_layers": 3, "sliding_window": 4096, "model_type": "qwen2"}, "fff"),
        (
            {
                "num_hidden_layers": 3,
                "sliding_window": 4096,
                "model_type": "qwen2",
                "use_sliding_window": True,
                "max_window_layers": 2,
            },
            "ffs",
        ),
        ({"num_hidden_layers": 4, "sliding_window": 4096, "model_type": "gemma2"}, "sfsf"),
        ({"num_hidden_layers": 4, "sliding_window": 128, "architectures": ["GptOssForCausalLM"]}, "sfsf"),
        ({"num_hidden_layers": 7, "sliding_window": 512, "model_type": "gemma3_text"}, "sssssfs"),
        ({"num_hidden_layers": 4, "sliding_window": 512, "sliding_window_pattern": 2}, "sfsf"),
        ({"num_hidden_layers": 2, "layer_types": ["sliding_attention", "full_attention"]}, "sf"),
        # The layers for next-token prediction are counted apart.
        ({"num_hidden_layers": 2, "layer_types": ["linear_attention", "full_attention", "full_attention"]}, "lf"),
        ({"num_hidden_layers": 3, "layers_block_type": ["mamba", "hybrid", "mlp"]}, "lb-"),
        ({"num_hidden_layers": 4, "hybrid_override_pattern": "M*-E"}, "lf--"),
        ({"num_hidden_layers": 3, "attn_type_list": [0, 0, 1]}, "llf"),
        ({"num_hidden_layers": 3, "hybrid_layer_pattern": [0, 1, 1]}, "fss"),
        ({"num_hidden_layers": 5, "block_types": ["recurrent", "recurrent", "attention"]}, "llsll"),
        ({"num_hidden_layers": 4, "attn_layer_indices": [2], "mamba_d_state": 128}, "llfl"),
        ({"num_hidden_layers": 4, "linear_attn_config": {"full_attn_layers": [4]}}, "lllf"),
        ({"num_hidden_layers": 5, "attn_layer_period": 4, "attn_layer_offset": 2, "mamba_d_state": 16}, "llfll"),
        ({"num_hidden_layers": 5, "full_attention_interval": 4, "linear_num_value_heads": 32}, "lllfl"),
        ({"num_hidden_layers": 5, "layer_group_size": 2, "model_type": "bailing_moe_linear"}, "lflff"),
        ({"num_hidden_layers": 5, "attention_chunk_size": 8192}, "cccfc"),
        ({"num_hidden_layers": 3, "attention_chunk_size": 8192, "no_rope_layers": [1, 0, 1]}, "cfc"),
        ({"num_hidden_layers": 2, "model_type": "mamba2", "state_size": 128}, "ll"),
        ({"num_hidden_layers": 2, "model_type": "falcon_h1", "mamba_d_state": 256}, "bb"),
        (
            {
                "num_hidden_layers": 2,
                "block_configs": [{"attention": {"no_op": True}}, {"attention": {"n_heads_in_group": 8}}],
            },
            "-f",
        ),
    ],
)
def test_kinds(config: dict[str, Any], expected: str) -> None:
    assert kinds(config) == expected


@pytest.mark.parametrize(
    "config",
    [
        {},
        {"num_hidden_layers": 2**30},
        {"num_hidden_layers": 3, "layer_types": ["full_attention", "made_up", "full_attention"]},
        {"num_hidden_layers": 3, "layer_types": ["full_attention"]},
        {"num_hidden_layers": 3, "layer_types": "full_attention"},
        {"num_hidden_layers": 3, "layer_types": [None, {}, []]},
        {"num_hidden_layers": 3, "hybrid_override_pattern": "MXM"},
        {"num_hidden_layers": 3, "attn_type_list": [0, 2, 1]},
        {"num_hidden_layers": 3, "attn_layer_indices": [7]},
        {"num_hidden_layers": 3, "sliding_window": "wide"},
        {"num_hidden_layers": 3, "sliding_window": 4096, "model_type": "made_up"},
        {"num_hidden_layers": 3, "ssm_cfg": {"layer": "Mamba2"}},
        {"num_hidden_layers": 3, "block_configs": [{"attention": {"replace_with_linear": True}}]},
    ],
)
def test_what_is_not_understood_is_not_guessed(config: dict[str, Any]) -> None:
    assert kinds(config) == ""


def test_heads_and_dimensions_that_differ_by_kind() -> None:
    mimo = facts_from_config(
        {
            **BASE,
            "num_hidden_layers": 2,
            "hybrid_layer_pattern": [0, 1],
            "head_dim": 192,
            "v_head_dim": 128,
            "swa_num_key_value_heads": 8,
            "swa_head_dim": 192,
            "swa_v_head_dim": 128,
        }
    )
    assert [(one.kv_heads, one.key_dim, one.value_dim) for one in mimo.attention_layers] == [
        (4, 192, 128),
        (8, 192, 128),
    ]
    gemma = facts_from_config(
        {
            "num_attention_heads": 8,
            "num_key_value_heads": 8,
            "head_dim": 256,
            "global_head_dim": 512,
            "num_global_key_value_heads": 2,
            "num_hidden_layers": 3,
            "layer_types": ["sliding_attention", "full_attention", "full_attention"],
            "num_kv_shared_layers": 1,
        }
    )
    assert [(one.kv_heads, one.key_dim, one.owns_cache) for one in gemma.attention_layers] == [
        (8, 256, True),
        (2, 512, True),
        (2, 512, False),
    ]
    assert (gemma.global_head_dim, gemma.num_kv_shared_layers) == (512, 1)
    listed = facts_from_config({"num_attention_heads": 16, "num_kv_heads": [4, 2], "num_hidden_layers": 2})
    assert listed.kv_heads is None and [one.kv_heads for one in listed.attention_layers] == [4, 2]
    searched = facts_from_config(
        {
            "num_attention_heads": 64,
            "num_hidden_layers": 2,
            "block_configs": [{"attention": {"no_op": True}}, {"attention": {"n_heads_in_group": 8}}],
        }
    )
    assert [one.kv_heads for one in searched.attention_layers] == [None, 8]


@pytest.mark.parametrize(
    ("config", "family", "sizes"),
    [
        (
            {
                "full_attention_interval": 4,
                "linear_num_key_heads": 16,
                "linear_num_value_heads": 32,
                "linear_key_head_dim": 128,
                "linear_value_head_dim": 128,
                "linear_conv_kernel_dim": 4,
            },
            "gated_delta_net",
            {"key_heads": 16, "value_heads": 32, "key_head_dim": 128, "conv_kernel": 4},
        ),
        (
            {
                "linear_attn_config": {
                    "full_attn_layers": [4],
                    "num_heads": 32,
                    "head_dim": 128,
                    "short_conv_kernel_size": 4,
                }
            },
            "kimi_delta",
            {"value_heads": 32, "value_head_dim": 128, "conv_kernel": 4},
        ),
        (
            {
                "model_type": "nemotron_h",
                "hybrid_override_pattern": "M*M*",
                "ssm_state_size": 128,
                "mamba_num_heads": 128,
                "mamba_head_dim": 64,
                "n_groups": 8,
                "conv_kernel": 4,
                "expand": 2,
                "hidden_size": 4480,
            },
            "mamba2",
            {"heads": 128, "head_dim": 64, "state_size": 128, "groups": 8, "inner_size": 8192, "conv_kernel": 4},
        ),
        (
            {
                "attn_layer_period": 8,
                "attn_layer_offset": 4,
                "mamba_d_state": 16,
                "mamba_d_conv": 4,
                "mamba_expand": 2,
                "hidden_size": 4096,
            },
            "mamba1",
            {"heads": None, "state_size": 16, "inner_size": 8192, "conv_kernel": 4},
        ),
        (
            {
                "attn_layer_indices": [1],
                "mamba_d_state": 128,
                "mamba_n_heads": 128,
                "mamba_d_head": 64,
                "mamba_n_groups": 1,
                "mamba_expand": 2,
                "hidden_size": 4096,
            },
            "mamba2",
            {"heads": 128, "head_dim": 64, "groups": 1, "inner_size": 8192},
        ),
        ({"attn_type_list": [0, 0, 0, 1]}, "lightning", {"heads": 16, "key_head_dim": 128}),
        (
            {"layer_types": ["conv", "conv", "full_attention", "conv"], "conv_L_cache": 3, "hidden_size": 2048},
            "short_conv",
            {"conv_kernel": 3, "inner_size": 2048},
        ),
    ],
)
def test_states(config: dict[str, Any], family: str, sizes: dict[str, Any]) -> None:
    state = facts_from_config({**BASE, "num_hidden_layers": 4, **config}).linear
    assert state is not None and state.family == family
    assert {name: getattr(state, name) for name in sizes} == sizes


def test_a_model_with_full_attention_alone_has_no_state() -> None:
    assert facts_from_config({**BASE, "num_hidden_layers": 2, "conv_kernel": 4, "n_groups": 1}).linear is None


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({"num_experts": 8}, "eeee"),
        ({"num_experts": 1}, "...."),
        ({}, "...."),
        ({"n_routed_experts": 8, "first_k_dense_replace": 1, "moe_layer_freq": 1}, ".eee"),
        ({"n_routed_experts": 8, "moe_layer_freq": [0, 1, 1, 1]}, ".eee"),
        ({"num_experts": 8, "decoder_sparse_step": 2}, ".e.e"),
        ({"num_experts": 8, "mlp_only_layers": [3]}, "eee."),
        ({"num_local_experts": 16, "interleave_moe_layer_step": 2}, ".e.e"),
        ({"num_experts": 16, "expert_layer_period": 2, "expert_layer_offset": 1}, ".e.e"),
        ({"moe_num_experts": 8, "moe_layer_start_index": 1, "moe_layer_end_index": 2}, ".ee."),
        ({"num_local_experts": 8, "moe_layers": [1, 3]}, ".e.e"),
        ({"n_routed_experts": 8, "hybrid_override_pattern": "ME*E"}, ".e.e"),
    ],
)
def test_where_experts_stand(config: dict[str, Any], expected: str) -> None:
    facts = facts_from_config({**BASE, "num_hidden_layers": 4, **config})
    assert "".join("e" if has else "." for has in facts.layer_has_experts) == expected


def test_other_facts() -> None:
    facts = facts_from_config(
        {
            "text_config": {**BASE, "num_hidden_layers": 2, "num_nextn_predict_layers": 1, "index_head_dim": 128},
            "tie_word_embeddings": True,
            "is_encoder_decoder": True,
            "dtype": "bfloat16",
        }
    )
    assert (facts.num_nextn_predict_layers, facts.index_head_dim, facts.tie_word_embeddings) == (1, 128, True)
    assert facts.is_encoder_decoder and facts.dtype == "bfloat16" and facts.count("full") == 2
    assert facts_from_config({}).tie_word_embeddings is None


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({"model_type": "step3_text", "num_attention_groups": 1}, 1),
        ({"model_type": "step3p5", "num_attention_groups": 8}, 8),
        ({"model_type": "llama"}, 64),
        ({"model_type": "gpt_neox"}, 64),
        ({}, 64),
        # The field may go by a name that isn't known here.
        ({"model_type": "tomorrows_model"}, None),
        ({"model_type": "tomorrows_model", "num_key_value_heads": 4}, 4),
    ],
)
def test_kv_heads_of_types_that_are_not_known_are_not_taken_for_the_attention_heads(
    config: dict[str, Any], expected: int | None
) -> None:
    facts = facts_from_config({"num_attention_heads": 64, "hidden_size": 4096, "num_hidden_layers": 2, **config})
    assert facts.kv_heads == expected
    assert [layer.kv_heads for layer in facts.attention_layers] == [expected] * 2
    assert facts_from_config({"num_attention_heads": 64, "kv_lora_rank": 512, **config}).kv_heads == 1
