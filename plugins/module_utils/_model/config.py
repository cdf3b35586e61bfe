# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A model's configuration, in the shapes that people have, as ModelFacts.

Nothing is guessed: a field that is missing, or isn't the kind of value it should be, is ``None``, and whoever needs
it says that the check can't be made.
"""

from __future__ import annotations

from typing import Any, List, Mapping, Optional, Tuple

from .defaults import tied, with_defaults
from .experts import expert_layers, expert_widths, shared_width
from .layers import TWICE, attention_layers, head_dim, kv_heads, shared_layers
from .length import derived_length
from .names import ARCHITECTURES, ENCODERS, TEXT_CONFIGS
from .quantisation import read_quantisation
from .state import linear_state
from .types import BOTH, LINEAR, ModelFacts
from .values import own_size, part, positive, said, size, text, texts


def facts_from_config(
    config: Mapping[str, Any],
    path: str = "",
    quantisation_file: Optional[Mapping[str, Any]] = None,
    source: str = "config.json",
) -> ModelFacts:
    """ModelFacts of a configuration already read. Never raises for what stands in it."""
    inner = text_config(config)
    architectures = texts(config.get("architectures") or inner.get("architectures"))
    kind = _kind(config, inner, architectures)
    kv_lora_rank = size(inner, "kv_lora_rank")
    experts = size(inner, "experts")
    number_said = said(inner, "experts")
    experts_unclear = experts is None and number_said is not None and (number_said is False or number_said != 0)
    widths = expert_widths(inner, experts)
    layers = attention_layers(inner, kind)
    head = _truth(("tie_word_embeddings", "tied_embeddings"), (inner, config))
    length, length_unclear = derived_length(inner, kind)
    has_state = not layers or any(layer.kind in (LINEAR, BOTH) for layer in layers)
    return ModelFacts(
        path=path,
        source=source,
        architectures=architectures,
        model_type=text(config.get("model_type")) or text(inner.get("model_type")),
        hidden_size=size(inner, "hidden_size"),
        layers=size(inner, "layers"),
        attention_heads=size(inner, "attention_heads"),
        kv_heads=1 if kv_lora_rank else kv_heads(inner, kind),
        head_dim=head_dim(inner),
        vocab_size=size(inner, "vocab_size") or size(config, "vocab_size"),
        max_position_embeddings=size(inner, "max_position_embeddings"),
        derived_length=length,
        length_unclear=length_unclear,
        dense_width=None if experts_unclear else _dense_width(inner, experts, kind),
        expert_width=widths[0] if len(widths) == 1 else None,
        shared_width=shared_width(inner, experts, widths),
        experts=experts,
        mla=kv_lora_rank is not None,
        kv_lora_rank=kv_lora_rank,
        q_lora_rank=size(inner, "q_lora_rank"),
        qk_nope_head_dim=size(inner, "qk_nope_head_dim"),
        qk_rope_head_dim=size(inner, "qk_rope_head_dim"),
        v_head_dim=size(inner, "v_head_dim"),
        encoder_heads=_encoder_heads(config),
        dtype=_first_text(("torch_dtype", "dtype"), (inner, config)),
        quantisation=read_quantisation(_quantisation_dict(config, inner, quantisation_file)),
        expert_widths=widths,
        experts_unclear=experts_unclear,
        layer_has_experts=() if experts_unclear else expert_layers(inner, experts),
        attention_layers=layers,
        sliding_window=positive(inner.get("sliding_window")) or positive(inner.get("attention_window_size")),
        attention_chunk_size=positive(inner.get("attention_chunk_size")),
        global_head_dim=positive(inner.get("global_head_dim")),
        num_kv_shared_layers=shared_layers(inner),
        index_head_dim=positive(inner.get("index_head_dim")),
        linear=linear_state(inner, kind) if has_state else None,
        num_nextn_predict_layers=_next_token_layers(inner),
        tie_word_embeddings=True if head is None and tied(kind) else head,
        is_encoder_decoder=_both(config)
        or config.get("is_encoder_decoder") is True
        or inner.get("is_encoder_decoder") is True,
    )


def text_config(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """The part that describes the language model: multimodal models nest it, some of them twice."""
    current = config
    for depth in range(3):
        if own_size(current, "attention_heads") is not None:
            return current
        inner = next((current[name] for name in TEXT_CONFIGS if isinstance(current.get(name), Mapping)), None)
        if inner is None:
            return current
        current = with_defaults(inner)
    return current


def _kind(config: Mapping[str, Any], inner: Mapping[str, Any], architectures: Tuple[str, ...]) -> Optional[str]:
    """The language model's type, by its architecture where a file has left it out."""
    found = text(inner.get("model_type")) or text(config.get("model_type"))
    return found or next((ARCHITECTURES[name] for name in architectures if name in ARCHITECTURES), None)


def _dense_width(inner: Mapping[str, Any], experts: Optional[int], kind: Optional[str]) -> Optional[int]:
    width = size(inner, "dense_width")
    if kind == "qwen" and width is not None:
        return width // 2  # the first Qwen counts both of gate and up
    if not experts or kind in TWICE:
        return width
    if positive(inner.get("intermediate_size_mlp")):
        return positive(inner["intermediate_size_mlp"])
    layers = expert_layers(inner, experts)
    return None if layers and all(layers) else width


def _next_token_layers(inner: Mapping[str, Any]) -> int:
    for name in ("num_nextn_predict_layers", "mtp_num_hidden_layers", "num_mtp_modules", "num_mtp_layers"):
        if positive(inner.get(name)):
            return positive(inner[name]) or 0
    return 0


def _encoder_heads(config: Mapping[str, Any]) -> Tuple[Tuple[str, int], ...]:
    found = {}
    outer: List[Mapping[str, Any]] = [config] + [part(config, name) for name in TEXT_CONFIGS]
    for place in outer:
        for name in ENCODERS:
            encoder = part(place, name)
            heads = size(encoder, "attention_heads") or positive(encoder.get("encoder_attention_heads"))
            if heads:
                found[name] = heads
    own = positive(config.get("encoder_attention_heads"))
    if own and _both(config):
        found["encoder"] = own
    return tuple(found.items())


def _both(config: Mapping[str, Any]) -> bool:
    """An encoder and a decoder in one configuration, as Whisper and BART write them."""
    names = ("encoder_attention_heads", "decoder_attention_heads")
    return all(positive(config.get(name)) for name in names)


def _quantisation_dict(
    config: Mapping[str, Any], inner: Mapping[str, Any], extra: Optional[Mapping[str, Any]]
) -> Optional[Mapping[str, Any]]:
    for place in (config, inner):
        for name in ("quantization_config", "compression_config", "quantization"):
            if part(place, name):
                return part(place, name)
    return extra


def _first_text(names: Tuple[str, ...], places: Tuple[Mapping[str, Any], ...]) -> Optional[str]:
    return next((text(place[name]) for place in places for name in names if text(place.get(name))), None)


def _truth(names: Tuple[str, ...], places: Tuple[Mapping[str, Any], ...]) -> Optional[bool]:
    found = next((place[name] for place in places for name in names if isinstance(place.get(name), bool)), None)
    return found if isinstance(found, bool) else None
