# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Each rule of parallel sizes by itself, at the sizes where it bites."""

from __future__ import annotations

import time
from typing import Any

import pytest

from ansible_collections.gpufleet.vllm.plugins.module_utils._model.facts import facts_from_config
from ansible_collections.gpufleet.vllm.plugins.module_utils._model.parallel import check_parallel, working_sizes
from ansible_collections.gpufleet.vllm.plugins.module_utils._model.quantisation import read_quantisation

FP8 = {"quant_method": "fp8", "weight_block_size": [128, 128]}
GPTQ = {"quant_method": "gptq", "bits": 4, "group_size": 128, "desc_act": True, "sym": True}
INT4_32 = {
    "quant_method": "compressed-tensors",
    "config_groups": {
        "group_0": {
            "targets": ["Linear"],
            "weights": {"num_bits": 4, "type": "int", "group_size": 32, "strategy": "group"},
        }
    },
}
W8A16 = {
    "quant_method": "compressed-tensors",
    "config_groups": {
        "group_0": {"targets": ["Linear"], "weights": {"num_bits": 8, "type": "int", "strategy": "channel"}}
    },
}
DENSE = {"num_attention_heads": 64, "num_key_value_heads": 8, "hidden_size": 8192, "num_hidden_layers": 4}
MOE = {**DENSE, "num_experts": 128, "moe_intermediate_size": 1536}


def bad(config: dict[str, Any], tp: int, **more: Any) -> set[str]:
    """The rules that say no."""
    return {check.id for check in check_parallel(facts_from_config(config), tp, **more) if check.status == "fail"}


def status(config: dict[str, Any], tp: int, rule: str, **more: Any) -> str | None:
    """What one rule says, None when it says nothing."""
    found = [check.status for check in check_parallel(facts_from_config(config), tp, **more) if check.id == rule]
    return found[0] if found else None


@pytest.mark.parametrize(
    ("config", "tp", "expected"),
    [
        # 29568 = 231 x 128: whole, but in halves no longer.
        ({**DENSE, "intermediate_size": 29568, "quantization_config": GPTQ}, 2, {"quant_group_dense"}),
        ({**DENSE, "intermediate_size": 29696, "quantization_config": GPTQ}, 8, set()),
        ({**DENSE, "intermediate_size": 29568, "quantization_config": W8A16}, 4, {"quant_tile_dense"}),
        ({**DENSE, "intermediate_size": 28672, "quantization_config": W8A16}, 4, set()),
        ({**DENSE, "intermediate_size": 18432, "quantization_config": FP8}, 32, {"quant_block_dense"}),
        ({**DENSE, "num_attention_heads": 14, "num_key_value_heads": 2, "hidden_size": 896, "quantization_config": GPTQ}, 2,
         {"quant_group_attention"}),
        ({**MOE, "quantization_config": GPTQ}, 8, {"quant_group_experts"}),
        ({**MOE, "quantization_config": GPTQ}, 4, set()),
        ({**MOE, "moe_intermediate_size": 2048, "quantization_config": INT4_32}, 8, set()),
        ({**MOE, "moe_intermediate_size": 768, "quantization_config": {"quant_method": "modelopt", "quant_algo": "NVFP4"}}, 8, set()),
        ({**MOE, "moe_intermediate_size": 704, "quantization_config": {"quant_method": "modelopt", "quant_algo": "NVFP4"}}, 8,
         {"quant_group_experts"}),
        ({**MOE, "moe_intermediate_size": 2880, "quantization_config": {"quant_method": "mxfp4"}}, 8, set()),
        ({**MOE, "shared_expert_intermediate_size": 512, "quantization_config": FP8}, 8,
         {"quant_block_experts", "quant_block_shared_experts"}),
        ({**MOE, "vocab_size": 151936, "num_attention_heads": 48, "num_key_value_heads": 3}, 3, {"vocabulary"}),
        ({**MOE, "vocab_size": 128256, "num_attention_heads": 48, "num_key_value_heads": 3}, 3, set()),
    ],
)  # fmt: skip
def test_sizes_that_are_refused(config: dict[str, Any], tp: int, expected: set[str]) -> None:
    assert bad(config, tp) == expected


def test_expert_parallelism_keeps_routed_experts_whole_but_not_shared_ones() -> None:
    config = {**MOE, "shared_expert_intermediate_size": 512, "quantization_config": FP8}
    assert bad(config, 8, expert_parallel=True) == {"quant_block_shared_experts"}
    assert bad({**MOE, "quantization_config": FP8}, 8, expert_parallel=True) == set()


def test_dense_layers_of_a_mixture_are_split_too() -> None:
    config = {**MOE, "first_k_dense_replace": 1, "intermediate_size": 10944, "quantization_config": FP8}
    assert bad(config, 8, expert_parallel=True) == {"quant_block_dense"}
    assert "quant_block_dense" not in bad({**config, "first_k_dense_replace": 0}, 8, expert_parallel=True)


def test_an_odd_width_that_is_not_split_warns() -> None:
    assert status({**DENSE, "intermediate_size": 10944, "quantization_config": FP8}, 1, "quant_block_dense") == "warn"
    assert status({**DENSE, "intermediate_size": 10944, "quantization_config": GPTQ}, 1, "quant_group_dense") == "warn"
    assert status({**DENSE, "intermediate_size": 10944, "quantization_config": W8A16}, 1, "quant_tile_dense") == "warn"


def test_experts_of_several_widths_must_all_fit() -> None:
    config = {**MOE, "moe_intermediate_size": [2048, 1536], "quantization_config": FP8}
    assert bad(config, 8) == {"quant_block_experts"} and bad(config, 4) == set()
    unknown = {**MOE, "moe_intermediate_size": "wide"}
    assert status(unknown, 8, "mlp_experts") == "skip"


@pytest.mark.parametrize(
    ("architecture", "expected"),
    [
        ("Glm4vMoeForConditionalGeneration", "fail"),
        ("Qwen2_5_VLForConditionalGeneration", "fail"),
        ("InternVLChatModel", "pass"),
        ("MadeUpForConditionalGeneration", "warn"),
    ],
)
def test_encoders(architecture: str, expected: str) -> None:
    config = {"architectures": [architecture], "text_config": MOE, "vision_config": {"num_heads": 12}}
    assert status(config, 8, "encoder_heads") == expected
    assert status(config, 4, "encoder_heads") is None
    assert status(config, 8, "encoder_heads", encoder_data_parallel=True) is None
    if expected == "fail":
        (check,) = [one for one in check_parallel(facts_from_config(config), 8) if one.id == "encoder_heads"]
        assert "1, 2 or 4 would work" in (check.fix or "")
        assert "With mm_encoder_tp_mode: data, tensor_parallel_size 8 works too." in (check.fix or "")


def test_an_encoder_that_stands_whole_beside_one_that_is_split() -> None:
    config = {
        "architectures": ["Qwen2_5OmniModel"],
        "thinker_config": {"text_config": MOE, "audio_config": {"encoder_attention_heads": 20}},
    }
    assert status(config, 8, "encoder_heads") == "pass"


def test_states() -> None:
    delta = {
        **DENSE,
        "num_attention_heads": 24,
        "num_key_value_heads": 4,
        "full_attention_interval": 4,
        "linear_num_key_heads": 16,
        "linear_num_value_heads": 48,
        "linear_key_head_dim": 128,
        "linear_value_head_dim": 128,
    }
    assert bad(delta, 8) == set() and bad(delta, 12) == {"state_heads"}
    assert "quant_block_state" in bad({**delta, "linear_value_head_dim": 96, "quantization_config": FP8}, 8)
    assert status({**delta, "quantization_config": GPTQ}, 2, "quant_tile_state") == "warn"
    kept = {**GPTQ, "dynamic": {r"-:.*linear_attn\..*": {}}}
    assert status({**delta, "quantization_config": kept}, 2, "quant_tile_state") is None
    mamba = {
        **DENSE,
        "attn_layer_indices": [1],
        "mamba_d_state": 128,
        "mamba_n_heads": 128,
        "mamba_d_head": 64,
        "mamba_n_groups": 4,
    }
    assert bad(mamba, 8) == {"state_heads"} and bad({**mamba, "mamba_n_groups": 1}, 8) == set()


@pytest.mark.parametrize(
    ("tp", "dcp", "expected"),
    [(16, 2, set()), (16, 3, {"context_parallel"}), (8, 2, {"context_parallel"}), (32, 8, {"context_parallel"})],
)
def test_context_parallelism(tp: int, dcp: int, expected: set[str]) -> None:
    assert bad(DENSE, tp, dcp=dcp) == expected


def test_latent_attention_is_free_of_kv_heads() -> None:
    mla = {**DENSE, "kv_lora_rank": 512, "qk_rope_head_dim": 64, "qk_nope_head_dim": 128, "v_head_dim": 128}
    assert bad(mla, 32) == set() and bad(mla, 8, dcp=8) == set()
    assert bad({**mla, "quantization_config": FP8}, 64) == {"quant_block_attention"}


def test_models_whose_layers_differ_in_kv_heads() -> None:
    listed = {"num_attention_heads": 16, "num_kv_heads": [8, 4, 3], "num_hidden_layers": 3}
    assert bad(listed, 4) == {"kv_heads"} and bad({**listed, "num_kv_heads": [8, 4, 2]}, 4) == set()


def test_what_relaxed_versions_do_with_it_is_a_warning() -> None:
    config = {**DENSE, "intermediate_size": 29568, "quantization_config": W8A16}
    assert status(config, 4, "quant_tile_dense", refines_blocks=True) == "warn"


def test_an_unknown_quantisation_is_said_and_nothing_is_refused_for_it() -> None:
    config = {**DENSE, "intermediate_size": 29568, "quantization_config": {"bits": 4, "mode": "affine"}}
    assert status(config, 4, "quantisation") == "skip" and bad(config, 4) == set()


def names(raw: dict[str, Any], module: str, layers: int = 4, among: list[int] | None = None) -> bool:
    """Whether the module's kind is quantised."""
    read = read_quantisation({"quant_method": "fp8", **raw})
    assert read is not None
    return read.covers(module, layers, among)


@pytest.mark.parametrize(
    ("ignored", "covered"),
    [
        (["lm_head"], True),
        (["self_attn"], False),
        (["model.layers.*.self_attn*"], False),
        (["model.layers.1.self_attn*"], True),
        (["model.layers.%d.self_attn*" % layer for layer in range(4)], False),
        ([r"re:.*self_attn.*"], False),
        ([r"re:.*layers\.0\..*"], True),
        ([r"re:.*layers\.[0-3]\..*"], False),
        (["re:(((a+)+)+)+$"], True),
        (["re:["], True),
        (["re:" + ".*" * 200], True),
        (["self_att"], True),
        ([None, 4, ""], True),
    ],
)
def test_lists_of_what_is_not_quantised(ignored: list[Any], covered: bool) -> None:
    started = time.process_time()
    assert names({"ignore": ignored}, "model.layers.0.self_attn.o_proj") is covered
    assert time.process_time() - started < 1


def test_a_kind_is_left_out_when_it_is_in_all_the_layers_where_it_stands() -> None:
    ignored = {"modules_to_not_convert": ["model.layers.0.mlp"]}
    assert names(ignored, "model.layers.0.mlp.down_proj", 4, [0]) is False
    assert names(ignored, "model.layers.0.mlp.down_proj", 4, [0, 1]) is True


def test_groups_of_modules_with_a_scheme_of_their_own() -> None:
    raw = {
        "quant_method": "compressed-tensors",
        "config_groups": {
            "group_0": {
                "targets": ["re:.*self_attn.*"],
                "weights": {"num_bits": 8, "type": "float", "strategy": "channel"},
            },
            "group_1": {"targets": ["re:.*experts.*"], "weights": {"num_bits": 4, "type": "int", "group_size": 128}},
        },
    }
    read = read_quantisation(raw)
    assert read is not None
    attention = read.of(["model.layers.0.self_attn.o_proj"])
    experts = read.of(["model.layers.0.mlp.experts.0.down_proj"])
    assert attention is not None and attention.group is None
    assert experts is not None and experts.group == 128 and experts.tiles
    assert read.of(["model.layers.0.mlp.down_proj"]) is None
    assert bad({**MOE, "quantization_config": raw}, 8) == {"quant_group_experts"}


@pytest.mark.parametrize(
    ("raw", "group", "bits", "tiles"),
    [
        ({"quant_method": "auto-round", "bits": 4, "group_size": 128}, 128, 4, True),
        ({"quant_method": "awq", "w_bit": 4, "q_group_size": 64}, 64, 4, True),
        ({"quant_method": "quark", "global_quant_config": {"weight": {"qscheme": "per_group", "group_size": 32}}}, 32, None, False),
        ({"quant_method": "torchao", "quant_type": {"default": {"_data": {"group_size": 64}}}}, 64, None, False),
        ({"quant_method": "bitsandbytes", "load_in_4bit": True}, None, None, False),
        ({"qformat_weight": "fp8_e4m3", "qscheme_act": "TENSOR"}, None, None, False),
        ({"quant_method": "modelopt", "quant_algo": "NVFP4", "config_groups": {"group_0": {"weights": {
            "num_bits": 4, "type": "float", "group_size": 16}, "targets": ["Linear"]}}}, 16, 4, False),
        ({"quant_method": ["fp8"], "group_size": "128", "bits": None, "config_groups": []}, None, None, False),
    ],
)  # fmt: skip
def test_more_forms(raw: dict[str, Any], group: Any, bits: Any, tiles: bool) -> None:
    read = read_quantisation(raw)
    assert read is not None and (read.group, read.bits, read.tiles) == (group, bits, tiles)


def test_modules_that_only_some_lists_name() -> None:
    read = read_quantisation({**GPTQ, "modules_in_block_to_quantize": [["mlp.experts"], ["self_attn.o_proj"]]})
    assert read is not None
    assert (
        read.of(["model.layers.0.self_attn.o_proj"]) is not None and read.of(["model.layers.0.mlp.down_proj"]) is None
    )
    config = {
        **DENSE,
        "intermediate_size": 29568,
        "quantization_config": {**GPTQ, "modules_in_block_to_quantize": [["mlp.down_proj"]]},
    }
    assert bad(config, 2) == {"quant_group_dense"}
    rounded = {"quant_method": "auto-round", "bits": 4, "group_size": 128, "extra_config": {"self_attn": {"bits": 16}}}
    assert names(rounded, "model.layers.0.self_attn.o_proj") is False


def test_a_list_of_thousands_of_names_takes_no_time() -> None:
    ignored = [
        "model.layers.%d.%s.%d" % (layer, part, each)
        for layer in range(90)
        for part in ("mlp.gate", "a.b")
        for each in range(60)
    ]
    config = {**MOE, "num_hidden_layers": 90, "quantization_config": {**FP8, "modules_to_not_convert": ignored}}
    facts = facts_from_config(config)
    started = time.process_time()
    assert working_sizes(facts, 16) == [1, 2, 4]
    assert time.process_time() - started < 0.5


def test_the_keys_rows_of_one_rank_hold_whole_fp8_blocks() -> None:
    config = {**DENSE, "hidden_size": 4096, "head_dim": 64, "intermediate_size": 16384, "quantization_config": FP8}
    assert bad(config, 8) == {"quant_block_attention"} and bad(config, 4) == set()
    assert working_sizes(facts_from_config(config), 8) == [1, 2, 4]
    assert status(config, 8, "quant_block_attention", refines_blocks=True) == "warn"


def test_the_gates_of_state_layers_hold_whole_fp8_blocks_unless_they_were_left_as_they_were() -> None:
    config = {
        "num_attention_heads": 16,
        "num_key_value_heads": 4,
        "head_dim": 256,
        "hidden_size": 4096,
        "intermediate_size": 12288,
        "num_hidden_layers": 8,
        "full_attention_interval": 4,
        "linear_num_value_heads": 32,
        "linear_num_key_heads": 16,
        "linear_key_head_dim": 128,
        "linear_value_head_dim": 128,
        "linear_conv_kernel_dim": 4,
        "quantization_config": FP8,
    }
    assert bad(config, 1) == {"quant_block_state"}
    assert status(config, 1, "quant_block_state", refines_blocks=True) == "warn"
    left = {**FP8, "modules_to_not_convert": ["linear_attn.in_proj_ba", "linear_attn.in_proj_b"]}
    assert bad({**config, "quantization_config": left}, 1) == set()


def test_an_encoder_and_a_decoder_in_one_configuration() -> None:
    config = {
        "architectures": ["WhisperForConditionalGeneration"],
        "model_type": "whisper",
        "d_model": 1280,
        "encoder_attention_heads": 20,
        "decoder_attention_heads": 20,
        "num_hidden_layers": 32,
        "max_target_positions": 448,
        "vocab_size": 51866,
    }
    assert bad(config, 8) == {"attention_heads", "kv_heads", "encoder_heads"}
    assert working_sizes(facts_from_config(config), 8) == [1, 2, 4]
    assert bad({**config, "encoder_attention_heads": 6}, 4) == {"encoder_heads"}
    assert facts_from_config(config).is_encoder_decoder
