# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""GGUF files: their metadata as facts, their tensors as bytes, and what is damaged."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ansible_collections.gpufleet.vllm.plugins.module_utils._core.errors import GpuFleetError
from ansible_collections.gpufleet.vllm.plugins.module_utils._model.checkpoint import read_checkpoint
from ansible_collections.gpufleet.vllm.plugins.module_utils._model.facts import read_model
from ansible_collections.gpufleet.vllm.plugins.module_utils._model.parallel import check_parallel

from .weights import gguf

METADATA: dict[str, Any] = {
    "general.architecture": "qwen3moe",
    "general.alignment": 32,
    "qwen3moe.block_count": 48,
    "qwen3moe.embedding_length": 2048,
    "qwen3moe.feed_forward_length": 6144,
    "qwen3moe.attention.head_count": 32,
    "qwen3moe.attention.head_count_kv": 4,
    "qwen3moe.attention.key_length": 128,
    "qwen3moe.expert_count": 128,
    "qwen3moe.expert_feed_forward_length": 768,
    "qwen3moe.context_length": 40960,
    "qwen3moe.rope.freq_base": 1000000.0,
    "tokenizer.ggml.tokens": ["token%d" % index for index in range(5000)],
}
TENSORS = {
    "token_embd.weight": (12, [2048, 5000], 2048 * 5000 // 256 * 144),
    "blk.0.ffn_down_exps.weight": (0, [8, 4], 128),
}


def test_facts(tmp_path: Path) -> None:
    gguf(tmp_path / "model-Q4_K_M.gguf", METADATA, TENSORS)
    facts = read_model(str(tmp_path))
    assert (facts.source, facts.model_type, facts.layers, facts.hidden_size) == (
        "model-Q4_K_M.gguf",
        "qwen3moe",
        48,
        2048,
    )
    assert (facts.attention_heads, facts.kv_heads, facts.head_dim, facts.vocab_size) == (32, 4, 128, 5000)
    assert (facts.experts, facts.expert_width, facts.dense_width) == (128, 768, None)
    assert facts.quantisation is not None and (facts.quantisation.method, facts.quantisation.group) == ("gguf", 256)
    assert read_model(str(tmp_path / "model-Q4_K_M.gguf")).path == str(tmp_path)
    assert not [check for check in check_parallel(facts, 4) if check.status == "fail"]
    assert [check.id for check in check_parallel(facts, 4) if check.status == "warn"] == ["quant_group_experts"]


def test_bytes(tmp_path: Path) -> None:
    gguf(tmp_path / "model.gguf", METADATA, TENSORS)
    for found in (read_checkpoint(str(tmp_path)), read_checkpoint(str(tmp_path / "model.gguf"))):
        assert found.complete and found.role_bytes == {"embedding": 5760000, "experts": 128}
        assert found.dtype_bytes == {"Q4_K": 5760000, "F32": 128}


def test_shards_and_the_projector_beside_them(tmp_path: Path) -> None:
    gguf(tmp_path / "mmproj-F16.gguf", {"general.architecture": "clip"}, {})
    gguf(tmp_path / "model-00001-of-00002.gguf", METADATA, TENSORS)
    assert read_model(str(tmp_path)).layers == 48
    assert read_checkpoint(str(tmp_path)).missing_files == ("model-00002-of-00002.gguf",)


def test_latent_attention(tmp_path: Path) -> None:
    metadata = {
        "general.architecture": "deepseek2",
        "deepseek2.block_count": 62,
        "deepseek2.nextn_predict_layers": 1,
        "deepseek2.attention.head_count": 128,
        "deepseek2.attention.head_count_kv": 1,
        "deepseek2.attention.kv_lora_rank": 512,
        "deepseek2.attention.key_length": 576,
        "deepseek2.attention.key_length_mla": 192,
        "deepseek2.attention.value_length_mla": 128,
        "deepseek2.rope.dimension_count": 64,
        "deepseek2.leading_dense_block_count": 3,
    }
    gguf(tmp_path / "model.gguf", metadata, {})
    facts = read_model(str(tmp_path))
    assert facts.mla and (facts.qk_nope_head_dim, facts.qk_rope_head_dim, facts.v_head_dim) == (128, 64, 128)
    assert (facts.layers, facts.num_nextn_predict_layers) == (61, 1)


@pytest.mark.parametrize(
    "content", [b"", b"GGUF", b"GGUF" + b"\xff" * 200, b"version https://git-lfs.github.com/spec/v1\n"]
)
def test_what_is_none(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "model.gguf").write_bytes(content)
    with pytest.raises(GpuFleetError, match=r"GGUF|git-lfs|damaged"):
        read_model(str(tmp_path))
    assert len(read_checkpoint(str(tmp_path)).broken) == 1


@pytest.mark.parametrize("cut", [30, 100, 1000, 60000, 5000000])
def test_a_file_that_ends_too_early(tmp_path: Path, cut: int) -> None:
    gguf(tmp_path / "model.gguf", METADATA, TENSORS, cut)
    with pytest.raises(GpuFleetError, match=r"damaged|truncated"):
        read_model(str(tmp_path))
