# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What each layer of a model keeps of the tokens it has seen, and how much of it.

A configuration says it in one of many ways: a list of kinds, a pattern, an interval, or nothing but its type. Where it
says it in a way that isn't known here, nothing is returned rather than a guess.
"""

from __future__ import annotations

from typing import Any, Callable, List, Mapping, Optional, Tuple

from .defaults import heads_for_keys
from .types import BOTH, CHUNKED, FULL, LINEAR, NONE, SLIDING, AttentionLayer
from .values import MOST_LAYERS, own_size, part, positive, said, size, whole_numbers

Kinds = Optional[List[str]]

# Words in ``layer_types`` and ``layers_block_type``.
_WORDS = {
    "full_attention": FULL,
    "attention": FULL,
    "global": FULL,
    "global_attention": FULL,
    "sliding_attention": SLIDING,
    "sliding_window_attention": SLIDING,
    "local_attention": SLIDING,
    "chunked_attention": CHUNKED,
    "linear_attention": LINEAR,
    "mamba": LINEAR,
    "mamba2": LINEAR,
    "recurrent": LINEAR,
    "conv": LINEAR,
    "kda": LINEAR,
    "hybrid": BOTH,
    "mlp": NONE,
    "moe": NONE,
}
# Nemotron-H's pattern, one letter for each layer.
_LETTERS = {"M": LINEAR, "*": FULL, "-": NONE, "E": NONE}
_PURE = ("mamba", "mamba2", "falcon_mamba", "codestral_mamba")
# A window of these is that of every layer; of others with a window and no pattern nothing is known.
_ALL_SLIDING = ("mistral", "mixtral", "phi3", "phimoe", "starcoder2", "ministral")
# Two attentions and two dense MLPs in each layer, beside its experts.
TWICE = ("longcat_flash", "longcat_flash_ngram")
_ALTERNATING = ("gemma2", "gpt_oss")
_PATTERN_DEFAULTS = {"gemma3": 6, "gemma3_text": 6, "gemma3n": 5, "gemma3n_text": 5, "cohere2": 4}
# Words in a key that say that there is more to the layers than attention over all tokens.
_HINTS = ("mamba", "ssm", "rwkv", "linear_attn", "lightning", "recurrent", "hybrid", "block_type", "layer_type")


def attention_layers(config: Mapping[str, Any], model_type: Optional[str]) -> Tuple[AttentionLayer, ...]:
    """One entry for each layer, empty when a configuration doesn't say, or says it in a way that isn't known."""
    layers = size(config, "layers")
    if layers is None or layers > MOST_LAYERS:
        return ()
    kinds = _kinds(config, model_type, layers)
    if kinds is None:
        return ()
    shared = shared_layers(config)
    each = 2 if model_type in TWICE else 1
    heads, dims = _kv_heads(config, layers, model_type), (_dims(config, False), _dims(config, True))
    found = []
    for index, kind in enumerate(kinds):
        if kind in (LINEAR, NONE):
            found.append(AttentionLayer(kind))
            continue
        if size(config, "kv_lora_rank"):
            found.append(AttentionLayer(kind, owns_cache=index < layers - shared, attentions=each))
            continue
        key, value = dims[kind == FULL]
        found.append(AttentionLayer(kind, heads(index, kind), key, value, index < layers - shared, each))
    return tuple(found)


def shared_layers(config: Mapping[str, Any]) -> int:
    """How many of the last layers read the cache of earlier ones (Gemma 3n and 4)."""
    return positive(config.get("num_kv_shared_layers")) or 0


def _kinds(config: Mapping[str, Any], model_type: Optional[str], layers: int) -> Kinds:
    for rule in _RULES:
        kinds = rule(config, layers)
        if kinds is not None:
            return kinds if len(kinds) == layers else None
    if model_type in _PURE:
        return [LINEAR] * layers
    if model_type == "falcon_h1":
        return [BOTH] * layers
    known = model_type in _ALTERNATING or (model_type or "") in _PATTERN_DEFAULTS
    if not known and any(_hints(name) for name, value in config.items() if value not in (None, [], {}, "", False)):
        return None
    return _windows(config, model_type, layers)


def _hints(name: str) -> bool:
    return name != "mlp_layer_types" and any(hint in name for hint in _HINTS)


def _words(config: Mapping[str, Any], layers: int) -> Kinds:
    for name in ("layer_types", "layers_block_type"):
        value = config.get(name)
        if isinstance(value, list) and value:
            words = [_WORDS.get(item, "") if isinstance(item, str) else "" for item in value[:layers]]
            return words if all(words) else []
    return None


def _letters(config: Mapping[str, Any], layers: int) -> Kinds:
    pattern = config.get("hybrid_override_pattern")
    if not isinstance(pattern, str) or not pattern:
        return None
    kinds = [_LETTERS.get(letter, "") for letter in pattern[:layers]]
    return kinds if all(kinds) else []


def _numbers(config: Mapping[str, Any], layers: int) -> Kinds:
    for name, meaning in (("attn_type_list", (LINEAR, FULL)), ("hybrid_layer_pattern", (FULL, SLIDING))):
        found = whole_numbers(config.get(name))
        if found:
            return [meaning[item] if item in (0, 1) else "" for item in found[:layers]] if set(found) <= {0, 1} else []
    return None


def _repeated(config: Mapping[str, Any], layers: int) -> Kinds:
    for name in ("block_types", "_block_types"):
        pattern = config.get(name)
        if isinstance(pattern, list) and pattern:
            # RecurrentGemma's attention looks no further than its window.
            words = {"recurrent": LINEAR, "attention": SLIDING}
            kinds = [words.get(item, "") if isinstance(item, str) else "" for item in pattern]
            return [kinds[index % len(kinds)] for index in range(layers)] if all(kinds) else []
    return None


def _chosen(config: Mapping[str, Any], layers: int) -> Kinds:
    """Layers with attention given by number: Bamba from 0, Kimi Linear from 1."""
    from_zero = whole_numbers(config.get("attn_layer_indices"))
    from_one = whole_numbers(part(config, "linear_attn_config").get("full_attn_layers"), 1)
    from_one = from_one or whole_numbers(config.get("full_attn_layers"), 1)
    if from_zero is None and not from_one:
        return None
    chosen = set(from_zero or []) if from_zero is not None else {item - 1 for item in from_one or []}
    return [FULL if index in chosen else LINEAR for index in range(layers)] if max(chosen, default=0) < layers else []


def _intervals(config: Mapping[str, Any], layers: int) -> Kinds:
    period = positive(config.get("attn_layer_period"))
    offset = config.get("attn_layer_offset", 0)
    if period and isinstance(offset, int) and not isinstance(offset, bool) and "mamba_d_state" in config:
        return [FULL if index % period == offset % period else LINEAR for index in range(layers)]
    interval = positive(config.get("full_attention_interval"))
    if interval and positive(config.get("linear_num_value_heads")):
        return [LINEAR if (index + 1) % interval else FULL for index in range(layers)]
    group = positive(config.get("layer_group_size"))
    if group and config.get("model_type") in ("bailing_moe_linear", "bailing_moe_v2_5", "bailing_hybrid"):
        # The layers of a last, incomplete group are all full.
        rest = layers // group * group
        return [LINEAR if (index + 1) % group and index < rest else FULL for index in range(layers)]
    return None


def _blocks(config: Mapping[str, Any], layers: int) -> Kinds:
    """Nemotron's searched architectures leave the attention of some layers out."""
    blocks = config.get("block_configs")
    if not isinstance(blocks, list) or not blocks:
        return None
    kinds = []
    for block in blocks[:layers]:
        attention = part(block, "attention") if isinstance(block, Mapping) else {}
        if attention.get("replace_with_linear") or not attention:
            return []
        kinds.append(NONE if attention.get("no_op") is True else FULL)
    return kinds


def _chunks(config: Mapping[str, Any], layers: int) -> Kinds:
    """Llama 4: layers with positions attend in chunks, those without to everything."""
    if positive(config.get("attention_chunk_size")) is None:
        return None
    listed = whole_numbers(config.get("no_rope_layers"))
    if listed:
        return [CHUNKED if item else FULL for item in listed[:layers]]
    interval = positive(config.get("no_rope_layer_interval")) or 4
    return [CHUNKED if (index + 1) % interval else FULL for index in range(layers)]


_RULES: Tuple[Callable[[Mapping[str, Any], int], Kinds], ...] = (
    _words,
    _letters,
    _numbers,
    _repeated,
    _chosen,
    _intervals,
    _blocks,
    _chunks,
)


def _windows(config: Mapping[str, Any], model_type: Optional[str], layers: int) -> Kinds:
    window = config.get("sliding_window")
    if window is None or config.get("use_sliding_window") is False:
        return [FULL] * layers
    if positive(window) is None:
        return None
    pattern = positive(config.get("sliding_window_pattern") or config.get("_sliding_window_pattern"))
    pattern = pattern or _PATTERN_DEFAULTS.get(model_type or "")
    if pattern:
        return [SLIDING if (index + 1) % pattern else FULL for index in range(layers)]
    if model_type in _ALTERNATING:
        return [FULL if index % 2 else SLIDING for index in range(layers)]
    if (model_type or "").startswith("qwen"):
        first = config.get("max_window_layers")
        if config.get("use_sliding_window") is not True:
            return [FULL] * layers
        if not isinstance(first, int) or isinstance(first, bool):
            return None
        return [SLIDING if index >= first else FULL for index in range(layers)]
    return [SLIDING] * layers if model_type in _ALL_SLIDING else None


def _kv_heads(config: Mapping[str, Any], layers: int, model_type: Optional[str]) -> Callable[[int, str], Optional[int]]:
    listed = whole_numbers(said(config, "kv_heads"), 1)
    blocks = _block_kv_heads(config)
    sliding = positive(config.get("swa_num_key_value_heads"))
    full = positive(config.get("num_global_key_value_heads"))
    plain = kv_heads(config, model_type)

    def of(index: int, kind: str) -> Optional[int]:
        if index < len(blocks):
            return blocks[index]
        if listed and len(listed) == layers:
            return listed[index]
        return (full if kind == FULL else sliding) or plain

    return of


def _block_kv_heads(config: Mapping[str, Any]) -> List[Optional[int]]:
    blocks, heads = config.get("block_configs"), size(config, "attention_heads")
    found: List[Optional[int]] = []
    for block in blocks if isinstance(blocks, list) else []:
        attention = part(block, "attention") if isinstance(block, Mapping) else {}
        each = positive(attention.get("n_heads_in_group"))
        own = own_size(attention, "kv_heads")
        found.append(own or (heads // each if heads and each and heads % each == 0 else None))
    return found


def kv_heads(config: Mapping[str, Any], model_type: Optional[str]) -> Optional[int]:
    """The KV heads of every layer; where nothing is said, as many as attention heads for types that mean that by it.

    None where it isn't understood.
    """
    heads = size(config, "attention_heads")
    falcon = config.get("model_type") in ("falcon", "RefinedWeb", "RefinedWebModel")
    if config.get("new_decoder_architecture") is not True and (falcon or "multi_query" in config):
        # Falcon and GPTBigCode have one KV head by default, and Falcon then ignores the number that stands there.
        if config.get("multi_query") is not False:
            return 1
        if falcon:
            return heads
    if config.get("multi_query_attention") is False and config.get("num_key_value_heads") is None:
        return heads  # ChatGLM
    if said(config, "kv_heads") is None:
        return heads if heads_for_keys(model_type) or config.get("multi_query") is False else None
    return size(config, "kv_heads")


def head_dim(config: Mapping[str, Any]) -> Optional[int]:
    """The dimension of one head, by name or as the hidden size's share."""
    found, heads, hidden = size(config, "head_dim"), size(config, "attention_heads"), size(config, "hidden_size")
    if found is None and said(config, "head_dim") is None and heads and hidden and hidden % heads == 0:
        return hidden // heads
    return found


def _dims(config: Mapping[str, Any], full: bool) -> Tuple[Optional[int], Optional[int]]:
    plain = head_dim(config)
    if full:
        key = positive(config.get("global_head_dim")) or plain
        value = positive(config.get("v_head_dim")) if "global_head_dim" not in config else None
    else:
        key = positive(config.get("swa_head_dim")) or plain
        value = positive(config.get("swa_v_head_dim")) or positive(config.get("v_head_dim"))
    return key, value or key
