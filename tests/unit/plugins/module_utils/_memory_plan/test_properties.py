# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Whatever stands in a configuration or in arguments: a plan, never an exception, and no figure that can't be."""

from __future__ import annotations

import json
import math
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from ansible_collections.gpufleet.vllm.plugins.module_utils._memory_plan.plan import plan_memory
from ansible_collections.gpufleet.vllm.plugins.module_utils._memory_plan.types import (
    CheckpointBytes,
    Gpu,
    MemoryPlan,
)
from ansible_collections.gpufleet.vllm.plugins.module_utils._model.facts import facts_from_config

from .truth import MODELS

NAMES = sorted(MODELS)
JUNK = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**70), 2**70),
    st.floats(),
    st.text(max_size=12),
    st.sampled_from(["8k", "1M", "auto", "-1", "fp8", "nvfp4", "true", "float32", "mtp", "data", "gptq"]),
    st.lists(st.integers(-5, 2**65), max_size=4),
    st.dictionaries(st.sampled_from(["method", "num_speculative_tokens", "model"]), st.integers(-3, 9), max_size=3),
)
ARGUMENTS = [
    "tensor_parallel_size",
    "pipeline-parallel-size",
    "data_parallel_size",
    "decode_context_parallel_size",
    "enable_expert_parallel",
    "max_model_len",
    "max_num_seqs",
    "max_num_batched_tokens",
    "gpu_memory_utilization",
    "kv_cache_memory_bytes",
    "kv_cache_dtype",
    "block_size",
    "enforce_eager",
    "no-enable-prefix-caching",
    "quantization",
    "dtype",
    "cpu_offload_gb",
    "speculative_config",
    "mm_encoder_tp_mode",
    "disable_hybrid_kv_cache_manager",
]
GPUS = st.builds(
    Gpu,
    st.one_of(st.none(), st.integers(-5, 2**40)),
    st.sampled_from(["", "NVIDIA H100 80GB HBM3", "NVIDIA A100-SXM4-80GB", "L40S"]),
    st.sampled_from(["discrete", "unified", "mig"]),
    st.one_of(st.none(), st.integers(-5, 2**40)),
)
VERSIONS = st.sampled_from([None, "", "nightly", "0.7.2", "0.11.0", "0.19.1rc1.dev71+gdd9342e6b", "0.33.0", "99999.1"])


def sane(plan: MemoryPlan) -> None:
    """Every figure is None with a reason, or a number that can stand in JSON and in a table."""
    json.dumps([plan.to_dict(), plan.suggest(), list(plan.reasons), list(plan.advice)], allow_nan=False)
    for name, value in plan.to_dict().items():
        if value is None:
            assert plan.unknown.get(name), name
        else:
            assert math.isfinite(value) and 0 <= value <= 2**50, (name, value)
    assert plan.verdict in ("fits", "tight", "does_not_fit", "unknown")
    assert plan.reasons
    for part in plan.parts.values():
        assert 0 <= part.low <= part.likely <= part.high
    for value in (plan.largest_max_model_len, plan.largest_max_num_seqs):
        assert value is None or value >= 1
    if plan.verdict == "fits":
        assert plan.max_concurrency is not None and plan.max_concurrency >= 1


@settings(max_examples=250, deadline=None)
@given(
    st.sampled_from(NAMES),
    st.dictionaries(st.sampled_from(sorted({name for model in MODELS.values() for name in model["config"]})), JUNK),
    st.dictionaries(st.sampled_from(ARGUMENTS), JUNK, max_size=8),
    st.lists(GPUS, max_size=3),
    st.one_of(st.none(), st.builds(CheckpointBytes, st.integers(-5, 2**60))),
    VERSIONS,
)
def test_nothing_raises_and_no_figure_is_absurd(
    name: str,
    mangled: dict[str, Any],
    args: dict[str, Any],
    gpus: list[Gpu],
    checkpoint: CheckpointBytes | None,
    version: str | None,
) -> None:
    facts = facts_from_config({**MODELS[name]["config"], **mangled})
    sane(plan_memory(facts, gpus, args, checkpoint, version))


SIZES = st.sampled_from([1, 2, 4, 8])


@settings(max_examples=100, deadline=None)
@given(st.sampled_from(NAMES), SIZES, SIZES, st.sampled_from([24_564, 81_559, 143_771]), VERSIONS)
def test_more_ranks_never_have_more_weights_each(
    name: str, first: int, second: int, total: int, version: str | None
) -> None:
    facts = facts_from_config(MODELS[name]["config"])
    found = [
        plan_memory(facts, [Gpu(total, "H100")], {"tensor_parallel_size": size}, None, version).weights_mib_per_gpu
        for size in sorted((first, second))
    ]
    assert (found[0] is None) == (found[1] is None)
    if found[0] is not None and found[1] is not None:
        assert found[1] <= found[0]


@settings(max_examples=100, deadline=None)
@given(
    st.sampled_from(NAMES),
    SIZES,
    st.lists(st.floats(0.05, 1.0), min_size=2, max_size=2),
    st.lists(st.integers(1, 4096), min_size=2, max_size=2),
    VERSIONS,
)
def test_a_larger_share_has_no_fewer_tokens_and_more_sequences_no_smaller_warmup(
    name: str, tp: int, shares: list[float], seqs: list[int], version: str | None
) -> None:
    facts = facts_from_config(MODELS[name]["config"])
    gpus = [Gpu(143_771, "NVIDIA H200")] * 8

    def plan(**args: Any) -> MemoryPlan:
        return plan_memory(facts, gpus, {"tensor_parallel_size": tp, **args}, CheckpointBytes(10**11), version)

    less, more = (plan(gpu_memory_utilization=share, max_model_len=4096) for share in sorted(shares))
    if less.kv_tokens is not None and more.kv_tokens is not None:
        assert less.kv_tokens <= more.kv_tokens
    few, many = (plan(max_num_seqs=size) for size in sorted(seqs))
    if few.warmup_mib is not None and many.warmup_mib is not None:
        assert few.warmup_mib <= many.warmup_mib
        assert few.kv_tokens is None or many.kv_tokens is None or few.kv_tokens >= many.kv_tokens


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(NAMES), SIZES, st.sampled_from([24_564, 48_000, 81_559, 143_771]), VERSIONS)
def test_what_is_suggested_fits(name: str, tp: int, total: int, version: str | None) -> None:
    facts = facts_from_config(MODELS[name]["config"])
    args = {"tensor_parallel_size": tp}
    plan = plan_memory(facts, [Gpu(total)] * tp, args, None, version)
    if plan.largest_max_model_len is not None:
        shorter = {**args, "max_model_len": plan.largest_max_model_len}
        again = plan_memory(facts, [Gpu(total)] * tp, shorter, None, version)
        if again.verdict == "does_not_fit":  # the states of so many requests don't fit: that plan says how many do
            assert again.largest_max_num_seqs is not None
            shorter["max_num_seqs"] = again.largest_max_num_seqs
            again = plan_memory(facts, [Gpu(total)] * tp, shorter, None, version)
        assert again.verdict in ("fits", "tight")
    if plan.largest_max_num_seqs is not None and plan.verdict != "does_not_fit":
        fewer = {**args, "max_num_seqs": plan.largest_max_num_seqs}
        assert plan_memory(facts, [Gpu(total)] * tp, fewer, None, version).verdict in ("fits", "tight")
