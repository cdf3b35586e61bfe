# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The bytes of a model's weights by what becomes of them when they are split over ranks, counted from its sizes.

Where only the checkpoint's total is known, this says how it divides; where not even that, it stands for it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Dict, List, Optional, Tuple

from .._model.quantisation import KNOWN_METHODS, Quantisation
from .._model.types import BOTH, LINEAR, NONE, AttentionLayer, LinearState, ModelFacts
from .arguments import EngineArgs
from .layers import model_bytes

# One module of each kind, as different models call it: what a quantisation leaves out is asked by these.
_ROOTS = ("model.layers.0.", "model.language_model.layers.0.", "language_model.model.layers.0.", "backbone.layers.0.")


def _named(*suffixes: str) -> Tuple[str, ...]:
    return tuple(root + suffix for suffix in suffixes for root in _ROOTS)


_ATTENTION = _named("self_attn.q_proj", "attention.wq", "mixer.q_proj")
_LATENT = _named("self_attn.q_b_proj", "self_attn.o_proj")
_LINEAR = _named("linear_attn.in_proj_qkvz", "self_attn.in_proj", "mixer.in_proj", "mamba.in_proj")
_DENSE = _named("mlp.gate_proj", "feed_forward.gate_proj", "feed_forward.w1", "mixer.up_proj")
_SHARED = _named("mlp.shared_experts.gate_proj", "mlp.shared_expert.gate_proj", "feed_forward.shared_expert.gate_proj")
_EXPERTS = _named("mlp.experts.0.gate_proj", "block_sparse_moe.experts.0.w1", "feed_forward.experts.gate_proj")
_HEAD = ("lm_head",)
# Model types whose dense layers have two matrices instead of three (no gate).
_UNGATED = (
    "bloom",
    "falcon",
    "gpt2",
    "gpt_bigcode",
    "gpt_neox",
    "gptj",
    "mpt",
    "nemotron",
    "nemotron_h",
    "opt",
    "phi",
    "starcoder2",
)
# Bits of one weight where a format says them by its name.
_NAMED_BITS = {"awq": 4, "gptq": 4, "int4": 4, "nvfp4": 4, "fp4": 4, "mxfp4": 4, "int8": 8, "fp8": 8, "w8a8": 8}


@dataclass(frozen=True)
class LayerBytes:
    """One layer: ``split`` over tensor parallel ranks, ``kv`` over at most the KV heads, ``whole`` on every rank,
    ``experts`` over tensor and data parallel ranks together."""

    split: float = 0.0
    kv: float = 0.0
    kv_heads: int = 1
    whole: float = 0.0
    experts: float = 0.0

    @property
    def total(self) -> float:
        """All of it."""
        return self.split + self.kv + self.whole + self.experts

    def scaled(self, others: float, experts: float) -> LayerBytes:
        """The same with other sizes for the experts and for what isn't experts."""
        return replace(
            self,
            split=self.split * others,
            kv=self.kv * others,
            whole=self.whole * others,
            experts=self.experts * experts,
        )


@dataclass(frozen=True)
class ModelBytes:
    """A whole model. ``nextn``: one next-token-prediction layer."""

    layers: Tuple[LayerBytes, ...]
    embedding: float
    head: float  # 0 where it is the embedding itself
    nextn: LayerBytes

    @property
    def total(self) -> float:
        """Without next-token prediction."""
        return sum(layer.total for layer in self.layers) + self.embedding + self.head


def count(facts: ModelFacts, args: EngineArgs) -> Optional[ModelBytes]:
    """Bytes as stored, and as loaded where vLLM quantises on load. None where a size is missing."""
    # The same for all the sizes that one plan tries; lists of what isn't quantised can be long.
    return _count(facts, EngineArgs(dtype=args.dtype, quantization=args.quantization))


@lru_cache(maxsize=8)
def _count(facts: ModelFacts, args: EngineArgs) -> Optional[ModelBytes]:
    hidden, vocab = facts.hidden_size, facts.vocab_size
    if hidden is None or vocab is None or not facts.attention_layers:
        return None
    if facts.quantisation is not None and not _sized(facts.quantisation):
        return None
    plain = model_bytes(facts, args)
    known: Dict[Tuple[AttentionLayer, bool], Optional[LayerBytes]] = {}
    layers: List[LayerBytes] = []
    for index, layer in enumerate(facts.attention_layers):
        experts = facts.layer_has_experts[index] if index < len(facts.layer_has_experts) else facts.moe
        key = (replace(layer, owns_cache=True), experts)
        if key not in known:
            known[key] = _layer(facts, args, layer, experts, hidden, plain)
        found = known[key]
        if found is None:
            return None
        layers.append(found)
    last = layers[-1]
    return ModelBytes(
        layers=tuple(layers),
        embedding=vocab * hidden * plain,
        head=0.0 if facts.tie_word_embeddings else vocab * hidden * _weight(facts, args, _HEAD, plain),
        nextn=replace(last, split=last.split + 2 * hidden * hidden * plain),
    )


def _layer(
    facts: ModelFacts, args: EngineArgs, layer: AttentionLayer, experts: bool, hidden: int, plain: float
) -> Optional[LayerBytes]:
    parts = LayerBytes()
    if layer.kind not in (LINEAR, NONE):
        attention = _latent(facts, args, hidden, plain) if facts.mla else _attention(facts, args, layer, hidden, plain)
        if attention is None:
            return None
        count = layer.attentions
        parts = replace(
            attention, split=attention.split * count, kv=attention.kv * count, whole=attention.whole * count
        )
    if layer.kind in (LINEAR, BOTH):
        linear = _linear(facts.linear, hidden)
        if linear is None:
            return None
        parts = replace(parts, split=parts.split + linear * _weight(facts, args, _LINEAR, plain))
    return _mlp(facts, args, parts, layer, experts, hidden, plain)


def _attention(
    facts: ModelFacts, args: EngineArgs, layer: AttentionLayer, hidden: int, plain: float
) -> Optional[LayerBytes]:
    heads, key, value = facts.attention_heads, layer.key_dim, layer.value_dim
    if heads is None or key is None or value is None or layer.kv_heads is None:
        return None
    width = _weight(facts, args, _ATTENTION, plain)
    gated = 2 if facts.linear is not None and facts.linear.family == "gated_delta_net" else 1  # the query has a gate
    split = hidden * heads * (gated * key + value) * width
    return LayerBytes(split=split, kv=hidden * layer.kv_heads * (key + value) * width, kv_heads=layer.kv_heads)


def _latent(facts: ModelFacts, args: EngineArgs, hidden: int, plain: float) -> Optional[LayerBytes]:
    heads, rank, rope = facts.attention_heads, facts.kv_lora_rank, facts.qk_rope_head_dim
    nope, value = facts.qk_nope_head_dim, facts.v_head_dim
    if heads is None or rank is None or rope is None or nope is None or value is None:
        return None
    width = _weight(facts, args, _LATENT, plain)
    down = hidden * (rank + rope) + (hidden * facts.q_lora_rank if facts.q_lora_rank else 0)
    query = (facts.q_lora_rank or hidden) * heads * (nope + rope)
    if facts.index_head_dim and facts.q_lora_rank:
        down += hidden * facts.index_head_dim + facts.q_lora_rank * heads * facts.index_head_dim
    split = (query + rank * heads * (nope + value) + heads * value * hidden) * width
    return LayerBytes(split=split, whole=down * width)


def _linear(state: Optional[LinearState], hidden: int) -> Optional[int]:
    if state is None:
        return None
    if state.family in ("gated_delta_net", "kimi_delta"):
        if None in (state.key_heads, state.key_head_dim, state.value_heads, state.value_head_dim):
            return None
        keys = (state.key_heads or 0) * (state.key_head_dim or 0)
        values = (state.value_heads or 0) * (state.value_head_dim or 0)
        gates = 1 if state.family == "gated_delta_net" else 0
        return hidden * (2 * keys + (1 + gates) * values) + values * hidden
    if state.family in ("mamba1", "mamba2"):
        if state.inner_size is None or state.state_size is None:
            return None
        return hidden * (2 * state.inner_size + 2 * (state.groups or 1) * state.state_size) + state.inner_size * hidden
    if state.family == "lightning":
        inner = (state.heads or 0) * (state.head_dim or 0)
        return 5 * hidden * inner if inner else None
    if state.family == "short_conv" and state.inner_size is not None:
        return 4 * hidden * state.inner_size
    return None


def _mlp(
    facts: ModelFacts,
    args: EngineArgs,
    parts: LayerBytes,
    layer: AttentionLayer,
    experts: bool,
    hidden: int,
    plain: float,
) -> Optional[LayerBytes]:
    if layer.kind == NONE and not experts and facts.model_type == "nemotron_h" and facts.dense_width is None:
        return None
    if facts.model_type == "nemotron_h" and layer.kind != NONE:
        return parts  # a layer there is either attention, or a state, or an MLP
    matrices = 2 if (facts.model_type or "") in _UNGATED else 3
    if not experts:
        if facts.dense_width is None:
            return None
        width = _weight(facts, args, _DENSE, plain)
        return replace(parts, split=parts.split + matrices * hidden * facts.dense_width * width)
    if not facts.experts or not facts.expert_widths:
        return None
    wide = sum(facts.expert_widths) / len(facts.expert_widths)
    routed = facts.experts * matrices * hidden * wide * _weight(facts, args, _EXPERTS, plain)
    shared = matrices * hidden * (facts.shared_width or 0) * _weight(facts, args, _SHARED, plain)
    if layer.attentions > 1:  # as many dense MLPs beside the experts
        if facts.dense_width is None:
            return None
        shared += layer.attentions * matrices * hidden * facts.dense_width * _weight(facts, args, _DENSE, plain)
    return replace(
        parts,
        split=parts.split + shared,
        whole=parts.whole + facts.experts * hidden * plain,
        experts=routed,
    )


def _sized(quantisation: Quantisation) -> bool:
    """Whether it is known how many bytes each of its schemes takes for a weight."""
    schemes = [scheme for _targets, scheme in quantisation.groups] or [quantisation.scheme]
    return all(
        scheme.bits or scheme.method in KNOWN_METHODS or any(name in scheme.method for name in _NAMED_BITS)
        for scheme in schemes
    )


def _weight(facts: ModelFacts, args: EngineArgs, names: Tuple[str, ...], plain: float) -> float:
    """Bytes of one weight of this kind of module, its share of scales and zero points included."""
    if facts.quantisation is None:
        if names is not _HEAD and args.quantization in ("fp8", "experts_int8", "modelopt"):
            return 1.0
        if names is not _HEAD and args.quantization == "bitsandbytes":
            return 0.5 + 1 / 16
        return plain
    stored = None if names is _HEAD else facts.quantisation.of(names, facts.layers)
    if stored is None:
        return plain
    if "mxfp4" in stored.method:
        # Only the experts are; one byte of scale for each 32 values.
        return 0.5 + 1 / 32 if names is _EXPERTS else plain
    bits = stored.bits or next((bits for name, bits in _NAMED_BITS.items() if name in stored.method), None)
    if bits is None:
        bits = 4 if stored.group else 8
    if bits >= 16:
        return plain
    if stored.group and bits < 8:
        # A half precision scale and a zero point for each group; NVFP4 has one byte of scale for 16 values.
        return bits / 8 + ((1 if stored.group == 16 else 2 + bits / 8) / stored.group)
    return bits / 8
