# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Whether a model can be split as asked, by the rules that vLLM applies while it builds the model.

Sources: ``vllm/config/model.py`` (attention heads), ``QKVParallelLinear`` (KV heads), and
``quantization/utils/fp8_utils.py`` and ``marlin_utils.py`` (blocks and groups), vLLM 0.8 to 0.33.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Dict, List, Optional, Tuple

from .facts import ModelFacts
from .quantisation import Quantisation

PASS, WARN, FAIL, SKIP = "pass", "warn", "fail", "skip"

# One module of each kind, as quantisation's lists of exceptions name them.
_ATTENTION = "model.layers.0.self_attn.o_proj"
_DENSE = "model.layers.0.mlp.down_proj"
_SHARED = "model.layers.0.mlp.shared_experts.down_proj"
_ROUTED = "model.layers.0.mlp.experts.0.down_proj"
# vLLM refines blocks no finer than this, see check_parallel.
_FINEST_BLOCK = 32


@dataclass(frozen=True)
class Check:
    """One rule held against one service. ``status`` is ``pass``, ``warn``, ``fail`` or ``skip``."""

    id: str
    status: str
    detail: str
    fix: Optional[str] = None

    def to_result(self) -> Dict[str, Any]:
        """The contract's entry of ``checks``."""
        return {"id": self.id, "status": self.status, "detail": self.detail, "fix": self.fix}


def check_parallel(
    facts: ModelFacts,
    tp: int,
    pp: int = 1,
    expert_parallel: bool = False,
    gpu_count: Optional[int] = None,
    dp: int = 1,
    refines_blocks: bool = False,
) -> List[Check]:
    """Every rule that can be applied. A failed one says the rule, the numbers, and the sizes that work.

    ``gpu_count`` is the number of the service's GPUs on this host, None to leave them out. ``refines_blocks`` is for
    versions that re-cut the blocks of routed experts on load (seen in 0.32 and 0.33, refused up to 0.25): what no
    longer divides is then a warning, since only the Triton kernels can do it.
    """
    if min(tp, pp, dp) < 1:
        detail = "tensor_parallel_size %d, pipeline_parallel_size %d and data_parallel_size %d must be 1 or more"
        return [Check("parallel_sizes", FAIL, detail % (tp, pp, dp), "Correct them in args.")]
    checks = _rules(facts, tp, expert_parallel, dp, refines_blocks)
    checks += _stages(facts, pp)
    if gpu_count is not None:
        checks.append(_gpus(tp, pp, dp, gpu_count))
    if any(check.status == FAIL and check.fix is None for check in checks):
        fix = _advice(facts, tp, expert_parallel, gpu_count, pp, dp, refines_blocks)
        checks = [
            Check(check.id, check.status, check.detail, fix) if check.status == FAIL and check.fix is None else check
            for check in checks
        ]
    return checks


def working_sizes(
    facts: ModelFacts, gpu_count: int, expert_parallel: bool = False, refines_blocks: bool = False, dp: int = 1
) -> List[int]:
    """The tensor parallel sizes from 1 to ``gpu_count`` that break no rule. Whether the memory suffices is not asked."""
    return [
        size
        for size in range(1, gpu_count + 1)
        if not any(check.status == FAIL for check in _rules(facts, size, expert_parallel, dp, refines_blocks))
    ]


def _rules(facts: ModelFacts, tp: int, expert_parallel: bool, dp: int, refines_blocks: bool) -> List[Check]:
    checks = [_attention_heads(facts, tp), _kv_heads(facts, tp)]
    checks += _experts(facts, expert_parallel)
    # With expert parallelism routed experts stay whole; without it data parallel ranks split them further. Everything
    # else is split by the tensor parallel size alone.
    routed_split = 1 if expert_parallel else tp * dp
    for kind, width, split, module in (
        ("dense", facts.dense_width, tp, _DENSE),
        ("shared_experts", facts.shared_width, tp, _SHARED),
        ("experts", facts.expert_width, routed_split, _ROUTED),
    ):
        if width is not None:
            refine = refines_blocks and kind == "experts"
            checks.append(_width(facts, kind, width, split, module, refine))
    if facts.quantisation is not None and facts.quantisation.covers(_ATTENTION, facts.layers):
        checks += _quantised_attention(facts, facts.quantisation, tp)
    checks += _encoders(facts, tp)
    return checks


def _attention_heads(facts: ModelFacts, tp: int) -> Check:
    heads = facts.attention_heads
    if heads is None:
        return Check("attention_heads", SKIP, "%s doesn't say how many attention heads there are" % facts.source)
    if heads % tp:
        return Check(
            "attention_heads", FAIL, "%d attention heads can't be split over tensor_parallel_size %d" % (heads, tp)
        )
    return Check("attention_heads", PASS, "%d attention heads / %d = %d" % (heads, tp, heads // tp))


def _kv_heads(facts: ModelFacts, tp: int) -> Check:
    kv = facts.kv_heads
    if facts.mla:
        return Check("kv_heads", PASS, "latent attention (MLA): every rank keeps the same compressed cache")
    if kv is None:
        return Check("kv_heads", SKIP, "%s doesn't say how many KV heads there are" % facts.source)
    if kv >= tp:
        if kv % tp:
            return Check("kv_heads", FAIL, "%d KV heads can't be split over tensor_parallel_size %d" % (kv, tp))
        return Check("kv_heads", PASS, "%d KV heads / %d = %d" % (kv, tp, kv // tp))
    if tp % kv:
        detail = "tensor_parallel_size %d is not a multiple of the %d KV heads, which would have to be replicated"
        return Check("kv_heads", FAIL, detail % (tp, kv))
    return Check("kv_heads", PASS, "%d KV heads, each replicated on %d ranks" % (kv, tp // kv))


def _experts(facts: ModelFacts, expert_parallel: bool) -> List[Check]:
    if not expert_parallel or facts.moe:
        return []
    if facts.attention_heads is None:
        return [Check("expert_parallel", SKIP, "%s doesn't say whether there are experts" % facts.source)]
    fix = "Remove enable_expert_parallel."
    return [Check("expert_parallel", FAIL, "the model has no experts to distribute", fix)]


def _width(facts: ModelFacts, kind: str, width: int, split: int, module: str, refine: bool) -> Check:
    label = {"dense": "intermediate size", "shared_experts": "shared experts' intermediate size"}.get(
        kind, "expert intermediate size"
    )
    if width % split:
        return Check("mlp_%s" % kind, FAIL, "%s %d can't be split over %d ranks" % (label, width, split))
    part = width // split
    said = "%s %d / %d = %d" % (label, width, split, part)
    quantisation = facts.quantisation
    if quantisation is None or not quantisation.covers(module, facts.layers):
        return Check("mlp_%s" % kind, PASS, said)
    if quantisation.block is not None:
        return _block(kind, said, part, split, quantisation.block, facts, refine)
    if quantisation.group is not None:
        return _group(kind, said, part, split, quantisation)
    return Check("mlp_%s" % kind, PASS, "%s; %s has no block that it must fit" % (said, quantisation.method))


def _block(
    kind: str, said: str, part: int, split: int, block: Tuple[int, int], facts: ModelFacts, refine: bool
) -> Check:
    block_n, block_k = block
    # Columns (gate and up) must fit block_n even when nothing is split; rows (down) block_k only when they are.
    bad = [size for size in ((block_n, block_k) if split > 1 else (block_n,)) if part % size]
    if not bad:
        return Check(
            "quant_block_%s" % kind, PASS, "%s is a multiple of the FP8 block %d x %d" % (said, block_n, block_k)
        )
    detail = "%s is not a multiple of the stored FP8 block %d" % (said, bad[0])
    if refine and math.gcd(block_n, block_k, part, facts.hidden_size or part) >= _FINEST_BLOCK:
        detail += "; this version of vLLM re-cuts the blocks on load, and only its Triton kernels can use them"
        return Check("quant_block_%s" % kind, WARN, detail, "Expect less speed than with a size that divides.")
    return Check("quant_block_%s" % kind, FAIL, detail)


def _group(kind: str, said: str, part: int, split: int, quantisation: Quantisation) -> Check:
    group = quantisation.group or 1
    check = "quant_group_%s" % kind
    if part % group:
        detail = "%s is not a multiple of the %s group size %d" % (said, quantisation.method, group)
        # Unsplit, the checkpoint itself was made that way: kernels differ in whether they pad it.
        return Check(check, FAIL if split > 1 else WARN, detail, None if split > 1 else "Watch the first start.")
    return Check(check, PASS, "%s is a multiple of the %s group size %d" % (said, quantisation.method, group))


def _quantised_attention(facts: ModelFacts, quantisation: Quantisation, tp: int) -> List[Check]:
    """The output projection's rows, and what query, key and value are cut into."""
    heads = facts.attention_heads
    value_dim = facts.v_head_dim if facts.mla else facts.head_dim
    query_dim = facts.head_dim
    if facts.mla:
        both = (facts.qk_nope_head_dim, facts.qk_rope_head_dim)
        query_dim = None if None in both else (both[0] or 0) + (both[1] or 0)
    if heads is None or heads % tp or value_dim is None:
        return []
    row = heads // tp * value_dim
    if quantisation.block is not None:
        return _blocked_attention(facts, quantisation.block, tp, row, heads // tp * query_dim if query_dim else None)
    if quantisation.group is not None:
        said = "attention output %d / %d = %d" % (heads * value_dim, tp, row)
        return [_group("attention", said, row, tp, quantisation)]
    return []


def _blocked_attention(
    facts: ModelFacts, block: Tuple[int, int], tp: int, row: int, query: Optional[int]
) -> List[Check]:
    block_n, block_k = block
    check = "quant_block_attention"
    if tp > 1 and row % block_k:
        detail = "the attention output's %d columns per rank are not a multiple of the stored FP8 block %d"
        return [Check(check, FAIL, detail % (row, block_k))]
    if query is not None and query % block_n:
        detail = "the query's %d rows per rank are not a multiple of the stored FP8 block %d"
        return [Check(check, FAIL, detail % (query, block_n))]
    if not facts.mla and facts.kv_heads is not None and facts.head_dim is not None:
        kv = max(facts.kv_heads // tp, 1) * facts.head_dim
        if kv % block_n:
            # Refused by older versions; newer ones let a merged projection differ (linear.py).
            detail = (
                "the key's %d rows per rank are not a multiple of the stored FP8 block %d, which older versions refuse"
            )
            return [Check(check, WARN, detail % (kv, block_n), "Watch the first start, or use a smaller size.")]
    return [Check(check, PASS, "attention per rank fits the FP8 block %d x %d" % (block_n, block_k))]


def _encoders(facts: ModelFacts, tp: int) -> List[Check]:
    checks = []
    for name, heads in facts.encoder_heads:
        if heads % tp:
            # Some encoders pad their heads, some aren't split, some refuse: the model's own code decides.
            detail = "%s has %d attention heads, not a multiple of tensor_parallel_size %d" % (name, heads, tp)
            fix = "If vLLM refuses it, set mm_encoder_tp_mode: data, which doesn't split the encoder."
            checks.append(Check("encoder_heads", WARN, detail, fix))
    return checks


def _stages(facts: ModelFacts, pp: int) -> List[Check]:
    if pp == 1:
        return []
    if facts.layers is None:
        return [Check("pipeline_layers", SKIP, "%s doesn't say how many layers there are" % facts.source)]
    if pp > facts.layers:
        detail = "pipeline_parallel_size %d is more than the %d layers" % (pp, facts.layers)
        return [Check("pipeline_layers", FAIL, detail, "Set pipeline_parallel_size to %d or less." % facts.layers)]
    return [Check("pipeline_layers", PASS, "%d layers over %d stages" % (facts.layers, pp))]


def _gpus(tp: int, pp: int, dp: int, gpu_count: int) -> Check:
    needed = tp * pp * dp
    factors = " x ".join(
        "%s %d" % (name, size)
        for name, size in (("tensor", tp), ("pipeline", pp), ("data", dp))
        if size > 1 or name == "tensor"
    )
    if needed > gpu_count:
        detail = "%s parallel needs %d GPUs, the service has %d" % (factors, needed, gpu_count)
        return Check("gpu_count", FAIL, detail, "Give the service %d GPUs, or set smaller parallel sizes." % needed)
    if needed < gpu_count:
        detail = "%s parallel uses %d of the service's %d GPUs" % (factors, needed, gpu_count)
        return Check("gpu_count", WARN, detail, "Give the service %d GPUs, or set larger parallel sizes." % needed)
    return Check("gpu_count", PASS, "%s parallel uses all %d GPUs" % (factors, gpu_count))


def _advice(
    facts: ModelFacts,
    tp: int,
    expert_parallel: bool,
    gpu_count: Optional[int],
    pp: int,
    dp: int,
    refines_blocks: bool,
) -> str:
    most = max(1, gpu_count // (pp * dp)) if gpu_count else max(tp, 8)
    sizes = working_sizes(facts, most, expert_parallel, refines_blocks, dp)
    parts = []
    if sizes:
        parts.append("tensor_parallel_size %s would work." % _either(sizes))
    if facts.moe and not expert_parallel and tp <= most and tp in working_sizes(facts, tp, True, refines_blocks, dp):
        parts.append("With enable_expert_parallel: true, tensor_parallel_size %d works too." % tp)
    return " ".join(parts) or "No tensor_parallel_size up to %d works for this model." % most


def _either(sizes: List[int]) -> str:
    texts = [str(size) for size in sizes]
    return texts[0] if len(texts) == 1 else "%s or %s" % (", ".join(texts[:-1]), texts[-1])
