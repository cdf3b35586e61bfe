# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Values that vLLM ends on before it loads anything are named, and nothing else is."""

from __future__ import annotations

from typing import Any

import pytest

from ansible_collections.gpufleet.vllm.plugins.module_utils._model.parallel import Check
from ansible_collections.gpufleet.vllm.plugins.module_utils._model.types import ModelFacts
from ansible_collections.gpufleet.vllm.plugins.module_utils._preflight.asked import Asked
from ansible_collections.gpufleet.vllm.plugins.module_utils._preflight.length import check_length, within_limit
from ansible_collections.gpufleet.vllm.plugins.module_utils._preflight.values import check_values


def found(args: dict[str, Any], elsewhere: bool = False) -> dict[str, Check]:
    return {check.id: check for check in check_values(Asked("m", args=args), elsewhere)}


@pytest.mark.parametrize("args", [
    {"max_num_seqs": 0}, {"max_num_seqs": -3}, {"max_num_seqs": "many"}, {"max_num_seqs": 10**30}, {"max_model_len": 0},
    {"max_model_len": "1e5"}, {"max_model_len": [1]}, {"block_size": 7}, {"block_size": 24}, {"kv_cache_dtype": "bogus"},
    {"kv_cache_dtype": [8]}, {"dtype": "float17"}, {"max_num_batched_tokens": 0}, {"max_num_seqs": 512, "max_num_batched_tokens": 256},
    {"cpu_offload_gb": -1}, {"speculative_config": "fast"}, {"kv_cache_memory_bytes": "much"},
])
def test_a_value_that_vllm_refuses_is_named(args: dict[str, Any]) -> None:
    check = found(args)["argument_values"]
    assert check.status == "fail" and check.fix
    assert any(name in check.detail and name in check.fix for name in args)


@pytest.mark.parametrize("args", [
    {}, {"max_num_seqs": 1}, {"max_num_seqs": "64"}, {"max_model_len": "32k"}, {"max_model_len": -1}, {"max_model_len": "auto"},
    {"block_size": 16}, {"block_size": 1}, {"block_size": 1056}, {"kv_cache_dtype": "fp8_e4m3"}, {"kv_cache_dtype": "turboquant_k8v4"},
    {"kv_cache_dtype": "auto"}, {"dtype": "bfloat16"}, {"dtype": "half"}, {"kv_cache_memory_bytes": "8G"}, {"kv_cache_memory_bytes": 0},
    {"max_num_seqs": 256, "max_num_batched_tokens": 256}, {"cpu_offload_gb": 0}, {"tensor_parallel_size": "x"},
    {"speculative_config": {"method": "ngram", "num_speculative_tokens": 3}},
])
def test_a_value_that_vllm_takes_is_not_spoken_of(args: dict[str, Any]) -> None:
    assert found(args) == {}


def test_what_is_echoed_stays_short() -> None:
    check = found({"kv_cache_dtype": "x" * 45000})["argument_values"]
    assert len(check.detail) < 150


def test_what_is_not_planned_is_said() -> None:
    draft = found({"speculative_config": {"model": "/models/small", "num_speculative_tokens": 5}})["draft_model"]
    assert draft.status == "warn" and "/models/small" in draft.detail and "not part of the plan" in draft.detail
    assert found({"hf_overrides": {"num_hidden_layers": 2}})["hf_overrides"].status == "warn"
    assert found({"speculative_config": {"method": "mtp"}}) == {} and found({"hf_overrides": {}}) == {}


def test_a_short_name_means_the_same_everywhere() -> None:
    asked = Asked("m", args={"tp": 4, "pp": "2", "dcp": 2})
    assert (asked.size("tensor_parallel_size"), asked.size("pipeline_parallel_size")) == (4, 2)
    assert asked.size("decode_context_parallel_size") == 2 and asked.ranks == 8
    assert (asked.engine.tensor_parallel_size, asked.engine.pipeline_parallel_size) == (4, 2)
    said = found({"tp": 4}, elsewhere=True)["arguments"]
    assert "tp" in said.detail and "Write tensor_parallel_size out" in str(said.fix) and found({"tp": 4}) == {}


@pytest.mark.parametrize(("value", "size"), [(10**30, None), (-(10**30), None), ("9" * 30, None), (8, 8), (None, 1), (True, None)])
def test_a_size_that_no_deployment_has_is_none(value: Any, size: int | None) -> None:
    assert Asked("m", args={"tensor_parallel_size": value}).size("tensor_parallel_size") == size


@pytest.mark.parametrize("given", [True, "true", "yes", "on", "True", "1"])
def test_a_flag_is_read_as_the_plan_reads_it(given: Any) -> None:
    assert Asked("m", args={"enable_expert_parallel": given}).expert_parallel
    assert not Asked("m", args={"enable_expert_parallel": False}).expert_parallel
    assert Asked("m", args={"mm_encoder_tp_mode": "Data"}).encoder_data_parallel


FACTS = ModelFacts("/m", "config.json", max_position_embeddings=196608)


@pytest.mark.parametrize(("given", "env", "status"), [
    (196609, {}, "fail"), (400000, {}, "fail"), ("400k", {}, "fail"), (196608, {}, None), ("auto", {}, None), (None, {}, None),
    (400000, {"VLLM_ALLOW_LONG_MAX_MODEL_LEN": "1"}, "warn"), (400000, {"VLLM_ALLOW_LONG_MAX_MODEL_LEN": "True"}, "warn"),
    (400000, {"VLLM_ALLOW_LONG_MAX_MODEL_LEN": "0"}, "fail"),
])
def test_more_than_the_model_has_is_refused_unless_the_environment_allows_it(given: Any, env: dict[str, str], status: str | None) -> None:
    checks = check_length(Asked("/m", args={"max_model_len": given}, env=env), FACTS)
    assert [check.status for check in checks] == ([status] if status else [])
    if status == "fail":
        assert "196,608" in checks[0].detail and "196608 or less" in str(checks[0].fix)


def test_no_longer_one_is_suggested() -> None:
    assert within_limit(Asked("/m"), FACTS, 400000) == 196608 and within_limit(Asked("/m"), FACTS, 5) == 5
    assert within_limit(Asked("/m", env={"VLLM_ALLOW_LONG_MAX_MODEL_LEN": "1"}), FACTS, 400000) == 400000
    assert within_limit(Asked("/m"), ModelFacts("/m", "config.json"), 400000) == 400000
    assert within_limit(Asked("/m"), FACTS, None) is None
