# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The models that every host sees under /models: real configurations and headers, weights that take no disk.

Each shard begins with a true safetensors header (names, types, shapes, offsets of all its tensors) and is then
extended to its full size without a byte being written, so that a program that reads sizes and headers sees the truth.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import ceil, prod
from pathlib import Path
from typing import Any

from lab import locks

_CONFIGS = Path(__file__).with_name("models")
# Bytes per element of the types that safetensors headers name.
_BYTES = {"F8_E4M3": 1, "BF16": 2, "F32": 4, "I32": 4}


@dataclass(frozen=True)
class Tensor:
    """A tensor in a checkpoint: its name, element type (as safetensors spells it) and shape."""

    name: str
    dtype: str
    shape: tuple[int, ...]

    @property
    def size(self) -> int:
        """Bytes."""
        return prod(self.shape) * _BYTES[self.dtype]


def _fp8_linear(name: str, rows: int, columns: int, block: list[int]) -> Iterator[Tensor]:
    yield Tensor(f"{name}.weight", "F8_E4M3", (rows, columns))
    yield Tensor(f"{name}.weight_scale_inv", "F32", (ceil(rows / block[0]), ceil(columns / block[1])))


def _int4_linear(name: str, rows: int, columns: int, group: int) -> Iterator[Tensor]:
    # Eight 4-bit weights to a 32-bit word.
    yield Tensor(f"{name}.weight_packed", "I32", (rows, columns // 8))
    yield Tensor(f"{name}.weight_scale", "BF16", (rows, columns // group))
    yield Tensor(f"{name}.weight_shape", "I32", (2,))


def minimax_m2(config: dict[str, Any]) -> Iterator[Tensor]:
    """MiniMax-M2: grouped-query attention, every layer with experts; block-FP8 but for embeddings, norms and gates."""
    hidden, width, head = config["hidden_size"], config["intermediate_size"], config["head_dim"]
    queries, keys = config["num_attention_heads"] * head, config["num_key_value_heads"] * head
    experts = config["num_local_experts"]
    block = config["quantization_config"]["weight_block_size"]
    yield Tensor("model.embed_tokens.weight", "BF16", (config["vocab_size"], hidden))
    for layer in range(config["num_hidden_layers"]):
        prefix = f"model.layers.{layer}"
        yield Tensor(f"{prefix}.input_layernorm.weight", "BF16", (hidden,))
        for name, rows, columns in (
            ("q", queries, hidden),
            ("k", keys, hidden),
            ("v", keys, hidden),
            ("o", hidden, queries),
        ):
            yield from _fp8_linear(f"{prefix}.self_attn.{name}_proj", rows, columns, block)
        yield Tensor(f"{prefix}.self_attn.q_norm.weight", "BF16", (queries,))
        yield Tensor(f"{prefix}.self_attn.k_norm.weight", "BF16", (keys,))
        yield Tensor(f"{prefix}.post_attention_layernorm.weight", "BF16", (hidden,))
        yield Tensor(f"{prefix}.block_sparse_moe.e_score_correction_bias", "F32", (experts,))
        yield Tensor(f"{prefix}.block_sparse_moe.gate.weight", "F32", (experts, hidden))
        for expert in range(experts):
            for name, rows, columns in (("w1", width, hidden), ("w2", hidden, width), ("w3", width, hidden)):
                yield from _fp8_linear(f"{prefix}.block_sparse_moe.experts.{expert}.{name}", rows, columns, block)
    yield Tensor("model.norm.weight", "BF16", (hidden,))
    yield Tensor("lm_head.weight", "BF16", (config["vocab_size"], hidden))


def kimi_k25(config: dict[str, Any]) -> Iterator[Tensor]:
    """Kimi-K2.5's language model: latent attention in BF16, routed experts in groups of 4-bit integers.

    Its vision tower, about 1 GB of 595, is left out.
    """
    text = config["text_config"]
    hidden, heads, latent = text["hidden_size"], text["num_attention_heads"], text["kv_lora_rank"]
    nope, rope, value = text["qk_nope_head_dim"], text["qk_rope_head_dim"], text["v_head_dim"]
    query_rank, experts, width = text["q_lora_rank"], text["n_routed_experts"], text["moe_intermediate_size"]
    group = text["quantization_config"]["config_groups"]["group_0"]["weights"]["group_size"]
    top = "language_model.model"
    yield Tensor(f"{top}.embed_tokens.weight", "BF16", (text["vocab_size"], hidden))
    for layer in range(text["num_hidden_layers"]):
        prefix = f"{top}.layers.{layer}"
        yield Tensor(f"{prefix}.input_layernorm.weight", "BF16", (hidden,))
        for name, shape in (
            ("q_a_proj", (query_rank, hidden)),
            ("q_a_layernorm", (query_rank,)),
            ("q_b_proj", (heads * (nope + rope), query_rank)),
            ("kv_a_proj_with_mqa", (latent + rope, hidden)),
            ("kv_a_layernorm", (latent,)),
            ("kv_b_proj", (heads * (nope + value), latent)),
            ("o_proj", (hidden, heads * value)),
        ):
            yield Tensor(f"{prefix}.self_attn.{name}.weight", "BF16", shape)
        yield Tensor(f"{prefix}.post_attention_layernorm.weight", "BF16", (hidden,))
        if layer < text["first_k_dense_replace"]:
            yield from _bf16_mlp(f"{prefix}.mlp", hidden, text["intermediate_size"])
            continue
        yield Tensor(f"{prefix}.mlp.gate.weight", "BF16", (experts, hidden))
        yield Tensor(f"{prefix}.mlp.gate.e_score_correction_bias", "F32", (experts,))
        yield from _bf16_mlp(f"{prefix}.mlp.shared_experts", hidden, width * text["n_shared_experts"])
        for expert in range(experts):
            for name, rows, columns in (("gate", width, hidden), ("up", width, hidden), ("down", hidden, width)):
                yield from _int4_linear(f"{prefix}.mlp.experts.{expert}.{name}_proj", rows, columns, group)
    yield Tensor(f"{top}.norm.weight", "BF16", (hidden,))
    yield Tensor("language_model.lm_head.weight", "BF16", (text["vocab_size"], hidden))


def _bf16_mlp(prefix: str, hidden: int, width: int) -> Iterator[Tensor]:
    for name, rows, columns in (("gate", width, hidden), ("up", width, hidden), ("down", hidden, width)):
        yield Tensor(f"{prefix}.{name}_proj.weight", "BF16", (rows, columns))


def qwen3(config: dict[str, Any]) -> Iterator[Tensor]:
    """Qwen3: dense, BF16. The smallest's checkpoint carries the output layer though it is tied to the embedding."""
    hidden, head = config["hidden_size"], config["head_dim"]
    queries, keys = config["num_attention_heads"] * head, config["num_key_value_heads"] * head
    yield Tensor("model.embed_tokens.weight", "BF16", (config["vocab_size"], hidden))
    for layer in range(config["num_hidden_layers"]):
        prefix = f"model.layers.{layer}"
        yield Tensor(f"{prefix}.input_layernorm.weight", "BF16", (hidden,))
        for name, rows, columns in (
            ("q", queries, hidden),
            ("k", keys, hidden),
            ("v", keys, hidden),
            ("o", hidden, queries),
        ):
            yield Tensor(f"{prefix}.self_attn.{name}_proj.weight", "BF16", (rows, columns))
        yield Tensor(f"{prefix}.self_attn.q_norm.weight", "BF16", (head,))
        yield Tensor(f"{prefix}.self_attn.k_norm.weight", "BF16", (head,))
        yield Tensor(f"{prefix}.post_attention_layernorm.weight", "BF16", (hidden,))
        yield from _bf16_mlp(f"{prefix}.mlp", hidden, config["intermediate_size"])
    yield Tensor("model.norm.weight", "BF16", (hidden,))
    yield Tensor("lm_head.weight", "BF16", (config["vocab_size"], hidden))


@dataclass(frozen=True)
class Model:
    """A model: the directory's name, how many shards it comes in, and its tensors."""

    name: str
    shards: int
    tensors: Callable[[dict[str, Any]], Iterator[Tensor]]


MODELS = (
    Model("MiniMax-M2.5", 125, minimax_m2),
    Model("Kimi-K2.5-INT4", 64, kimi_k25),
    Model("Qwen3-0.6B", 1, qwen3),
)


def split(tensors: list[Tensor], shards: int) -> list[list[Tensor]]:
    """The tensors in order, in ``shards`` parts of about the same size."""
    total = sum(tensor.size for tensor in tensors)
    parts: list[list[Tensor]] = [[] for shard in range(shards)]
    done = 0
    for tensor in tensors:
        # A tensor goes where its middle falls.
        parts[min((done + tensor.size // 2) * shards // total, shards - 1)].append(tensor)
        done += tensor.size
    return parts


def header(tensors: list[Tensor]) -> bytes:
    """A safetensors file's beginning: the header's length (8 bytes, little-endian) and the header, JSON."""
    entries: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    offset = 0
    for tensor in tensors:
        entries[tensor.name] = {
            "dtype": tensor.dtype,
            "shape": tensor.shape,
            "data_offsets": (offset, offset + tensor.size),
        }
        offset += tensor.size
    text = json.dumps(entries, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text


def write_model(model: Model, directory: Path) -> int:
    """Write one model into a new directory and return its weights' size in bytes."""
    source = _CONFIGS / model.name
    directory.mkdir()
    for path in sorted(source.iterdir()):
        shutil.copyfile(path, directory / path.name)
    tensors = list(model.tensors(json.loads((source / "config.json").read_text(encoding="utf-8"))))
    total = sum(tensor.size for tensor in tensors)
    weight_map: dict[str, str] = {}
    for number, part in enumerate(split(tensors, model.shards), start=1):
        name = f"model-{number:05d}-of-{model.shards:05d}.safetensors" if model.shards > 1 else "model.safetensors"
        beginning = header(part)
        with (directory / name).open("wb") as handle:
            handle.write(beginning)
            handle.truncate(len(beginning) + sum(tensor.size for tensor in part))
        weight_map.update((tensor.name, name) for tensor in part)
    index = {"metadata": {"total_size": total}, "weight_map": weight_map}
    (directory / "model.safetensors.index.json").write_text(json.dumps(index), encoding="utf-8")
    return total


def key() -> str:
    """Twelve hexadecimal digits that change with this file and the configurations."""
    digest = hashlib.sha256(Path(__file__).read_bytes())
    for path in sorted(_CONFIGS.glob("*/*.json")):
        digest.update(str(path.relative_to(_CONFIGS)).encode() + b"\0")
        digest.update(path.read_bytes())
    return digest.hexdigest()[:12]


def path(cache: Path) -> Path:
    """Where the directory is that hosts see as /models, or will be once it is written."""
    return cache / "models" / key()


def ensure(cache: Path) -> Path:
    """The directory that hosts see as /models, written now if it isn't there."""
    target = path(cache)
    if target.is_dir():
        return target
    with locks.exclusive(cache / "models.lock", 600.0, "another lab that writes the models"):
        if target.is_dir():
            return target
        target.parent.mkdir(parents=True, exist_ok=True)
        for left in target.parent.glob(".building-*"):
            shutil.rmtree(left)
        draft = target.with_name(f".building-{os.getpid()}")
        draft.mkdir()
        for model in MODELS:
            write_model(model, draft / model.name)
        draft.chmod(0o755)
        draft.rename(target)
    return target
