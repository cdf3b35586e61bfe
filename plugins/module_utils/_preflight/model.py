# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a model's own files say about it: whether it is whole, can be split as asked, and fits."""

from __future__ import annotations

import os
from dataclasses import dataclass, field, replace
from typing import Any, Dict, Iterable, List, Optional

from .._core.errors import GpuFleetError
from .._memory_plan.plan import plan_memory
from .._memory_plan.types import DOES_NOT_FIT, FITS, TIGHT, CheckpointBytes, MemoryPlan, checkpoint_bytes
from .._memory_plan.types import Gpu as PlannedGpu
from .._model.checkpoint import read_checkpoint
from .._model.facts import read_model
from .._model.parallel import Check, check_parallel, working_sizes
from .._model.types import ModelFacts
from .._model.weights_check import check_weights
from .asked import Asked, Seen, fail, passed, skip
from .kept import glance_at
from .length import check_length, within_limit
from .quick import Glance
from .regular import is_lfs_pointer
from .values import shown

_UNKNOWN = "unknown"
# How vLLM loads a directory's own files. By other formats it may need none of them.
_FROM_FILES = ("auto", "safetensors", "hf", "pt", "mistral", "gguf", "bitsandbytes", "fastsafetensors", "instanttensor")
# What stands for a machine of unknown size when valid sizes are asked for.
_USUAL_GPUS = 8
_CONFIGURATIONS = ("config.json", "params.json")
_PULL = "Fetch it: git lfs pull in %s."


@dataclass
class Judged:
    """What was found of the model. ``about`` is what the figures of ``plan`` hold for."""

    checks: List[Check] = field(default_factory=list)
    plan: Dict[str, Any] = field(default_factory=dict)
    suggest: Dict[str, Any] = field(default_factory=dict)
    verdict: str = _UNKNOWN
    about: Dict[str, Any] = field(default_factory=dict)


def judge_model(asked: Asked, seen: Seen, version: Optional[str], run: str, remember: bool) -> Judged:
    """``version`` is the installed vLLM's; None plans with care. Never raises for what stands in the model's files.

    ``remember`` lets what their headers say be kept in the directory ``run``.
    """
    found = Judged(about=_about(asked, seen))
    path = asked.directory
    if path is None:
        found.checks.append(skip("model", "%s is not a directory of this host" % asked.model))
        return found
    try:
        facts = read_model(path)
    except GpuFleetError as exc:
        pointers = [name for name in _CONFIGURATIONS if is_lfs_pointer(os.path.join(path, name))]
        if pointers:
            detail = "%s in %s is a git-lfs pointer: the file itself was not fetched" % (pointers[0], path)
            found.checks.append(fail("model", detail, _PULL % path))
        else:
            found.checks.append(fail("model", exc.msg, "Put the model there, or correct the path in the catalogue."))
        return found
    found.checks.append(passed("model", "%s is readable" % path))
    checkpoint = _checkpoint(asked, path, facts, glance_at(path, facts, run, remember), found.checks)
    sizes = {name: asked.size(name + "_parallel_size") for name in ("tensor", "pipeline", "data", "decode_context")}
    found.checks += check_length(asked, facts)
    wrong = ["%s_parallel_size is %s" % (name, shown(asked.value(name + "_parallel_size"))) for name, size in sizes.items() if size is None]
    if wrong:
        detail = "the parallel sizes have to be whole numbers: " + ", ".join(wrong)
        found.checks.append(fail("parallel", detail, "Correct them in args."))
        return found
    found.checks += _parallel(asked, seen, facts, sizes)
    valid = _valid_sizes(asked, seen, facts)
    found.suggest["tensor_parallel_size"] = valid
    if seen.gpus and min(size or 1 for size in sizes.values()) >= 1:
        plan = plan_memory(facts, _planned(seen), asked.args, checkpoint, version)
        fitting = [size for size in valid if size in plan.tensor_parallel_sizes]
        found.checks = [_with_memory(check, valid, fitting) for check in found.checks]
        found.checks.append(_memory_plan(plan, fitting))
        found.plan, found.verdict = plan.to_dict(), plan.verdict
        found.about.update(max_model_len=plan.max_model_len, max_num_seqs=plan.max_num_seqs)
        found.suggest["max_model_len"] = within_limit(asked, facts, plan.largest_max_model_len)
        found.suggest["max_num_seqs"] = plan.largest_max_num_seqs
        found.suggest["tensor_parallel_size_that_fits"] = fitting
    if asked.value("hf_overrides"):
        found.checks = [_unless_overridden(check) for check in found.checks]
    return found


def _unless_overridden(check: Check) -> Check:
    """The configuration may be another one by then: nothing that only it says is certain."""
    if check.status != "fail" or check.id in ("model", "weights", "parallel", "gpu_count"):
        return check
    return replace(check, status="warn", detail=check.detail.rstrip(".") + ", unless hf_overrides changes that")


def _with_memory(check: Check, valid: List[int], fitting: List[int]) -> Check:
    """A rule's advice names every size that can be split; who follows it has to know which of them have room."""
    if check.status != "fail" or check.fix is None or "would work" not in check.fix or not fitting or fitting == valid:
        return check
    return replace(check, fix="%s Of these, %s fit%s in memory." % (check.fix, _either(fitting), "s" if len(fitting) == 1 else ""))


def _either(sizes: List[int]) -> str:
    return " or ".join(map(str, sizes))


def _about(asked: Asked, seen: Seen) -> Dict[str, Any]:
    return {
        "model": asked.model,
        "gpus": [gpu.index for gpu in seen.gpus],
        "tensor_parallel_size": asked.size("tensor_parallel_size"),
        "pipeline_parallel_size": asked.size("pipeline_parallel_size"),
        "data_parallel_size": asked.size("data_parallel_size"),
        "expert_parallel": asked.expert_parallel,
        "max_model_len": None,
        "max_num_seqs": None,
        # What vLLM would find now. Who looks at services as well knows what comes free.
        "free_mib_per_gpu": _least(gpu.free_mib for gpu in seen.gpus),
    }


def _least(sizes: Iterable[Optional[int]]) -> Optional[int]:
    known = [size for size in sizes if size is not None]
    return min(known) if known else None


def _checkpoint(
    asked: Asked, path: str, facts: ModelFacts, glance: Optional[Glance], checks: List[Check]
) -> Optional[CheckpointBytes]:
    """The checks of the weights' files, and the bytes of a checkpoint that is whole."""
    try:
        found = glance.checkpoint if glance is not None else read_checkpoint(path, facts.layers)
    except GpuFleetError as exc:
        checks.append(fail("weights", exc.msg, "Fetch the model again."))
        return None
    own = str(asked.args.get("load_format", "auto")) in _FROM_FILES
    for check in check_weights(facts, found):
        if check.status == "fail" and "git-lfs pointer" in check.detail:
            check = replace(check, fix=_PULL % path)
        if check.status == "fail" and not own:
            detail = "%s; load_format %s may not need them" % (check.detail, asked.args["load_format"])
            check = replace(check, status="warn", detail=detail)
        checks.append(check)
    if glance is not None:
        return CheckpointBytes(found.total_bytes, found.role_bytes, glance.float32_bytes)
    return checkpoint_bytes(found)


def _parallel(asked: Asked, seen: Seen, facts: ModelFacts, sizes: Dict[str, Optional[int]]) -> List[Check]:
    return check_parallel(
        facts,
        sizes["tensor"] or 0,
        sizes["pipeline"] or 0,
        asked.expert_parallel,
        len(seen.gpus) or None,
        sizes["data"] or 0,
        dcp=sizes["decode_context"] or 0,
        encoder_data_parallel=asked.encoder_data_parallel,
    )


def _valid_sizes(asked: Asked, seen: Seen, facts: ModelFacts) -> List[int]:
    pipeline, data = (max(asked.size(name) or 1, 1) for name in ("pipeline_parallel_size", "data_parallel_size"))
    most = len(seen.gpus) // (pipeline * data) if seen.gpus else _USUAL_GPUS
    return working_sizes(facts, max(1, most), asked.expert_parallel, dp=data, encoder_data_parallel=asked.encoder_data_parallel)


def _planned(seen: Seen) -> List[PlannedGpu]:
    return [PlannedGpu(gpu.total_mib, gpu.name or "", gpu.memory_type, gpu.reserved_mib) for gpu in seen.gpus]


def _memory_plan(plan: MemoryPlan, fitting: List[int]) -> Check:
    """Certain is only what not even the best case leaves room for; what may be is a warning."""
    status = {FITS: "pass", TIGHT: "warn", DOES_NOT_FIT: "fail"}.get(plan.verdict, "skip")
    texts = [reason.rstrip(".") for reason in plan.reasons]
    if plan.verdict == FITS:
        texts = [summary(plan)] + texts
    elif plan.verdict == TIGHT:
        texts = ["it is tight"] + texts
    fixes = [line for line in plan.advice if "tensor_parallel_size" not in line]
    if status == "fail" and fitting:
        fixes.append("By memory, tensor_parallel_size %s would fit." % _either(fitting))
    return Check("memory_plan", status, ". ".join(texts) or plan.verdict, " ".join(fixes) or None if status in ("fail", "warn") else None)


def summary(plan: MemoryPlan) -> str:
    """A plan that fits, in one line."""
    parts = []
    if plan.weights_mib_per_gpu is not None:
        parts.append("weights {:,} MiB per GPU".format(plan.weights_mib_per_gpu))
    if plan.kv_tokens is not None:
        parts.append("a KV cache of about {:,} tokens".format(plan.kv_tokens))
    if plan.max_concurrency is not None and plan.max_model_len is not None:
        parts.append("{:.1f} requests of {:,} tokens at a time".format(plan.max_concurrency, plan.max_model_len))
    return ", ".join(parts) or "it fits"
