# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Whether a model can be split as asked, by the rules that vLLM applies while it builds the model."""

from __future__ import annotations

from dataclasses import replace
from typing import List, Optional

from .check import FAIL, PASS, SKIP, WARN, Check, Split, counted
from .encoders import encoders
from .heads import attention_heads, context_parallel, kv_heads, state_heads, vocabulary
from .modules import Stored, stored
from .quantisation import KNOWN_METHODS
from .types import ModelFacts
from .widths import attention, feed_forward, states

__all__ = ["FAIL", "PASS", "SKIP", "WARN", "Check", "check_parallel", "working_sizes"]


def check_parallel(
    facts: ModelFacts,
    tp: int,
    pp: int = 1,
    expert_parallel: bool = False,
    gpu_count: Optional[int] = None,
    dp: int = 1,
    refines_blocks: bool = False,
    dcp: int = 1,
    encoder_data_parallel: bool = False,
) -> List[Check]:
    """Every rule that can be applied. A failed one says the rule, the numbers, and the sizes that work.

    ``tp``, ``pp``, ``dp`` and ``dcp`` are vLLM's tensor, pipeline, data and decode context parallel sizes, ``gpu_count``
    the number of the service's GPUs on this host, None to leave them out. ``encoder_data_parallel`` is
    ``mm_encoder_tp_mode: data``. ``refines_blocks`` is for versions that re-cut the blocks of routed experts, and pad
    Marlin's tiles, on load (seen in 0.32 and 0.33, refused up to 0.25): what no longer divides is then a warning.
    """
    if min(tp, pp, dp, dcp) < 1:
        detail = (
            "tensor_parallel_size %d, pipeline_parallel_size %d, data_parallel_size %d and "
            "decode_context_parallel_size %d must be 1 or more"
        )
        return [Check("parallel_sizes", FAIL, detail % (tp, pp, dp, dcp), "Correct them in args.")]
    split = Split(tp, pp, dp, dcp, expert_parallel, encoder_data_parallel, refines_blocks)
    kinds = stored(facts)
    checks = _rules(facts, kinds, split)
    checks += _quantisation(facts)
    checks += _stages(facts, pp)
    checks += context_parallel(facts, split)
    if gpu_count is not None:
        checks.append(_gpus(split, gpu_count))
    if any(check.status == FAIL and check.fix is None for check in checks):
        fix = _advice(facts, kinds, split, gpu_count)
        checks = [replace(check, fix=fix) if check.status == FAIL and check.fix is None else check for check in checks]
    return checks


def working_sizes(
    facts: ModelFacts,
    gpu_count: int,
    expert_parallel: bool = False,
    refines_blocks: bool = False,
    dp: int = 1,
    encoder_data_parallel: bool = False,
) -> List[int]:
    """The tensor parallel sizes from 1 to ``gpu_count`` that break no rule. Whether the memory suffices is not asked."""
    split = Split(1, 1, dp, 1, expert_parallel, encoder_data_parallel, refines_blocks)
    return _working(facts, stored(facts), split, gpu_count)


def _working(facts: ModelFacts, kinds: Stored, split: Split, most: int) -> List[int]:
    return [size for size in range(1, most + 1) if _works(facts, kinds, replace(split, tp=size))]


def _works(facts: ModelFacts, kinds: Stored, split: Split) -> bool:
    return not any(check.status == FAIL for check in _rules(facts, kinds, split))


def _rules(facts: ModelFacts, kinds: Stored, split: Split) -> List[Check]:
    checks = [attention_heads(facts, split.tp), kv_heads(facts, split.tp)]
    checks += state_heads(facts, split.tp)
    checks += vocabulary(facts, split.tp)
    checks += _experts(facts, split.expert_parallel)
    checks += feed_forward(facts, kinds, split)
    checks += attention(facts, kinds, split)
    checks += states(facts, kinds, split)
    checks += encoders(facts, split)
    return checks


def _experts(facts: ModelFacts, expert_parallel: bool) -> List[Check]:
    if not expert_parallel or facts.moe:
        return []
    if facts.attention_heads is None or facts.experts_unclear:
        return [Check("expert_parallel", SKIP, "%s doesn't say whether there are experts" % facts.source)]
    fix = "Remove enable_expert_parallel."
    return [Check("expert_parallel", FAIL, "the model has no experts to distribute", fix)]


def _quantisation(facts: ModelFacts) -> List[Check]:
    quantisation = facts.quantisation
    if quantisation is None or quantisation.method in KNOWN_METHODS:
        return []
    detail = "the quantisation %s isn't known here: no rule of block, group or tile is applied" % quantisation.method
    return [Check("quantisation", SKIP, detail)]


def _stages(facts: ModelFacts, pp: int) -> List[Check]:
    if pp == 1:
        return []
    if facts.layers is None:
        return [Check("pipeline_layers", SKIP, "%s doesn't say how many layers there are" % facts.source)]
    if pp > facts.layers:
        detail = "pipeline_parallel_size %d is more than the model's %s" % (pp, counted(facts.layers, "layer"))
        return [Check("pipeline_layers", FAIL, detail, "Set pipeline_parallel_size to %d or less." % facts.layers)]
    return [Check("pipeline_layers", PASS, "%s over %s" % (counted(facts.layers, "layer"), counted(pp, "stage")))]


def _gpus(split: Split, gpu_count: int) -> Check:
    needed = split.tp * split.pp * split.dp
    factors = " x ".join(
        "%s %d" % (name, size)
        for name, size in (("tensor", split.tp), ("pipeline", split.pp), ("data", split.dp))
        if size > 1 or name == "tensor"
    )
    if needed > gpu_count:
        detail = "%s parallel needs %s, the service has %d" % (factors, counted(needed, "GPU"), gpu_count)
        return Check(
            "gpu_count", FAIL, detail, "Give the service %s, or set smaller parallel sizes." % counted(needed, "GPU")
        )
    if needed < gpu_count:
        detail = "%s parallel uses %d of the service's %d GPUs" % (factors, needed, gpu_count)
        return Check(
            "gpu_count", WARN, detail, "Give the service %s, or set larger parallel sizes." % counted(needed, "GPU")
        )
    every = "the service's GPU" if gpu_count == 1 else "all %d GPUs" % gpu_count
    return Check("gpu_count", PASS, "%s parallel uses %s" % (factors, every))


def _advice(facts: ModelFacts, kinds: Stored, split: Split, gpu_count: Optional[int]) -> str:
    tp = split.tp
    most = max(1, gpu_count // (split.pp * split.dp)) if gpu_count else max(tp, 8)
    sizes = _working(facts, kinds, split, most)
    parts = []
    if sizes:
        parts.append("tensor_parallel_size %s would work." % _either(sizes))
    if tp <= most and not split.expert_parallel and facts.moe:
        if _works(facts, kinds, replace(split, expert_parallel=True)):
            parts.append("With enable_expert_parallel: true, tensor_parallel_size %d works too." % tp)
    if tp <= most and not split.encoder_data_parallel and facts.encoder_heads:
        if _works(facts, kinds, replace(split, encoder_data_parallel=True)):
            parts.append("With mm_encoder_tp_mode: data, tensor_parallel_size %d works too." % tp)
    return " ".join(parts) or "No tensor_parallel_size up to %d works for this model." % most


def _either(sizes: List[int]) -> str:
    texts = [str(size) for size in sizes]
    return texts[0] if len(texts) == 1 else "%s or %s" % (", ".join(texts[:-1]), texts[-1])
