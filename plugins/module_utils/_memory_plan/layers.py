# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What one layer keeps on one rank: bytes for each token, or a state of fixed size. None where it can't be known."""

from __future__ import annotations

from typing import List, Optional, Tuple

from .._model.types import FULL, AttentionLayer, LinearState, ModelFacts
from .arguments import EngineArgs

# Bytes of one value in the cache. Formats that pack scales beside the values in ways of their own aren't here.
_CACHE_BYTES = {"float16": 2.0, "half": 2.0, "bfloat16": 2.0, "float32": 4.0, "float": 4.0, "int8": 1.0}
_FP4_BYTES = 0.5 + 1 / 16  # NVFP4: a scale of one byte for each 16 values
# FP8 rows of sparse latent attention: 512 values, four float32 scales and 64 half precision values (flashmla_sparse.py).
_SPARSE_FP8_ROW = 656
# Methods of speculation whose layers are the model's own next-token-prediction layers.
_OWN_LAYERS = ("mtp", "deepseek_mtp", "qwen3_next_mtp", "qwen3_5_mtp", "glm4_moe_mtp", "ernie_mtp", "mimo_mtp")


def value_bytes(dtype: str) -> Optional[float]:
    """Bytes of one value of the model itself."""
    short = {"bf16": "bfloat16", "fp16": "float16", "half": "float16", "float": "float32", "fp32": "float32"}
    name = short.get(dtype.replace("torch.", "").lower(), dtype.replace("torch.", "").lower())
    return {"float16": 2.0, "bfloat16": 2.0, "float32": 4.0, "float64": 8.0}.get(name)


def model_bytes(facts: ModelFacts, args: EngineArgs) -> float:
    """Bytes of one value of activations and of what isn't quantised: vLLM loads float32 as half precision on "auto"."""
    if args.dtype != "auto":
        return value_bytes(args.dtype) or 2.0
    return 2.0


def cache_bytes(facts: ModelFacts, args: EngineArgs) -> Optional[float]:
    """Bytes of one value in the KV cache."""
    name = args.kv_cache_dtype
    if name == "auto":
        return model_bytes(facts, args)
    if name == "nvfp4":
        return _FP4_BYTES
    if name in ("fp8", "fp8_e4m3", "fp8_e5m2", "fp8_inc", "fp8_ds_mla"):
        return 1.0
    return _CACHE_BYTES.get(name)


def token_bytes(facts: ModelFacts, args: EngineArgs, layer: AttentionLayer, padded: bool = False) -> Optional[int]:
    """Bytes of one token in one layer that attends, on one rank.

    KV heads are split over the ranks, one at least on each. Latent attention (MLA) keeps one row of all heads, the same
    on every rank; sparse attention's indexer keeps its key in FP8 with one float32 scale for each 128 values.
    """
    value = cache_bytes(facts, args)
    if value is None:
        return None
    if facts.mla:
        if facts.kv_lora_rank is None or facts.qk_rope_head_dim is None:
            return None
        row = facts.kv_lora_rank + facts.qk_rope_head_dim
        if padded:
            row = -(-row // 128) * 128
        if facts.index_head_dim is not None:
            kept = _SPARSE_FP8_ROW if value == 1.0 else int(row * value)
            return kept + facts.index_head_dim + -(-facts.index_head_dim // 128) * 4
        return int(row * value)
    if layer.kv_heads is None or layer.key_dim is None:
        return None
    heads = max(layer.kv_heads // args.tensor_parallel_size, 1)
    return int(heads * (layer.key_dim + (layer.value_dim or layer.key_dim)) * value)


def extra_layers(facts: ModelFacts, args: EngineArgs) -> int:
    """Layers that speculation adds to the model's own, each with a cache like that of its full layers."""
    if args.speculative_method is None:
        return 0
    own = args.speculative_method in _OWN_LAYERS or args.speculative_method.endswith("mtp")
    return max(facts.num_nextn_predict_layers, 1) if own else 0


def draft_unknown(args: EngineArgs) -> bool:
    """Whether speculation loads another model, of which nothing is known here."""
    if args.speculative_method is None or args.speculative_method in ("ngram", "suffix", "[ngram]"):
        return False
    return not (args.speculative_method in _OWN_LAYERS or args.speculative_method.endswith("mtp"))


def all_layers(facts: ModelFacts, args: EngineArgs) -> Tuple[AttentionLayer, ...]:
    """The model's layers and, after them, those that speculation adds."""
    extra = extra_layers(facts, args)
    if not extra or not facts.attention_layers:
        return facts.attention_layers
    full = next((layer for layer in facts.attention_layers if layer.kind == FULL), None)
    return (
        facts.attention_layers + (full or AttentionLayer(FULL, facts.kv_heads, facts.head_dim, facts.head_dim),) * extra
    )


def state_bytes(facts: ModelFacts, args: EngineArgs) -> Optional[int]:
    """Bytes of the state of one layer with linear attention, for one request on one rank (mamba_utils.py).

    A short convolution keeps its last inputs in half precision; the recurrent state is float32 where the model or its
    family says so.
    """
    state = facts.linear
    if state is None:
        return None
    tp, half = args.tensor_parallel_size, model_bytes(facts, args)
    taps = None if state.conv_kernel is None else state.conv_kernel - 1 + args.speculative_tokens
    wide = value_bytes(state.dtype) if state.dtype else None
    sizes: List[Tuple[Optional[int], Optional[int], float]] = []  # (values on all ranks, times each, bytes)
    if state.family in ("gated_delta_net", "kimi_delta"):
        kimi = state.family == "kimi_delta"
        if wide is None:
            # Every published Qwen3.5 says float32; Qwen3-Next says nothing and keeps half precision.
            qwen = any(name.startswith(("Qwen3_5", "Qwen4")) for name in facts.architectures)
            wide = 4.0 if kimi or qwen else half
        keys = _times(state.key_heads, state.key_head_dim)
        values = _times(state.value_heads, state.value_head_dim)
        conv = None if keys is None or values is None else 2 * keys + values
        sizes = [(conv, taps, half), (values, state.key_head_dim, wide)]
    elif state.family == "mamba1":
        sizes = [(state.inner_size, taps, half), (state.inner_size, state.state_size, wide or half)]
    elif state.family == "mamba2":
        sizes = [(_mamba2_conv(state, tp), taps, half)]
        sizes.append((_times(state.heads, state.head_dim), state.state_size, wide or half))
    elif state.family == "lightning":
        sizes = [(_times(state.heads, state.head_dim), state.head_dim, wide or half)]
    elif state.family == "short_conv":
        sizes = [(state.inner_size, taps, half)]
    total = 0.0
    for values, each, width in sizes:
        if values is None or each is None:
            return None
        total += -(-values // tp) * each * width
    return int(total) if sizes else None


def _mamba2_conv(state: LinearState, tp: int) -> Optional[int]:
    if state.inner_size is None or state.state_size is None:
        return None
    groups = state.groups or 1
    groups += 0 if groups % tp == 0 else max(tp - groups, 0)  # each rank needs the groups of its heads
    return state.inner_size + 2 * groups * state.state_size


def _times(first: Optional[int], second: Optional[int]) -> Optional[int]:
    return None if first is None or second is None else first * second
