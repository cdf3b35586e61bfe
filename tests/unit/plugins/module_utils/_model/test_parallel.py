# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Parallel sizes held against what vLLM accepted and refused in public reports."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ansible_collections.gpufleet.vllm.plugins.module_utils._model.facts import ModelFacts, facts_from_config
from ansible_collections.gpufleet.vllm.plugins.module_utils._model.parallel import Check, check_parallel, working_sizes
from ansible_collections.gpufleet.vllm.plugins.module_utils._model.quantisation import read_quantisation

FIXTURES = Path(__file__).parents[3] / "fixtures"
CONFIGS: dict[str, Any] = json.loads((FIXTURES / "model_configs.json").read_text(encoding="utf-8"))
EVERY_CASE: list[dict[str, Any]] = json.loads((FIXTURES / "parallel_cases.json").read_text(encoding="utf-8"))
# The rest says why it can't be asked of the parallel sizes alone.
CASES = [case for case in EVERY_CASE if "unusable" not in case]

FP8_BLOCKS = {"quant_method": "fp8", "weight_block_size": [128, 128], "modules_to_not_convert": ["gate", "lm_head"]}
QUANTISATIONS: dict[str, Any] = {
    "fp8": FP8_BLOCKS,
    "awq": {"quant_method": "awq", "bits": 4, "group_size": 128},
    "nvfp4": {"quant_method": "modelopt", "quant_algo": "NVFP4", "group_size": 16},
}


def facts_of(case: dict[str, Any]) -> ModelFacts:
    """The model of a case, with the quantisation that the case was about."""
    if "model_key" in case:
        config = dict(CONFIGS[case["model_key"]])
    elif "config" in case:
        config = dict(case["config"])
    elif "heads" in case:
        config = {"num_attention_heads": case["heads"], "hidden_size": 128 * case["heads"]}
    else:
        config = {
            "num_attention_heads": 64,
            "hidden_size": 8192,
            "num_experts": 8,
            "moe_intermediate_size": case["expert_width"],
        }
    config.pop("quantization_config", None)
    for name, quantisation in QUANTISATIONS.items():
        if (case["quantisation"] or "").startswith(name):
            config["quantization_config"] = quantisation
    return facts_from_config(config)


def failed(checks: list[Check]) -> list[Check]:
    """The checks that say no."""
    return [check for check in checks if check.status == "fail"]


# What each rule of the reports is called here.
RULES = {
    "attention_heads % tp": ("attention_heads",),
    "fp8_block: expert intermediate / tp % 128 (unless EP)": ("quant_block_experts",),
    "marlin_tiles: K/tp % 128, N/tp % 64": ("quant_tile_state",),
    "audio encoder heads % tp": ("encoder_heads",),
    "hybrid groups do not support context parallelism": ("context_parallel",),
}


@pytest.mark.parametrize("case", CASES, ids=[case["id"] for case in CASES])
def test_what_vllm_did(case: dict[str, Any]) -> None:
    checks = check_parallel(facts_of(case), case["tp"], case["pp"], case["ep"], dp=case["dp"], dcp=case.get("dcp", 1))
    refused = failed(checks)
    assert ("rejected" if refused else "accepted") == case["result"], refused
    if refused:
        assert {check.id for check in refused} & set(RULES[case["rule"]])


def test_few_cases_are_left_out() -> None:
    assert len(CASES) >= 30 and len(EVERY_CASE) - len(CASES) <= 7


def minimax() -> ModelFacts:
    """The founding model."""
    return facts_from_config(CONFIGS["MiniMax-M2.5"])


def test_the_founding_case() -> None:
    facts = minimax()
    assert not failed(check_parallel(facts, 4, gpu_count=4))
    (refused,) = failed(check_parallel(facts, 8, gpu_count=8))
    assert refused.id == "quant_block_experts"
    assert "1536 / 8 = 192" in refused.detail and "128" in refused.detail
    assert refused.fix is not None
    assert "tensor_parallel_size 1, 2 or 4 would work" in refused.fix
    assert "enable_expert_parallel: true, tensor_parallel_size 8 works" in refused.fix
    assert not failed(check_parallel(facts, 8, expert_parallel=True, gpu_count=8))
    assert working_sizes(facts, 8) == [1, 2, 4]
    assert working_sizes(facts, 8, expert_parallel=True) == [1, 2, 4, 8]


def test_versions_that_recut_blocks_warn() -> None:
    checks = check_parallel(minimax(), 8, refines_blocks=True)
    assert not failed(checks)
    assert [check.id for check in checks if check.status == "warn"] == ["quant_block_experts"]


def test_without_expert_parallelism_data_parallel_ranks_split_experts_too() -> None:
    assert not failed(check_parallel(minimax(), 4, dp=2, expert_parallel=True))
    assert failed(check_parallel(minimax(), 4, dp=2))[0].id == "quant_block_experts"


@pytest.mark.parametrize(
    ("heads", "kv", "tp", "result"),
    [
        (32, 8, 8, "pass"),
        (32, 8, 4, "pass"),
        (64, 4, 8, "pass"),
        (48, 8, 3, "fail"),
        (48, 8, 6, "fail"),
        (48, 6, 4, "fail"),
        (12, 4, 6, "fail"),
    ],
)
def test_kv_heads_are_split_or_replicated(heads: int, kv: int, tp: int, result: str) -> None:
    facts = facts_from_config({"num_attention_heads": heads, "num_key_value_heads": kv, "head_dim": 128})
    check = next(check for check in check_parallel(facts, tp) if check.id == "kv_heads")
    assert check.status == result


def test_latent_attention_has_no_kv_heads_to_split() -> None:
    facts = facts_from_config(CONFIGS["DeepSeek-V3/R1"])
    assert facts.mla and facts.kv_heads == 1
    assert not failed(check_parallel(facts, 16))


@pytest.mark.parametrize(
    ("tp", "pp", "dp", "gpus", "status"),
    [
        (4, 1, 1, 4, "pass"),
        (8, 1, 1, 4, "fail"),
        (4, 2, 1, 8, "pass"),
        (2, 1, 1, 4, "warn"),
        (2, 1, 2, 4, "pass"),
        (1, 1, 1, 1, "pass"),
    ],
)
def test_gpus(tp: int, pp: int, dp: int, gpus: int, status: str) -> None:
    checks = {check.id: check for check in check_parallel(minimax(), tp, pp, True, gpus, dp)}
    assert checks["gpu_count"].status == status
    assert (checks["gpu_count"].fix is None) == (status == "pass")


def test_group_sizes_hold_for_what_is_quantised_only() -> None:
    kimi = dict(CONFIGS["Kimi-K2-Thinking"])
    kimi["quantization_config"] = {
        "quant_method": "compressed-tensors",
        "config_groups": {"group_0": {"weights": {"num_bits": 4, "group_size": 32, "strategy": "group"}}},
        "ignore": ["lm_head", "re:.*self_attn.*", "re:.*shared_experts.*"],
    }
    facts = facts_from_config(kimi)
    assert facts.quantisation is not None and facts.quantisation.group == 32
    checks = {check.id: check.status for check in check_parallel(facts, 8)}
    assert checks["quant_group_experts"] == "pass" and "quant_group_attention" not in checks
    assert checks["mlp_shared_experts"] == "pass"
    narrow = facts_from_config({**kimi, "moe_intermediate_size": 2048 + 64})
    assert {check.id for check in failed(check_parallel(narrow, 8))} == {"quant_group_experts"}


def test_a_list_of_some_layers_does_not_excuse_the_kind() -> None:
    raw = {**FP8_BLOCKS, "modules_to_not_convert": ["model.layers.0.mlp.experts"]}
    config = {**CONFIGS["MiniMax-M2.5"], "quantization_config": raw}
    assert failed(check_parallel(facts_from_config(config), 8))
    every = {**FP8_BLOCKS, "modules_to_not_convert": ["model.layers.%d.mlp.experts" % layer for layer in range(62)]}
    config = {**CONFIGS["MiniMax-M2.5"], "quantization_config": every}
    assert not failed(check_parallel(facts_from_config(config), 8))


@pytest.mark.parametrize(
    ("raw", "block", "group"),
    [
        ({"quant_method": "fp8"}, None, None),
        ({"quant_method": "fp8", "weight_block_size": [128, 64]}, (128, 64), None),
        ({"quant_method": "fp8", "weight_block_size": [128]}, None, None),
        ({"quant_method": "fp8", "weight_block_size": ["128", None]}, None, None),
        ({"quant_method": "gptq", "bits": 4, "group_size": 128}, None, 128),
        ({"quant_method": "gptq", "bits": 4, "group_size": -1}, None, None),
        ({"quant_method": "mxfp4", "group_size": 32}, None, None),
        ({"quantization": {"quant_algo": "NVFP4", "group_size": 16}}, None, 16),
        ({"quant_method": "modelopt", "quant_algo": "NVFP4"}, None, 16),
        (
            {
                "quant_method": "compressed-tensors",
                "config_groups": {"g": {"weights": {"strategy": "channel", "num_bits": 8}}},
            },
            None,
            None,
        ),
        (
            {
                "quant_method": "compressed-tensors",
                "config_groups": {"g": {"weights": {"strategy": "block", "block_structure": [128, 128]}}},
            },
            (128, 128),
            None,
        ),
    ],
)
def test_forms_of_quantisation(raw: dict[str, Any], block: Any, group: Any) -> None:
    read = read_quantisation(raw)
    assert read is not None and (read.block, read.group) == (block, group)
    assert read_quantisation(None) is None and read_quantisation({}) is None


def test_what_cannot_be_checked_is_skipped_with_the_reason() -> None:
    checks = check_parallel(ModelFacts("/m", "model.gguf"), 8, 2, True, 16)
    assert {check.id: check.status for check in checks} == {
        "attention_heads": "skip",
        "kv_heads": "skip",
        "expert_parallel": "skip",
        "pipeline_layers": "skip",
        "gpu_count": "pass",
    }
    assert all("model.gguf" in check.detail for check in checks if check.status == "skip")


def test_expert_parallelism_needs_experts() -> None:
    facts = facts_from_config({"num_attention_heads": 32, "hidden_size": 4096, "intermediate_size": 14336})
    (refused,) = failed(check_parallel(facts, 2, expert_parallel=True))
    assert refused.id == "expert_parallel"


def test_sizes_below_one() -> None:
    for sizes in ((0, 1, 1), (1, 0, 1), (1, 1, -1)):
        assert failed(check_parallel(minimax(), sizes[0], sizes[1], False, 8, sizes[2]))


MANGLED = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=5)),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=5), inner, max_size=3)),
    max_leaves=6,
)
KEYS = sorted(
    {key for config in CONFIGS.values() for key in config}
    | {"text_config", "vision_config", "ffn_config", "quantization_config"}
)


@given(
    st.sampled_from(sorted(CONFIGS)),
    st.dictionaries(st.sampled_from(KEYS), MANGLED, max_size=6),
    st.integers(1, 16),
    st.booleans(),
)
def test_a_mangled_configuration_is_no_exception_and_no_confident_answer(
    name: str, changes: dict[str, Any], tp: int, ep: bool
) -> None:
    facts = facts_from_config({**CONFIGS[name], **changes})
    checks = {check.id: check for check in check_parallel(facts, tp, 1, ep, 8)}
    assert checks["attention_heads"].status in ("pass", "fail", "skip")
    if facts.attention_heads is None:
        assert checks["attention_heads"].status == "skip"
    for check in checks.values():
        assert check.detail and (check.status != "fail" or check.fix)
    working_sizes(facts, 8)
