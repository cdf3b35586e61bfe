# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""GGUF metadata in the words of a ``config.json``, so that one reader makes facts of both."""

from __future__ import annotations

from typing import Any, Dict, Tuple

from .gguf import GgufHeader

# In the metadata each key begins with the architecture's name.
_KEYS: Tuple[Tuple[str, str], ...] = (
    ("embedding_length", "hidden_size"),
    ("block_count", "num_hidden_layers"),
    ("feed_forward_length", "intermediate_size"),
    ("attention.head_count", "num_attention_heads"),
    ("attention.head_count_kv", "num_key_value_heads"),
    ("attention.key_length", "head_dim"),
    ("attention.kv_lora_rank", "kv_lora_rank"),
    ("attention.q_lora_rank", "q_lora_rank"),
    ("attention.sliding_window", "sliding_window"),
    ("context_length", "max_position_embeddings"),
    ("vocab_size", "vocab_size"),
    ("expert_count", "num_experts"),
    ("expert_feed_forward_length", "moe_intermediate_size"),
    ("expert_shared_count", "n_shared_experts"),
    ("expert_shared_feed_forward_length", "shared_expert_intermediate_size"),
    ("leading_dense_block_count", "first_k_dense_replace"),
    ("nextn_predict_layers", "num_nextn_predict_layers"),
    ("rope.dimension_count", "qk_rope_head_dim"),
    ("ssm.state_size", "ssm_state_size"),
)
# Sizes that mean something only beside a latent rank.
_LATENT = ("q_lora_rank", "qk_rope_head_dim")
# What types of tensors are when nobody has quantised them.
_PLAIN = ("F32", "F16", "BF16", "F64", "I8", "I16", "I32", "I64")


def config_from_gguf(header: GgufHeader) -> Dict[str, Any]:
    """A configuration with what the metadata say; what they don't isn't in it."""
    metadata = header.metadata
    architecture = metadata.get("general.architecture")
    if not isinstance(architecture, str):
        return {}
    config: Dict[str, Any] = {"model_type": architecture.replace("-", "_")}
    for key, name in _KEYS:
        value = metadata.get("%s.%s" % (architecture, key))
        if value is not None:
            config[name] = value
    config.setdefault("vocab_size", metadata.get("tokenizer.ggml.tokens.length"))
    if config.get("kv_lora_rank") is None:
        for name in _LATENT:
            config.pop(name, None)
    else:
        # The keys' length counts what is compressed; the heads' own sizes go by other names.
        config.pop("head_dim", None)
        _latent(config, metadata, architecture)
    # Layers for next-token prediction are counted among the blocks.
    layers, ahead = config.get("num_hidden_layers"), config.get("num_nextn_predict_layers")
    if isinstance(layers, int) and isinstance(ahead, int) and 0 < ahead < layers:
        config["num_hidden_layers"] = layers - ahead
    if config.get("num_attention_heads") is not None:  # what the format means where there is none
        config.setdefault("num_key_value_heads", config["num_attention_heads"])
    blocks = [tensor.block for tensor in header.tensors if tensor.dtype not in _PLAIN]
    if blocks:
        config["quantization_config"] = {"quant_method": "gguf", "group_size": max(blocks)}
    return config


def _latent(config: Dict[str, Any], metadata: Dict[str, Any], architecture: str) -> None:
    key = metadata.get("%s.attention.key_length_mla" % architecture)
    value = metadata.get("%s.attention.value_length_mla" % architecture)
    rope = config.get("qk_rope_head_dim")
    if isinstance(key, int) and isinstance(rope, int) and key > rope:
        config["qk_nope_head_dim"] = key - rope
    if isinstance(value, int):
        config["v_head_dim"] = value
