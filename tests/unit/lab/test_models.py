# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The models' tensors add up to what the real checkpoints have."""

from __future__ import annotations

import json
import struct
from math import prod
from pathlib import Path

import pytest

from lab import models

CONFIGS = Path(models.__file__).with_name("models")
BY_NAME = {model.name: model for model in models.MODELS}


def tensors(name: str) -> list[models.Tensor]:
    return list(BY_NAME[name].tensors(json.loads((CONFIGS / name / "config.json").read_text(encoding="utf-8"))))


def test_minimax_has_its_published_parameter_count() -> None:
    # The hub counts every element, the blocks' scales among them.
    parameters = sum(prod(tensor.shape) for tensor in tensors("MiniMax-M2.5"))
    assert parameters == 228_703_644_928


@pytest.mark.parametrize(
    ("name", "gigabytes"), [("MiniMax-M2.5", 230.1), ("Kimi-K2.5-INT4", 594.2), ("Qwen3-0.6B", 1.5)]
)
def test_sizes_on_disk(name: str, gigabytes: float) -> None:
    assert sum(tensor.size for tensor in tensors(name)) / 1e9 == pytest.approx(gigabytes, abs=0.05)


def test_names_are_unique() -> None:
    for name in BY_NAME:
        names = [tensor.name for tensor in tensors(name)]
        assert len(set(names)) == len(names)


def test_shards_are_in_order_and_about_equal() -> None:
    every = tensors("MiniMax-M2.5")
    parts = models.split(every, 125)
    assert [tensor for part in parts for tensor in part] == every
    sizes = [sum(tensor.size for tensor in part) for part in parts]
    assert min(sizes) > 0.6 * max(sizes)


def test_a_header_is_one_that_safetensors_reads() -> None:
    part = [models.Tensor("a", "BF16", (3, 5)), models.Tensor("b", "F32", (7,)), models.Tensor("s", "I32", (2,))]
    raw = models.header(part)
    (length,) = struct.unpack("<Q", raw[:8])
    assert len(raw) == 8 + length and length % 8 == 0
    assert json.loads(raw[8:]) == {
        "__metadata__": {"format": "pt"},
        "a": {"dtype": "BF16", "shape": [3, 5], "data_offsets": [0, 30]},
        "b": {"dtype": "F32", "shape": [7], "data_offsets": [30, 58]},
        "s": {"dtype": "I32", "shape": [2], "data_offsets": [58, 66]},
    }


def test_a_model_on_disk(tmp_path: Path) -> None:
    total = models.write_model(BY_NAME["Qwen3-0.6B"], tmp_path / "small")
    shard = tmp_path / "small/model.safetensors"
    assert shard.stat().st_size > total
    assert shard.stat().st_blocks * 512 < 200_000
    index = json.loads((tmp_path / "small/model.safetensors.index.json").read_text(encoding="utf-8"))
    assert index["metadata"]["total_size"] == total
    assert set(index["weight_map"].values()) == {"model.safetensors"}
    assert json.loads((tmp_path / "small/config.json").read_text(encoding="utf-8"))["model_type"] == "qwen3"


def test_what_decides_about_tensor_parallel_sizes() -> None:
    minimax = json.loads((CONFIGS / "MiniMax-M2.5/config.json").read_text(encoding="utf-8"))
    assert minimax["intermediate_size"] // 4 % 128 == 0
    assert minimax["intermediate_size"] // 8 % 128 != 0
