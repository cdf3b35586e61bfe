# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The memory plan: the one way into this room."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Dict, List, Mapping, Optional, Sequence, Tuple

from .._model.length import length_limit
from .._model.types import ModelFacts
from .arguments import AUTO, EngineArgs, read_args
from .estimate import LIKELY, WORST, Estimate, Given, estimate
from .types import DOES_NOT_FIT, FITS, MIB, TIGHT, UNKNOWN, CheckpointBytes, Gpu, MemoryPlan, Range
from .verdict import USUAL_SEQS, verdict
from .versions import smallest

# No figure of a real plan is larger: what comes out larger was made of sizes that are no model's.
_MOST_TOKENS = 2**50
_TENSOR_SIZES = (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 16, 32, 64)


def plan_memory(
    facts: ModelFacts,
    gpus: Sequence[Gpu],
    args: Optional[Mapping[str, Any]] = None,
    checkpoint: Optional[CheckpointBytes] = None,
    version: Optional[str] = None,
    gpu_count: Optional[int] = None,
) -> MemoryPlan:
    """Plan one deployment.

    facts: the model's sizes. gpus: those that the service may use; the smallest decides. args: vLLM's engine arguments by
    name, hyphens or underscores. checkpoint: bytes of its tensors; without it they are counted from the sizes. version:
    vLLM's, such as "0.19.1"; None plans with care. gpu_count: how many GPUs there are to choose from for the tensor
    parallel sizes that fit (default: as many as in ``gpus``). Never raises for what stands in them.
    """
    parsed = read_args(args or {})
    gpu = smallest(gpus)
    if gpu is None:
        reason = "no GPU of known size is given"
        return MemoryPlan(UNKNOWN, ("The plan needs the GPUs' memory: %s." % reason,), parsed.unread, _all(reason))
    given = Given(facts, checkpoint, gpu, version)
    found = estimate(given, parsed)
    word, reasons = verdict(found)
    length = _largest_length(found)
    seqs = _largest_seqs(found, word)
    sizes = _tensor_sizes(found, gpu_count if gpu_count is not None else len(gpus))
    advice = _advice(found, word, length, seqs, sizes) + parsed.unread
    return _plan(found, word, reasons, advice, length, seqs, sizes)


def _plan(
    found: Estimate,
    word: str,
    reasons: Tuple[str, ...],
    advice: Tuple[str, ...],
    length: Optional[int],
    seqs: Optional[int],
    sizes: Tuple[int, ...],
) -> MemoryPlan:
    unknown: Dict[str, str] = {}
    known_weights = None if isinstance(found.weights, str) else found.weights
    known_cache = None if isinstance(found.cache, str) else found.cache
    if known_weights is None:
        unknown = dict.fromkeys(("weights_mib_per_gpu", "needed_mib_per_gpu"), str(found.weights))
        if not found.blocks:
            unknown.update(dict.fromkeys(("kv_tokens", "max_concurrency"), str(found.weights)))
    if known_cache is None:
        for name in ("kv_mib_per_token_per_gpu", "kv_tokens", "max_concurrency", "needed_mib_per_gpu"):
            unknown.setdefault(name, str(found.cache))
    elif known_cache.token_bytes is None:
        unknown["kv_mib_per_token_per_gpu"] = "several kinds of layers share one pool: compare max_concurrency"
    if found.given.facts.vocab_size is None:
        unknown["warmup_mib"] = "%s doesn't say the vocabulary's size" % found.given.facts.source
    if found.max_model_len is None:
        unknown.setdefault("max_concurrency", "max_model_len isn't known")
        unknown.setdefault("needed_mib_per_gpu", "max_model_len isn't known")
    concurrency, tokens = _capacity(found)
    if tokens is None:
        unknown.setdefault("kv_tokens", "it can't be said in tokens without max_model_len")
    needed = None if "needed_mib_per_gpu" in unknown else _needed(found)
    over = found.over
    parts = {"activation": over.activation, "non_torch": over.non_torch, "cuda_graphs": over.graphs}
    if found.kv:
        worst, likely, best = (max(size // MIB, 0) for size in reversed(found.kv))
        parts["kv_cache"] = Range(worst, likely, best)
    notes = () if known_weights is None else known_weights.notes
    return MemoryPlan(
        verdict=word,
        reasons=reasons + notes,
        advice=advice,
        unknown=unknown,
        weights_mib_per_gpu=None if known_weights is None else _up(known_weights.most),
        kv_mib_per_token_per_gpu=_per_token(found),
        kv_tokens=tokens,
        max_concurrency=concurrency,
        warmup_mib=None if "warmup_mib" in unknown else _up(over.warmup_bytes),
        needed_mib_per_gpu=needed,
        free_mib_needed=_free(found, needed),
        weights_source=None if known_weights is None else ("checkpoint" if known_weights.exact else "estimate"),
        max_model_len=found.max_model_len,
        max_num_seqs=found.seqs,
        budget_mib=found.budget // MIB,
        kv_cache_mib=max(found.kv[LIKELY] // MIB, 0) if found.kv else None,
        kv_blocks=found.blocks[LIKELY] if found.blocks and known_cache is not None else None,
        kv_block_size=known_cache.block_size if known_cache is not None else None,
        hybrid=known_cache is not None and known_cache.hybrid,
        parts=parts,
        largest_max_model_len=length,
        largest_max_num_seqs=seqs,
        tensor_parallel_sizes=sizes,
    )


def _capacity(found: Estimate) -> Tuple[Optional[float], Optional[int]]:
    """(requests of max_model_len that fit at once, tokens as vLLM prints them)."""
    cache = found.cache
    if isinstance(cache, str) or not found.blocks:
        return None, None
    blocks, length = found.blocks[LIKELY], found.max_model_len
    concurrency = None if length is None else blocks / max(cache.request_blocks(length), 1)
    if not cache.hybrid:
        tokens: Optional[int] = blocks * cache.block_size * cache.ranks
    elif found.given.how.tokens_from_concurrency or not cache.block_size:
        tokens = None if concurrency is None or length is None else int(concurrency * length)
    else:
        tokens = blocks // len(cache.groups) * cache.block_size * cache.ranks
    if tokens is not None and tokens > _MOST_TOKENS:
        tokens = None
    return (None if concurrency is None else round(concurrency, 3)), tokens


def _per_token(found: Estimate) -> Optional[float]:
    if isinstance(found.cache, str) or found.cache.token_bytes is None:
        return None
    return found.cache.token_bytes / MIB


def _needed(found: Estimate) -> Optional[int]:
    """Weights, overheads and one request of max_model_len, on the GPU that needs most."""
    if isinstance(found.cache, str) or isinstance(found.weights, str):
        return None
    over, one = found.over, found.cache.request_bytes(found.max_model_len or 1)
    kv = one if found.args.kv_cache_memory_bytes is None else found.args.kv_cache_memory_bytes
    most = max(over.activation.likely, over.forward.likely)
    return _up(found.weights.most + kv) + most + over.non_torch.likely + over.graphs.likely


def _free(found: Estimate, needed: Optional[int]) -> int:
    """What vLLM asks for when it starts (vllm/v1/worker/utils.py, request_memory): its share of the total, also when the
    cache's size is given; and the graphs where they come on top."""
    asked = _up(found.budget)
    if not found.given.how.graphs_in_budget:
        asked += found.over.graphs.likely
    if found.args.kv_cache_memory_bytes is not None and needed is not None:
        asked = max(asked, needed)
    return min(asked, found.given.total // MIB)


def _largest_length(found: Estimate) -> Optional[int]:
    """The longest max_model_len that fits at worst, or as likely where nothing does at worst."""
    if isinstance(found.cache, str) or not found.blocks:
        return None
    limit = length_limit(found.given.facts)
    if limit is None and found.args.max_model_len != AUTO:
        limit = found.args.max_model_len
    for scenario in (WORST, LIKELY):
        if found.kv[scenario] > 0:
            length = found.cache.most_tokens(found.blocks[scenario], limit)
            if length > 0:
                return length
    return None


def _largest_seqs(found: Estimate, word: str) -> Optional[int]:
    """The largest of what is asked for, 256 and the powers of two below that fits; else the largest that may."""
    if word == UNKNOWN:
        return None
    steps = {256, 128, 64, 32, 16, 8, 4, 2, 1}
    if found.blocks and not found.states_fit(LIKELY):
        steps |= {512, max(found.blocks[WORST], 1)}
    ladder = [found.seqs] + sorted((size for size in steps if size < found.seqs), reverse=True)
    maybe: Optional[int] = None
    for size in ladder:
        other = (
            word if size == found.seqs else verdict(estimate(found.given, replace(found.args, max_num_seqs=size)))[0]
        )
        if other == FITS:
            return size
        if other == TIGHT and maybe is None:
            maybe = size
    return maybe


def _tensor_sizes(found: Estimate, gpu_count: int) -> Tuple[int, ...]:
    """Sizes whose plan fits or is tight, up to the GPUs there are; only those that the attention heads divide into."""
    args, heads = found.args, found.given.facts.attention_heads
    most = gpu_count // max(args.pipeline_parallel_size * args.data_parallel_size, 1)
    sizes: List[int] = []
    for size in _TENSOR_SIZES:
        if size > most or (heads is not None and heads % size):
            continue
        if verdict(estimate(found.given, replace(args, tensor_parallel_size=size)))[0] in (FITS, TIGHT):
            sizes.append(size)
    return tuple(sizes)


def _advice(
    found: Estimate, word: str, length: Optional[int], seqs: Optional[int], sizes: Tuple[int, ...]
) -> Tuple[str, ...]:
    if word not in (TIGHT, DOES_NOT_FIT):
        return ()
    lines = []
    if seqs is not None and seqs < found.seqs:
        usual = " (vLLM's own default on smaller GPUs)" if seqs == USUAL_SEQS else ""
        lines.append("Set max_num_seqs to %d%s." % (seqs, usual))
    if length is not None and found.max_model_len is not None and length < found.max_model_len:
        lines.append("Set max_model_len to %d or less." % length)
    others = [size for size in sizes if size > found.args.tensor_parallel_size]
    if others:
        lines.append("tensor_parallel_size %s would fit by memory." % " or ".join(str(size) for size in others))
    if not lines:
        lines.append("More or larger GPUs, a smaller or quantised model, or less of both lengths is needed.")
    return tuple(lines)


def _all(reason: str) -> Dict[str, str]:
    return dict.fromkeys(MemoryPlan(UNKNOWN).to_dict(), reason)


def _up(size: float) -> int:
    return int(-(-size // MIB))


__all__ = ["EngineArgs", "plan_memory"]
