# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Public starts of vLLM, planned with what their users had, against what their logs printed."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ansible_collections.gpufleet.vllm.plugins.module_utils._memory_plan.plan import plan_memory
from ansible_collections.gpufleet.vllm.plugins.module_utils._memory_plan.types import (
    CheckpointBytes,
    Gpu,
    MemoryPlan,
)
from ansible_collections.gpufleet.vllm.plugins.module_utils._model.facts import facts_from_config
from ansible_collections.gpufleet.vllm.plugins.module_utils._model.types import ModelFacts

DATA = Path(__file__).parent / "data"
MODELS: dict[str, Any] = json.loads((DATA / "models.json").read_text(encoding="utf-8"))
RUNS: list[dict[str, Any]] = json.loads((DATA / "runs.json").read_text(encoding="utf-8"))
GIB = 2**30
# A printed size has two decimals, and not every rank has the same: what one log says of itself is exact to this.
EXACT = 0.012
WEIGHTS, CAPACITY = 0.05, 0.10


@dataclass(frozen=True)
class Row:
    """One run: what was planned beside what was printed, None where either isn't there."""

    run: dict[str, Any]
    plan: MemoryPlan
    token_bytes: tuple[float, float] | None  # of uniform attention: planned, printed
    weights: tuple[float, float] | None  # GiB
    rule: tuple[float, float] | None  # tokens, for hybrids concurrency, from the cache's size as printed
    capacity: tuple[float, float] | None  # the same from nothing but what the user had

    @property
    def hybrid(self) -> bool:
        """Whether layers of several kinds share one pool."""
        return self.plan.hybrid


def facts_of(run: dict[str, Any]) -> ModelFacts:
    """The model's facts, with the quantisation that the run used."""
    config = dict(MODELS[run["model_key"]]["config"])
    if "quantization_config" in run:
        config["quantization_config"] = run["quantization_config"]
    return facts_from_config(config)


def args_of(run: dict[str, Any]) -> dict[str, Any]:
    """The engine arguments that the log shows."""
    found = {
        "tensor_parallel_size": run.get("tp", 1),
        "pipeline_parallel_size": run.get("pp", 1),
        "decode_context_parallel_size": run.get("dcp", 1),
        "enable_expert_parallel": run.get("ep", False),
        "speculative_config": run.get("speculative_config"),
    }
    for name in (
        "gpu_memory_utilization",
        "max_model_len",
        "max_num_seqs",
        "max_num_batched_tokens",
        "kv_cache_dtype",
        "block_size",
        "enable_prefix_caching",
    ):
        found[name] = run.get(name)
    # A block size that vLLM set itself, to the size of a state, isn't an argument.
    if (run.get("block_size") or 0) > 256:
        found["block_size"] = None
    return found


def planned(run: dict[str, Any], **more: Any) -> MemoryPlan:
    """The plan for a run; ``more`` replaces arguments."""
    model = MODELS[run["model_key"]]
    known = "quantization_config" not in run and "checkpoint_bytes" in model
    checkpoint = CheckpointBytes(model["checkpoint_bytes"]) if known else None
    # Where the GPU isn't said, one large enough: then nothing that depends on it is compared.
    total = run.get("nvml_total_mib", 200_000)
    gpu = Gpu(total, run.get("gpu", ""), run.get("memory_type", "discrete"))
    args = {**args_of(run), **more}
    return plan_memory(facts_of(run), [gpu] * run.get("gpu_count", 1), args, checkpoint, run["version"])


def row(run: dict[str, Any]) -> Row:
    """Compare one run."""
    plan = planned(run)
    available, printed_tokens = run.get("available_kv_gib", 0), run.get("kv_cache_tokens")
    capacity = rule = token_bytes = weights = None
    if plan.kv_mib_per_token_per_gpu is not None and available > 0 and printed_tokens:
        token_bytes = (plan.kv_mib_per_token_per_gpu * 2**20, available * GIB / printed_tokens)
    if run.get("model_loading_gib") and plan.weights_mib_per_gpu is not None:
        weights = (plan.weights_mib_per_gpu / 1024, run["model_loading_gib"])
    if available > 0:
        rule = _pair(run, planned(run, kv_cache_memory_bytes=int(available * GIB)))
    if "gpu_memory_utilization" in run and "nvml_total_mib" in run:
        capacity = _pair(run, plan)
        if capacity is None and available > 0 and plan.kv_cache_mib is not None:
            capacity = (plan.kv_cache_mib / 1024, available)  # neither tokens nor concurrency were printed
    return Row(run, plan, token_bytes, weights, rule, capacity)


def _pair(run: dict[str, Any], plan: MemoryPlan) -> tuple[float, float] | None:
    if plan.hybrid:
        if plan.max_concurrency is None or "max_concurrency" not in run:
            return None
        return plan.max_concurrency, run["max_concurrency"]
    if plan.kv_tokens is None or "kv_cache_tokens" not in run:
        return None
    return plan.kv_tokens, run["kv_cache_tokens"]


def off(pair: tuple[float, float]) -> float:
    """How far the plan is from what was printed, as a share of that."""
    return pair[0] / pair[1] - 1
