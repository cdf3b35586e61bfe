# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The rules one by one, with the numbers of models that people run."""

from __future__ import annotations

import time
from typing import Any

import pytest

from ansible_collections.gpufleet.vllm.plugins.module_utils._memory_plan.plan import plan_memory
from ansible_collections.gpufleet.vllm.plugins.module_utils._memory_plan.types import (
    CheckpointBytes,
    Gpu,
    MemoryPlan,
)
from ansible_collections.gpufleet.vllm.plugins.module_utils._model.facts import facts_from_config

from .truth import MODELS

RTX_PRO = Gpu(97_887, "NVIDIA RTX PRO 6000 Blackwell Server Edition")
H100, H200, A100 = (
    Gpu(81_559, "NVIDIA H100 80GB HBM3"),
    Gpu(143_771, "NVIDIA H200"),
    Gpu(81_920, "NVIDIA A100-SXM4-80GB"),
)
LLAMA = {
    "model_type": "llama",
    "num_hidden_layers": 32,
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "vocab_size": 128256,
    "max_position_embeddings": 131072,
    "tie_word_embeddings": False,
}


def plan(
    model: str | dict[str, Any], gpu: Gpu = H100, count: int = 8, version: str | None = "0.31.0", **args: Any
) -> MemoryPlan:
    """The plan of a known model, or of a configuration."""
    config = MODELS[model]["config"] if isinstance(model, str) else model
    size = MODELS[model].get("checkpoint_bytes") if isinstance(model, str) else None
    checkpoint = None if size is None else CheckpointBytes(size)
    return plan_memory(facts_from_config(config), [gpu] * count, args, checkpoint, version)


FOUNDING = {"tensor_parallel_size": 4, "max_model_len": 131072, "gpu_memory_utilization": 0.92}


@pytest.mark.parametrize("version", [None, "0.15.1", "0.18.0"])
def test_the_founding_case_runs_out_in_the_warm_up_and_256_is_suggested(version: str | None) -> None:
    found = plan("MiniMax-M2.5", RTX_PRO, 4, version, max_num_seqs=1024, **FOUNDING)
    assert found.verdict == "tight"
    assert any("sampler's warm-up runs again" in line and "1024 x vocabulary 200064" in line for line in found.reasons)
    assert found.largest_max_num_seqs == 256
    assert any("max_num_seqs to 256" in line for line in found.advice)
    assert found.warmup_mib == pytest.approx(39 * 1024 * 200064 / 2**20, abs=1)
    fewer = plan("MiniMax-M2.5", RTX_PRO, 4, version, max_num_seqs=256, **FOUNDING)
    assert (fewer.verdict, fewer.advice) == ("fits", ())
    assert (fewer.kv_tokens or 0) > (found.kv_tokens or 0)


def test_the_founding_case_by_default_and_what_the_gpus_hold() -> None:
    found = plan("MiniMax-M2.5", RTX_PRO, 4, None, **FOUNDING)
    assert found.max_num_seqs == 1024  # vLLM's default on a device of this size
    assert found.verdict == "tight"
    assert 54_000 <= (found.weights_mib_per_gpu or 0) <= 55_500
    assert found.kv_mib_per_token_per_gpu == 63488 / 2**20
    # vLLM asks for its share of what CUDA reports, a little less than what NVML does.
    assert found.free_mib_needed is not None and 0.91 * 97_887 < found.free_mib_needed < 0.92 * 97_887


def test_to_dict_has_the_names_of_the_result_and_no_others() -> None:
    assert list(plan("MiniMax-M2.5").to_dict()) == [
        "weights_mib_per_gpu",
        "kv_mib_per_token_per_gpu",
        "kv_tokens",
        "max_concurrency",
        "warmup_mib",
        "needed_mib_per_gpu",
        "free_mib_needed",
    ]
    assert list(plan("MiniMax-M2.5").suggest()) == ["tensor_parallel_size", "max_model_len", "max_num_seqs"]


@pytest.mark.parametrize(
    ("model", "args", "expected"),
    [
        ("Qwen3-235B-A22B-FP8", {"tensor_parallel_size": 4}, 94 * 2 * 1 * 128 * 2),
        ("Qwen3-235B-A22B-FP8", {"tensor_parallel_size": 8}, 94 * 2 * 1 * 128 * 2),  # four KV heads, each twice
        ("Qwen3-235B-A22B-FP8", {"tensor_parallel_size": 2}, 94 * 2 * 2 * 128 * 2),
        ("Qwen3-235B-A22B-FP8", {"tensor_parallel_size": 4, "kv_cache_dtype": "fp8"}, 94 * 2 * 1 * 128),
        ("Qwen3-235B-A22B-FP8", {"pipeline_parallel_size": 4}, 24 * 2 * 4 * 128 * 2),
        ("DeepSeek-V3/R1", {"tensor_parallel_size": 1}, 61 * 576 * 2),
        ("DeepSeek-V3/R1", {"tensor_parallel_size": 8}, 61 * 576 * 2),  # latent attention: the same on every rank
        ("DeepSeek-V3/R1", {"tensor_parallel_size": 8, "decode_context_parallel_size": 8}, 61 * 576 * 2 / 8),
        ("DeepSeek-V3/R1", {"pipeline_parallel_size": 2}, 31 * 576 * 2),
        ("GLM-5-FP8", {"tensor_parallel_size": 8}, 78 * (576 * 2 + 128 + 4)),  # with the indexer's keys
        ("GLM-5-FP8", {"tensor_parallel_size": 8, "kv_cache_dtype": "fp8"}, 78 * (656 + 128 + 4)),
        ("DeepSeek-V3/R1", {"speculative_config": {"method": "mtp", "num_speculative_tokens": 1}}, 62 * 576 * 2),
    ],
)
def test_bytes_per_token(model: str, args: dict[str, Any], expected: float) -> None:
    assert (plan(model, H200, **args).kv_mib_per_token_per_gpu or 0) * 2**20 == pytest.approx(expected, abs=0.5)


def test_the_first_engine_padded_latent_rows() -> None:
    found = plan("DeepSeek-V3/R1", H200, version="0.7.2", pipeline_parallel_size=2, tensor_parallel_size=8)
    assert (found.kv_mib_per_token_per_gpu or 0) * 2**20 == pytest.approx(31 * 640 * 2)


@pytest.mark.parametrize(
    ("gpu", "seqs"), [(H100, 1024), (H200, 1024), (RTX_PRO, 1024), (A100, 256), (Gpu(46_068, "NVIDIA L40S"), 256)]
)
def test_the_default_max_num_seqs_follows_the_device(gpu: Gpu, seqs: int) -> None:
    assert plan(LLAMA, gpu).max_num_seqs == seqs


def test_warm_up_by_version() -> None:
    sizes = [
        plan(LLAMA, version=version, max_num_seqs=1024).warmup_mib or 0 for version in ("0.11.0", "0.18.2", "0.19.0")
    ]
    assert sizes[0] == sizes[1] == pytest.approx(39 * 1024 * 128256 / 2**20, abs=1)
    assert sizes[2] < sizes[0] / 2


def test_graphs_come_on_top_before_0_21_and_are_nothing_when_eager() -> None:
    inside, outside = plan(LLAMA, version="0.21.0"), plan(LLAMA, version="0.20.2", gpu_memory_utilization=0.92)
    assert (outside.kv_tokens or 0) > (inside.kv_tokens or 0)
    assert (outside.free_mib_needed or 0) > (inside.free_mib_needed or 0)
    eager = plan(LLAMA, version="0.21.0", enforce_eager=True)
    assert eager.parts["cuda_graphs"].to_dict() == {"low": 0, "likely": 0, "high": 0}
    assert (eager.kv_tokens or 0) > (inside.kv_tokens or 0)


def test_windows_hold_a_window_and_what_is_in_flight() -> None:
    # One group of 18 full and one of 18 sliding layers: 1,024 tokens in flight and a window of 128 are 72 blocks and one.
    args = {"max_model_len": 131072, "max_num_batched_tokens": 1024, "kv_cache_memory_bytes": 2**30}
    found = plan("gpt-oss-120b", H100, 1, "0.11.0", **args)
    assert found.hybrid and found.kv_mib_per_token_per_gpu is None
    assert found.kv_blocks == 2**30 // (18 * 16 * 2048)
    assert found.max_concurrency == pytest.approx((found.kv_blocks or 0) / (131072 // 16 + 73), abs=0.001)
    # From 0.26 on, two batches may be in flight.
    newer = plan("gpt-oss-120b", H100, 1, "0.26.0", **args)
    assert newer.max_concurrency == pytest.approx((newer.kv_blocks or 0) / (131072 // 16 + 137), abs=0.001)


def test_without_the_hybrid_allocator_windows_cost_like_full_attention() -> None:
    found = plan("gpt-oss-120b", H100, 1, disable_hybrid_kv_cache_manager=True)
    assert (found.kv_mib_per_token_per_gpu or 0) * 2**20 == pytest.approx(36 * 2048)


def test_linear_attention_sets_the_block_size() -> None:
    # Log of Qwen3.6 27B on two GPUs with three speculative tokens: blocks of 1,600 tokens, 179 per request of 262,144.
    found = plan(
        "Qwen3.5-27B",
        Gpu(24_576, "NVIDIA GeForce RTX 3090"),
        2,
        "0.23.0",
        tensor_parallel_size=2,
        max_model_len=262144,
        kv_cache_dtype="fp8_e5m2",
        kv_cache_memory_bytes=20 * 2**30,
        enable_prefix_caching=True,
        speculative_config={"method": "mtp", "num_speculative_tokens": 3},
    )
    assert found.kv_block_size == 1600
    assert found.max_concurrency == pytest.approx((found.kv_blocks or 0) / 179, abs=0.001)


def test_hybrids_of_other_logs() -> None:
    # Qwen3.8 27B on one GPU: "Setting attention block size to 1568 tokens", padded by 0.13 %.
    # https://github.com/noonghunna/club-3090/issues/1047
    assert plan("Qwen3.5-27B", Gpu(49_140), 1, "0.29.0", kv_cache_dtype="fp8").kv_block_size == 1568
    # Qwen3.6 27B on two with speculation: 5.33 GiB, 300,220 tokens. https://github.com/noonghunna/club-3090/pull/594
    args = {"enable_prefix_caching": True, "kv_cache_dtype": "fp8", "max_model_len": 262144, "max_num_seqs": 2}
    mtp = {"method": "mtp", "num_speculative_tokens": 3}
    size = int(5.33 * 2**30)
    found = plan(
        "Qwen3.5-27B",
        Gpu(24_576),
        2,
        "0.24.0",
        tensor_parallel_size=2,
        kv_cache_memory_bytes=size,
        speculative_config=mtp,
        **args,
    )
    assert (found.kv_tokens, round(found.max_concurrency or 0, 2)) == (300_220, 1.15)
    # Qwen3.6 35B on one: 5.98 GiB, 567,978 tokens. https://github.com/noonghunna/club-3090/issues/612
    args["max_model_len"] = 131072
    found = plan("Qwen3.5-35B-A3B", Gpu(32_607), 1, "0.24.0", kv_cache_memory_bytes=int(5.98 * 2**30), **args)
    assert (found.kv_tokens, round(found.max_concurrency or 0, 2)) == (567_978, 4.33)


def test_other_hybrids_are_aligned_too() -> None:
    assert plan("Qwen3.5-35B-A3B", kv_cache_dtype="fp8").kv_block_size == 2096
    found = plan("Kimi-Linear-48B-A3B", Gpu(24_576), 2, "0.11.1", tensor_parallel_size=2, kv_cache_memory_bytes=2**31)
    assert found.kv_block_size == 960
    assert found.kv_tokens is not None and found.verdict == "unknown"  # its weights aren't


def test_groups_are_padded_to_one_width() -> None:
    # 10 full layers, 52 with a window: seven groups of at most ten.
    found = plan("Gemma-3-27B", H100, 1, "0.11.0", kv_cache_memory_bytes=2**33, max_model_len=8192)
    assert found.kv_blocks == 2**33 // (10 * 16 * 2 * 16 * 128 * 2)


def test_weights_where_parts_are_not_split() -> None:
    one, eight = (
        plan("Qwen3-235B-A22B-FP8", H200, tensor_parallel_size=size).weights_mib_per_gpu or 0 for size in (1, 8)
    )
    assert eight > one / 8  # KV heads twice, routers on every rank
    tied = dict(LLAMA, tie_word_embeddings=True)
    stages = [plan(config, pipeline_parallel_size=2).weights_mib_per_gpu or 0 for config in (tied, LLAMA)]
    assert stages[0] == stages[1]  # tied embeddings stand on both stages: as much as an own head


def test_mxfp4_grows_on_load() -> None:
    stored = MODELS["gpt-oss-120b"]["checkpoint_bytes"] / 2**20
    hopper, ampere = (plan("gpt-oss-120b", gpu).weights_mib_per_gpu or 0 for gpu in (H100, A100))
    assert stored * 1.04 < hopper < ampere < stored * 1.1


def test_prediction_layers_count_with_speculation_only() -> None:
    plain = plan("DeepSeek-V3/R1", H200, tensor_parallel_size=8).weights_mib_per_gpu or 0
    more = plan(
        "DeepSeek-V3/R1", H200, tensor_parallel_size=8, speculative_config={"method": "mtp"}
    ).weights_mib_per_gpu
    assert 1000 < (more or 0) - plain < 2500


def test_an_encoder_is_split_unless_told_otherwise() -> None:
    facts = facts_from_config({**LLAMA, "vision_config": {"num_attention_heads": 16}})
    checkpoint = CheckpointBytes(18 * 10**9, {"encoder": 2 * 10**9})
    split, whole = (
        plan_memory(facts, [H100] * 4, {"tensor_parallel_size": 4, "mm_encoder_tp_mode": mode}, checkpoint, "0.31.0")
        for mode in ("weights", "data")
    )
    assert (whole.weights_mib_per_gpu or 0) - (split.weights_mib_per_gpu or 0) == pytest.approx(1.5e9 / 2**20, abs=2)


def test_a_total_alone_is_split_evenly() -> None:
    facts = facts_from_config({"num_hidden_layers": 10})
    args = {"tensor_parallel_size": 2, "pipeline_parallel_size": 4}
    found = plan_memory(facts, [H100] * 8, args, CheckpointBytes(80 * 10**9), "0.31.0")
    assert found.weights_mib_per_gpu == -(-80 * 10**9 * 3 // 10 // 2 // 2**20)
    assert found.verdict == "unknown"  # no KV cache without the layers' sizes


def test_offloading_takes_weights_away() -> None:
    stored, less = plan(LLAMA).weights_mib_per_gpu or 0, plan(LLAMA, cpu_offload_gb=4).weights_mib_per_gpu or 0
    assert stored - less == 4096


def test_a_given_cache_size_replaces_the_share_and_still_has_to_fit() -> None:
    found = plan(LLAMA, kv_cache_memory_bytes="8G", max_model_len="32k")
    assert found.kv_tokens == 8 * 2**30 // 131072
    assert found.free_mib_needed == plan(LLAMA).free_mib_needed  # the share is still asked for at the start
    assert plan(LLAMA, kv_cache_memory_bytes="80G").verdict == "does_not_fit"


def test_auto_takes_the_longest_that_fits() -> None:
    found = plan(LLAMA, Gpu(24_564, "NVIDIA GeForce RTX 4090"), 1, max_model_len="auto")
    assert found.max_model_len is not None and 1 <= found.max_model_len < 131072
    assert found.max_concurrency is not None and 1 <= found.max_concurrency < 1.01


def test_too_long_is_refused_with_the_length_that_works() -> None:
    found = plan(LLAMA, Gpu(24_564, "NVIDIA GeForce RTX 4090"), 2)
    assert found.verdict == "does_not_fit"
    assert found.largest_max_model_len is not None and found.largest_max_model_len < 131072
    assert any("max_model_len to %d" % found.largest_max_model_len in line for line in found.advice)
    assert found.tensor_parallel_sizes == (2,)


def test_unified_memory_has_no_part_that_the_driver_keeps() -> None:
    discrete, unified = (Gpu(120_000, memory_type=kind) for kind in ("discrete", "unified"))
    assert (plan(LLAMA, unified).budget_mib or 0) > (plan(LLAMA, discrete).budget_mib or 0)
    assert plan(LLAMA, Gpu(81_559, reserved_mib=480)).budget_mib == int((81_559 - 480) * 0.92)


@pytest.mark.parametrize(
    ("config", "args", "gpus", "name"),
    [
        (LLAMA, {}, [], "weights_mib_per_gpu"),
        (LLAMA, {}, [Gpu(None)], "kv_tokens"),
        ({"num_hidden_layers": 4}, {}, [H100], "weights_mib_per_gpu"),
        (dict(LLAMA, layer_types=["strange"] * 32), {}, [H100], "kv_mib_per_token_per_gpu"),
        (LLAMA, {"kv_cache_dtype": "turboquant_4bit_nc"}, [H100], "kv_tokens"),
        (dict(LLAMA, max_position_embeddings=None), {}, [H100], "max_concurrency"),
    ],
)
def test_what_cannot_be_known_is_none_with_a_reason(
    config: dict[str, Any], args: dict[str, Any], gpus: list[Gpu], name: str
) -> None:
    found = plan_memory(facts_from_config(config), gpus, args, None, "0.31.0")
    assert found.verdict == "unknown"
    assert found.to_dict()[name] is None and found.unknown[name]


def test_arguments_that_cannot_be_read_are_named() -> None:
    found = plan(LLAMA, max_num_seqs="many", gpu_memory_utilization=7)
    assert sum("can't be read" in line for line in found.advice) == 2


def test_a_plan_takes_milliseconds() -> None:
    began = time.monotonic()
    for _turn in range(5):
        plan("DeepSeek-V3/R1", H200, tensor_parallel_size=8)
    assert (time.monotonic() - began) / 5 < 0.1


@pytest.mark.parametrize(
    ("scaling", "expected"),
    [
        ({"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 8192}, 32768),
        ({"type": "linear", "factor": 4.0}, 32768),
    ],
)
def test_the_default_length_knows_scaled_positions(scaling: dict[str, Any], expected: int) -> None:
    found = plan({**LLAMA, "max_position_embeddings": 8192, "rope_scaling": scaling}, H200)
    assert (found.max_model_len, found.largest_max_model_len) == (expected, expected)


def test_no_length_beyond_the_models_own_is_suggested() -> None:
    assert plan(LLAMA, H200, max_model_len=400_000).largest_max_model_len == 131072


QWEN_27B_FP8 = {
    **MODELS["Qwen3.5-27B"]["config"],
    "quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]},
}
L40S = Gpu(46_068, "NVIDIA L40S")


@pytest.mark.parametrize(
    ("gpu", "args", "blocks"),
    [
        # What vLLM said: so many Mamba cache blocks, fewer than max_num_seqs.
        (L40S, {"max_model_len": 16384, "gpu_memory_utilization": 0.9, "max_num_seqs": 256}, 184),
        (H100, {"gpu_memory_utilization": 0.95}, 856),
    ],
)
def test_each_request_needs_a_block_for_its_state(gpu: Gpu, args: dict[str, Any], blocks: int) -> None:
    found = plan(QWEN_27B_FP8, gpu, 1, "0.24.0", **args)
    assert found.verdict == "does_not_fit" and "Layers that keep a state" in found.reasons[0]
    assert 0.75 * blocks <= (found.largest_max_num_seqs or 0) <= blocks
    fewer = plan(QWEN_27B_FP8, gpu, 1, "0.24.0", **{**args, "max_num_seqs": found.largest_max_num_seqs})
    assert fewer.verdict in ("fits", "tight")
    # Without graphs, and in the version that captured fewer of them, requests wait instead.
    assert plan(QWEN_27B_FP8, gpu, 1, "0.24.0", enforce_eager=True, **args).verdict == "fits"
    assert plan(QWEN_27B_FP8, gpu, 1, "0.18.0", **args).verdict == "tight"


def test_models_without_states_are_not_held_to_it() -> None:
    assert (
        plan(LLAMA, H100, 1, kv_cache_memory_bytes="2g", max_num_seqs=4096, max_model_len=1024).verdict
        != "does_not_fit"
    )


FP8_CACHE = {"num_bits": 8, "type": "float", "dynamic": False}


@pytest.mark.parametrize(
    "quantisation",
    [
        {"quant_method": "modelopt", "quant_algo": "FP8", "kv_cache_scheme": FP8_CACHE},
        {"quant_method": "compressed-tensors", "kv_cache_scheme": FP8_CACHE},
        {"producer": {"name": "modelopt"}, "quantization": {"quant_algo": "FP8", "kv_cache_quant_algo": "FP8"}},
    ],
)
def test_the_checkpoints_own_kind_of_cache_is_taken_unless_another_is_asked_for(quantisation: dict[str, Any]) -> None:
    config = {**LLAMA, "quantization_config": quantisation}
    assert plan(config).kv_mib_per_token_per_gpu == 0.0625
    assert plan(config, kv_cache_dtype="auto").kv_mib_per_token_per_gpu == 0.0625
    assert plan(config, kv_cache_dtype="bfloat16").kv_mib_per_token_per_gpu == 0.125
    assert (
        plan(
            {**LLAMA, "quantization_config": {**quantisation, "kv_cache_scheme": None, "quantization": None}}
        ).kv_mib_per_token_per_gpu
        == 0.125
    )


def test_a_kind_of_cache_that_is_not_known_is_not_taken_for_half_precision() -> None:
    scheme = {"quant_method": "compressed-tensors", "kv_cache_scheme": {"num_bits": 4, "type": "int"}}
    found = plan({**LLAMA, "quantization_config": scheme})
    assert found.kv_mib_per_token_per_gpu is None and found.verdict == "unknown"


def test_an_unknown_vocabulary_never_fits() -> None:
    config = {name: value for name, value in LLAMA.items() if name != "vocab_size"}
    found = plan_memory(facts_from_config(config), [H200], {"max_model_len": 4096}, CheckpointBytes(2**33), "0.31.0")
    assert found.verdict == "tight" and any("vocabulary" in reason for reason in found.reasons)


GEMMA_4B = {
    "architectures": ["Gemma3ForConditionalGeneration"],
    "model_type": "gemma3",
    "text_config": {
        "hidden_size": 2560,
        "intermediate_size": 10240,
        "model_type": "gemma3_text",
        "num_hidden_layers": 34,
        "rope_scaling": {"factor": 8.0, "rope_type": "linear"},
        "sliding_window": 1024,
    },
}


def test_gemma_3_as_it_is_shipped() -> None:
    facts = facts_from_config(GEMMA_4B)
    assert (facts.attention_heads, facts.kv_heads, facts.head_dim, facts.vocab_size) == (8, 4, 256, 262208)
    assert facts.count("full") == 5 and facts.tie_word_embeddings is True
    found = plan(GEMMA_4B, H100, 1)
    assert found.max_model_len == 131072 and found.verdict == "fits"
    # 3.88 billion weights in the language model.
    assert found.weights_mib_per_gpu == pytest.approx(3.88e9 * 2 / 2**20, rel=0.01)


LONGCAT = {
    "architectures": ["LongcatFlashForCausalLM"],
    "model_type": "longcat_flash",
    "hidden_size": 6144,
    "ffn_hidden_size": 12288,
    "expert_ffn_hidden_size": 2048,
    "num_layers": 28,
    "num_attention_heads": 64,
    "kv_lora_rank": 512,
    "q_lora_rank": 1536,
    "qk_rope_head_dim": 64,
    "qk_nope_head_dim": 128,
    "v_head_dim": 128,
    "n_routed_experts": 512,
    "vocab_size": 131072,
    "max_position_embeddings": 131072,
}


def test_two_attentions_in_a_layer_keep_two_caches() -> None:
    found = plan(LONGCAT, H200, 8, tensor_parallel_size=8, quantization="fp8")
    assert found.kv_mib_per_token_per_gpu == 56 * 576 * 2 / 2**20
    # 560 billion weights in one byte each.
    assert (found.weights_mib_per_gpu or 0) * 8 == pytest.approx(560e9 / 2**20, rel=0.05)


@pytest.mark.parametrize(
    ("config", "tp", "expected"),
    [
        ({"model_type": "mistral", "num_key_value_heads": 8, "sliding_window": 4096}, 1, 131072),
        ({"model_type": "phi3", "num_key_value_heads": 32, "hidden_size": 3072, "sliding_window": 2047}, 1, 393216),
        ({"model_type": "phimoe", "num_key_value_heads": 8, "sliding_window": 131072}, 4, 32768),
    ],
)
def test_layers_that_all_have_the_same_window_have_one_size_per_token(
    config: dict[str, Any], tp: int, expected: int
) -> None:
    found = plan({**LLAMA, **config}, tensor_parallel_size=tp)
    assert found.kv_mib_per_token_per_gpu == expected / 2**20
    assert plan({**LLAMA, "model_type": "gemma2", "sliding_window": 4096}).kv_mib_per_token_per_gpu is None


@pytest.mark.parametrize("weights_gib", [x / 2 for x in range(130, 160)])
def test_no_tokens_and_a_verdict_that_something_fits_do_not_go_together(weights_gib: float) -> None:
    facts = facts_from_config(LLAMA)
    found = plan_memory(facts, [H100], {"max_model_len": 1024}, CheckpointBytes(int(weights_gib * 2**30)), "0.31.0")
    assert found.verdict == "does_not_fit" or found.kv_tokens
    if found.verdict == "does_not_fit":
        assert "about 0 MiB are left" not in found.reasons[0]
    if (found.weights_mib_per_gpu or 0) > (found.budget_mib or 0):
        assert found.reasons[0].startswith("The weights alone take %d MiB" % (found.weights_mib_per_gpu or 0))


GEMMA2_9B = {
    "model_type": "gemma2",
    "num_hidden_layers": 42,
    "hidden_size": 3584,
    "intermediate_size": 14336,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "head_dim": 256,
    "vocab_size": 256000,
    "sliding_window": 4096,
    "max_position_embeddings": 8192,
}
QWEN_7B = {
    "architectures": ["QWenLMHeadModel"],
    "model_type": "qwen",
    "num_hidden_layers": 32,
    "hidden_size": 4096,
    "intermediate_size": 22016,
    "num_attention_heads": 32,
    "vocab_size": 151936,
    "seq_length": 8192,
    "tie_word_embeddings": False,
}


@pytest.mark.parametrize(("config", "billions"), [(GEMMA2_9B, 9.24), (QWEN_7B, 7.72)])
def test_weights_counted_from_the_sizes_of_types_with_defaults_of_their_own(
    config: dict[str, Any], billions: float
) -> None:
    found = plan(config)
    assert found.weights_source == "estimate"
    assert found.weights_mib_per_gpu == pytest.approx(billions * 2e9 / 2**20, rel=0.01)
    untied = plan({**config, "tie_word_embeddings": False})
    assert (untied.weights_mib_per_gpu or 0) >= (found.weights_mib_per_gpu or 0)


def test_a_quantisation_that_is_not_known_has_no_size_but_that_on_disk() -> None:
    config = {**LLAMA, "quantization_config": {"quant_method": "tomorrows"}}
    assert plan(config).verdict == "unknown" and plan(config).weights_mib_per_gpu is None
    found = plan_memory(facts_from_config(config), [H200], {}, CheckpointBytes(2**33), "0.31.0")
    assert found.weights_mib_per_gpu == 8192
    assert plan({**LLAMA, "quantization_config": {"quant_method": "tomorrows", "bits": 4}}).verdict == "fits"
