# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Small checkpoints: real headers, and data that takes no room on disk."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

BYTES = {"BF16": 2, "F8_E4M3": 1, "F32": 4, "I32": 4}
Entry = tuple[str, tuple[int, ...]]


def header(tensors: Mapping[str, Entry]) -> bytes:
    """A safetensors file's beginning."""
    entries: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    offset = 0
    for name, (dtype, shape) in tensors.items():
        size = BYTES[dtype]
        for each in shape:
            size *= each
        entries[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [offset, offset + size]}
        offset += size
    text = json.dumps(entries, separators=(",", ":")).encode()
    return len(text).to_bytes(8, "little") + text


def length(tensors: Mapping[str, Entry]) -> int:
    """Bytes of the whole file."""
    raw = header(tensors)
    entries = [entry for name, entry in json.loads(raw[8:]).items() if name != "__metadata__"]
    return len(raw) + max((entry["data_offsets"][1] for entry in entries), default=0)


def write(directory: Path, shards: list[Mapping[str, Entry]], config: Mapping[str, Any] | None = None, index: bool = True) -> Path:
    """A model's directory of these shards."""
    directory.mkdir(parents=True, exist_ok=True)
    weight_map = {}
    for number, tensors in enumerate(shards, 1):
        name = f"model-{number:05d}-of-{len(shards):05d}.safetensors"
        with (directory / name).open("wb") as handle:
            handle.write(header(tensors))
            handle.truncate(length(tensors))
        weight_map.update(dict.fromkeys(tensors, name))
    if index:
        (directory / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}), encoding="utf-8")
    if config is not None:
        (directory / "config.json").write_text(json.dumps(config), encoding="utf-8")
    return directory


def minimax(layers: int = 2, experts: int = 3, width: int = 1536, scales: str = "F32") -> tuple[dict[str, Any], list[Mapping[str, Entry]]]:
    """A MiniMax-M2 of few layers and experts: the configuration and two shards. FP8 in blocks of 128."""
    config = {
        "architectures": ["MiniMaxM2ForCausalLM"], "model_type": "minimax_m2", "head_dim": 128, "hidden_size": 256,
        "intermediate_size": width, "max_position_embeddings": 4096, "num_attention_heads": 48, "num_hidden_layers": layers,
        "num_key_value_heads": 8, "num_local_experts": experts, "num_experts_per_tok": 2, "vocab_size": 1000, "torch_dtype": "bfloat16",
        "quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128], "activation_scheme": "dynamic"},
    }
    tensors: dict[str, Entry] = {"model.embed_tokens.weight": ("BF16", (1000, 256))}
    for layer in range(layers):
        prefix = f"model.layers.{layer}"
        tensors[f"{prefix}.self_attn.o_proj.weight"] = ("F8_E4M3", (256, 6144))
        for expert in range(experts):
            for name, shape in (("w1", (width, 256)), ("w2", (256, width))):
                weight = f"{prefix}.block_sparse_moe.experts.{expert}.{name}.weight"
                tensors[weight] = ("F8_E4M3", shape)
                tensors[weight + "_scale_inv"] = (scales, (shape[0] // 128, shape[1] // 128))
        tensors[f"{prefix}.post_attention_layernorm.weight"] = ("BF16", (256,))
    tensors["lm_head.weight"] = ("BF16", (1000, 256))
    names = list(tensors)
    middle = len(names) // 2
    return config, [{name: tensors[name] for name in names[:middle]}, {name: tensors[name] for name in names[middle:]}]
