# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What is split over ranks whatever its quantisation: heads of attention and of states, the vocabulary.

Sources: ``vllm/config/model.py`` (attention heads, context parallelism), ``QKVParallelLinear`` (KV heads),
``VocabParallelEmbedding``, ``mamba_mixer2.py`` and ``gdn/`` (states), vLLM 0.8 to 0.33.
"""

from __future__ import annotations

from typing import List

from .check import FAIL, PASS, SKIP, Check, Split
from .types import BOTH, FULL, LINEAR, NONE, ModelFacts

# Vocabularies are padded to this before they are split.
_VOCABULARY_PADDING = 64


def attention_heads(facts: ModelFacts, tp: int) -> Check:
    """The first rule that vLLM applies."""
    heads = facts.attention_heads
    if heads is None and facts.attention_layers and facts.count(LINEAR, NONE) == len(facts.attention_layers):
        return Check("attention_heads", PASS, "the model has no attention")
    if heads is None:
        return Check("attention_heads", SKIP, "%s doesn't say how many attention heads there are" % facts.source)
    if heads % tp:
        detail = "%d attention heads can't be split over tensor_parallel_size %d" % (heads, tp)
        return Check("attention_heads", FAIL, detail)
    return Check("attention_heads", PASS, "%d attention heads / %d = %d" % (heads, tp, heads // tp))


def kv_heads(facts: ModelFacts, tp: int) -> Check:
    """KV heads are split, or each is replicated on several ranks."""
    if facts.mla:
        return Check("kv_heads", PASS, "latent attention (MLA): every rank keeps the same compressed cache")
    each = {layer.kv_heads for layer in facts.attention_layers if layer.kind not in (LINEAR, NONE)}
    counts = sorted(count for count in each if count is not None) if each and None not in each else []
    if not counts and facts.kv_heads is not None:
        counts = [facts.kv_heads]
    if not counts:
        if facts.attention_layers and not each:
            return Check("kv_heads", PASS, "the model has no attention")
        return Check("kv_heads", SKIP, "%s doesn't say how many KV heads there are" % facts.source)
    for kv in counts:
        if kv >= tp and kv % tp:
            return Check("kv_heads", FAIL, "%d KV heads can't be split over tensor_parallel_size %d" % (kv, tp))
        if kv < tp and tp % kv:
            detail = "tensor_parallel_size %d is not a multiple of the %d KV heads, which would have to be replicated"
            return Check("kv_heads", FAIL, detail % (tp, kv))
    kv = counts[0]
    if kv >= tp:
        return Check("kv_heads", PASS, "%d KV heads / %d = %d" % (kv, tp, kv // tp))
    return Check("kv_heads", PASS, "%d KV heads, each replicated on %d ranks" % (kv, tp // kv))


def state_heads(facts: ModelFacts, tp: int) -> List[Check]:
    """Heads and groups of layers that keep a state."""
    state = facts.linear
    if state is None:
        return []
    for what, count in (("heads", state.heads), ("key heads", state.key_heads), ("value heads", state.value_heads)):
        if count is not None and count % tp:
            detail = "the state layers' %d %s can't be split over tensor_parallel_size %d" % (count, what, tp)
            return [Check("state_heads", FAIL, detail)]
    if state.family == "mamba2" and state.groups is not None and state.groups != 1 and state.groups % tp:
        detail = "the state layers' %d groups can't be split over tensor_parallel_size %d" % (state.groups, tp)
        return [Check("state_heads", FAIL, detail)]
    return []


def vocabulary(facts: ModelFacts, tp: int) -> List[Check]:
    """Only what is refused is said: any power of two up to 64 is fine."""
    if facts.vocab_size is None:
        return []
    padded = -(-facts.vocab_size // _VOCABULARY_PADDING) * _VOCABULARY_PADDING
    if padded % tp == 0:
        return []
    detail = "the vocabulary of %d, padded to %d, can't be split over tensor_parallel_size %d"
    return [Check("vocabulary", FAIL, detail % (facts.vocab_size, padded, tp))]


def context_parallel(facts: ModelFacts, split: Split) -> List[Check]:
    """decode_context_parallel_size spreads the KV cache over the ranks of one tensor parallel group."""
    dcp, tp = split.dcp, split.tp
    if dcp == 1:
        return []
    check, heads, kv = "context_parallel", facts.attention_heads, facts.kv_heads
    fix = "Set decode_context_parallel_size to 1."
    if tp % dcp:
        detail = "tensor_parallel_size %d is not a multiple of decode_context_parallel_size %d" % (tp, dcp)
        return [Check(check, FAIL, detail, fix)]
    kinds = set(facts.layer_kinds) - {NONE}
    if len(kinds) > 1 or kinds & {LINEAR, BOTH}:
        detail = "layers of several kinds (%s) don't support decode_context_parallel_size %d"
        return [Check(check, FAIL, detail % (", ".join(sorted(kinds)), dcp), fix)]
    if facts.mla:
        return [Check(check, PASS, "latent attention over %d ranks" % dcp)]
    if heads is None or kv is None or not kinds <= {FULL}:
        return [Check(check, SKIP, "%s doesn't say enough about attention" % facts.source)]
    if tp <= kv:
        detail = "decode_context_parallel_size %d needs a tensor_parallel_size above the %d KV heads" % (dcp, kv)
        return [Check(check, FAIL, detail, fix)]
    if dcp > tp // kv:
        detail = "decode_context_parallel_size %d is more than tensor_parallel_size %d / %d KV heads" % (dcp, tp, kv)
        return [Check(check, FAIL, detail, "Set decode_context_parallel_size to %d or less." % (tp // kv))]
    if heads // kv % dcp:
        detail = "the %d query heads of each KV head can't be split over decode_context_parallel_size %d"
        return [Check(check, FAIL, detail % (heads // kv, dcp), fix)]
    return [Check(check, PASS, "%d KV heads over %d ranks" % (kv, dcp))]
