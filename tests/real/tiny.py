# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Tiny random models that a real vLLM serves: a Llama and a Qwen3, two layers each, made on the spot from a seed.

The tokenizer has one token for each printable ASCII character. Whatever sequence of tokens a load generator makes up is therefore a
text that is read back as the same tokens, and prompts have the length that was asked for.
"""

from __future__ import annotations

import json
import random
import string
import struct
from collections.abc import Iterator
from math import prod
from typing import Any

from lab.models import Tensor, header

_SPECIAL = ("<unk>", "<s>", "</s>")
# Byte-level tokenizers write a blank as this letter.
_CHARACTERS = "\u0120" + string.digits + string.ascii_letters + string.punctuation
VOCABULARY = (*_SPECIAL, *_CHARACTERS)
CONTEXT = 512
# Large tensors repeat themselves, since numbers are made slowly here.
_DIFFERENT = 65_521
_COMMON = {
    "hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
    "head_dim": 32, "vocab_size": len(VOCABULARY), "max_position_embeddings": CONTEXT, "rms_norm_eps": 1e-6, "hidden_act": "silu",
    "attention_bias": False,
    "rope_parameters": {"rope_theta": 10000.0, "rope_type": "default"}, "tie_word_embeddings": False, "dtype": "float32",
    "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
CONFIGS: dict[str, dict[str, Any]] = {
    "llama": {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "mlp_bias": False, **_COMMON},
    "qwen3": {"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", **_COMMON},
}


def files(architecture: str, **other: int) -> dict[str, bytes]:
    """The files of one of CONFIGS, by name: about 1.5 MB. ``other`` are sizes in place of the configuration's own."""
    config = {**CONFIGS[architecture], **other}
    tensors = list(_tensors(config))
    source = random.Random(architecture)
    weights = header(tensors) + b"".join(_values(each, source) for each in tensors)
    told = {
        "config.json": config,
        "tokenizer.json": _tokenizer(),
        "tokenizer_config.json": {
            "tokenizer_class": "PreTrainedTokenizerFast", "unk_token": "<unk>", "bos_token": "<s>", "eos_token": "</s>",
            "model_max_length": CONTEXT, "clean_up_tokenization_spaces": False,
            "chat_template": "{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}\n{% endfor %}assistant:",
        },
    }  # fmt: skip
    return {"model.safetensors": weights, **{name: json.dumps(text, indent=1).encode() for name, text in told.items()}}


def _tensors(config: dict[str, Any]) -> Iterator[Tensor]:
    hidden, head = config["hidden_size"], config["head_dim"]
    wide, narrow = config["num_attention_heads"] * head, config["num_key_value_heads"] * head
    yield Tensor("model.embed_tokens.weight", "F32", (config["vocab_size"], hidden))
    for layer in range(config["num_hidden_layers"]):
        prefix = f"model.layers.{layer}"
        yield Tensor(f"{prefix}.input_layernorm.weight", "F32", (hidden,))
        for name, rows, columns in (("q", wide, hidden), ("k", narrow, hidden), ("v", narrow, hidden), ("o", hidden, wide)):
            yield Tensor(f"{prefix}.self_attn.{name}_proj.weight", "F32", (rows, columns))
        if config["model_type"] == "qwen3":
            for name in ("q", "k"):
                yield Tensor(f"{prefix}.self_attn.{name}_norm.weight", "F32", (head,))
        yield Tensor(f"{prefix}.post_attention_layernorm.weight", "F32", (hidden,))
        for name, rows, columns in (("gate", config["intermediate_size"], hidden), ("up", config["intermediate_size"], hidden),
                                    ("down", hidden, config["intermediate_size"])):  # fmt: skip
            yield Tensor(f"{prefix}.mlp.{name}_proj.weight", "F32", (rows, columns))
    yield Tensor("model.norm.weight", "F32", (hidden,))
    yield Tensor("lm_head.weight", "F32", (config["vocab_size"], hidden))


def _values(tensor: Tensor, source: random.Random) -> bytes:
    size = 4 * prod(tensor.shape)
    values = [1.0] if "norm" in tensor.name else [source.gauss(0.0, 0.05) for _each in range(min(size // 4, _DIFFERENT))]
    block = struct.pack("<%df" % len(values), *values)
    return (block * (size // len(block) + 1))[:size]


def _tokenizer() -> dict[str, Any]:
    special = [
        {"id": number, "content": name, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
        for number, name in enumerate(_SPECIAL)
    ]
    return {
        "version": "1.0", "truncation": None, "padding": None, "added_tokens": special, "normalizer": None,
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False},
        "post_processor": None,
        "decoder": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False},
        "model": {"type": "BPE", "dropout": None, "unk_token": "<unk>", "continuing_subword_prefix": None, "end_of_word_suffix": None,
                  "fuse_unk": False, "byte_fallback": False, "ignore_merges": False, "merges": [],
                  "vocab": {token: number for number, token in enumerate(VOCABULARY)}},
    }  # fmt: skip
