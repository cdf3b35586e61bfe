# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Reading a model directory in the shapes that people have."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.gpufleet.vllm.plugins.module_utils._core.errors import GpuFleetError
from ansible_collections.gpufleet.vllm.plugins.module_utils._model.facts import facts_from_config, read_model

FIXTURES = Path(__file__).parents[3] / "fixtures"
CONFIGS: dict[str, Any] = json.loads((FIXTURES / "model_configs.json").read_text(encoding="utf-8"))


def directory(path: Path, **files: Any) -> str:
    """A model directory with these files as JSON."""
    for name, content in files.items():
        text = content if isinstance(content, str) else json.dumps(content)
        (path / (name + ".json")).write_text(text, encoding="utf-8")
    return str(path)


def test_a_mixture_of_experts_whose_expert_width_is_called_intermediate_size() -> None:
    facts = facts_from_config(CONFIGS["MiniMax-M2.5"])
    assert (facts.expert_width, facts.dense_width, facts.experts, facts.shared_width) == (1536, None, 256, None)
    assert (facts.attention_heads, facts.kv_heads, facts.head_dim, facts.vocab_size) == (48, 8, 128, 200064)
    assert facts.moe and not facts.mla


@pytest.mark.parametrize(
    ("name", "dense", "expert", "shared"),
    [
        ("DeepSeek-V3/R1", 18432, 2048, 2048),
        ("Qwen3-235B-A22B-FP8", None, 1536, None),
        ("Qwen3-Next-80B-A3B", None, 512, 512),
        ("Mixtral-8x7B", None, 14336, None),
        ("DeepSeek-V2-Lite", 10944, 1408, 2816),
        ("Llama-3.x-70B", 28672, None, None),
        ("gpt-oss-120b", None, 2880, None),
        ("Kimi-K2-Thinking", 18432, 2048, 2048),
    ],
)
def test_widths(name: str, dense: int | None, expert: int | None, shared: int | None) -> None:
    facts = facts_from_config(CONFIGS[name])
    assert (facts.dense_width, facts.expert_width, facts.shared_width) == (dense, expert, shared)


def test_nested_text_configurations(tmp_path: Path) -> None:
    inner = CONFIGS["Kimi-K2-Thinking"]
    for config in (
        {
            "architectures": ["KimiK25ForConditionalGeneration"],
            "text_config": inner,
            "vision_config": {"num_attention_heads": 16},
        },
        {"thinker_config": {"text_config": inner, "audio_config": {"encoder_attention_heads": 20}}},
        {"llm_config": inner, "vision_config": None},
    ):
        facts = facts_from_config(config)
        assert (facts.attention_heads, facts.layers, facts.expert_width) == (64, 61, 2048)
        assert facts.mla
    assert facts_from_config({"text_config": inner, "vision_config": {"num_heads": 16}}).encoder_heads == (
        ("vision_config", 16),
    )
    # A vision tower's heads are not the model's.
    assert facts_from_config({"vision_config": {"num_attention_heads": 16}}).attention_heads is None
    assert tmp_path.exists()


@pytest.mark.parametrize(
    ("config", "heads", "kv", "layers"),
    [
        ({"n_head": 16, "n_layer": 24, "n_embd": 2048}, 16, 16, 24),
        ({"num_attention_heads": 71, "multi_query": True, "num_hidden_layers": 32}, 71, 1, 32),
        ({"num_attention_heads": 32, "multi_query_group_num": 2, "num_layers": 28}, 32, 2, 28),
        ({"n_heads": 48, "n_layers": 40, "attn_config": {"kv_n_heads": 8}}, 48, 8, 40),
        ({"num_attention_heads": 32, "num_key_value_heads": [8, 8, 4]}, 32, None, None),
        ({"num_attention_heads": [12, 16]}, None, None, None),
        ({"num_attention_heads": True, "num_key_value_heads": "8"}, None, None, None),
        ({"num_attention_heads": -4}, None, None, None),
        ({"num_attention_heads": 1e300}, None, None, None),
        ({"num_attention_heads": 32.0}, 32, 32, None),
        ({}, None, None, None),
    ],
)
def test_old_names_and_odd_values(
    config: dict[str, Any], heads: int | None, kv: int | None, layers: int | None
) -> None:
    facts = facts_from_config(config)
    assert (facts.attention_heads, facts.kv_heads, facts.layers) == (heads, kv, layers)


def test_directories(tmp_path: Path) -> None:
    assert read_model(directory(tmp_path, config=CONFIGS["Llama-3.x-70B"])).attention_heads == 64
    mistral = tmp_path / "mistral"
    mistral.mkdir()
    facts = read_model(
        directory(
            mistral,
            params={"dim": 4096, "n_layers": 32, "n_heads": 32, "n_kv_heads": 8, "head_dim": 128, "hidden_dim": 14336},
        )
    )
    assert (facts.source, facts.attention_heads, facts.kv_heads, facts.dense_width) == ("params.json", 32, 8, 14336)
    gptq = tmp_path / "gptq"
    gptq.mkdir()
    facts = read_model(
        directory(
            gptq,
            config={"num_attention_heads": 32},
            quantize_config={"bits": 4, "group_size": 128, "quant_method": "gptq"},
        )
    )
    assert facts.quantisation is not None and facts.quantisation.group == 128


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is no JSON"),
        ("{", "is no JSON"),
        ("[1]", "holds no object"),
        ("null", "holds no object"),
        ("[" * 100000, "is no JSON"),
    ],
)
def test_a_configuration_that_is_none(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(GpuFleetError, match=message):
        read_model(directory(tmp_path, config=text))


def test_a_directory_that_is_none(tmp_path: Path) -> None:
    with pytest.raises(GpuFleetError, match="does not exist"):
        read_model(str(tmp_path / "nowhere"))
    with pytest.raises(GpuFleetError, match="holds no config.json"):
        read_model(str(tmp_path))
    file = tmp_path / "file"
    file.touch()
    with pytest.raises(GpuFleetError, match="is a file"):
        read_model(str(file))
    (tmp_path / "config.json").symlink_to(tmp_path / "gone")
    with pytest.raises(GpuFleetError, match="can't be read"):
        read_model(str(tmp_path))
    (tmp_path / "config.json").unlink()
    os.mkfifo(tmp_path / "config.json")
    with pytest.raises(GpuFleetError, match="no regular file"):
        read_model(str(tmp_path))
    (tmp_path / "config.json").unlink()
    (tmp_path / "config.json").mkdir()
    with pytest.raises(GpuFleetError, match="no regular file"):
        read_model(str(tmp_path))
    (tmp_path / "config.json").rmdir()
    (tmp_path / "adapter_config.json").touch()
    with pytest.raises(GpuFleetError, match="holds an adapter"):
        read_model(str(tmp_path))
    (tmp_path / "snapshots").mkdir()
    with pytest.raises(GpuFleetError, match="under its snapshots/"):
        read_model(str(tmp_path))


def test_a_configuration_larger_than_any(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_bytes(b"{" + b" " * 20 * 2**20 + b"}")
    with pytest.raises(GpuFleetError, match="larger than any"):
        read_model(str(tmp_path))


@pytest.mark.parametrize(
    "content",
    [
        b'\xef\xbb\xbf{"num_attention_heads": 32}',
        b'{"num_attention_heads": 7, "num_attention_heads": 32}',
        b'{"num_attention_heads": 32, "head_dim": NaN, "num_hidden_layers": 1e999, "vocab_size": -Infinity}',
        b'{"num_attention_heads": 32, "vocab_size": 1e400, "name": "\\ud800"}',
    ],
)
def test_odd_but_readable(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "config.json").write_bytes(content)
    facts = read_model(str(tmp_path))
    assert facts.attention_heads == 32 and facts.layers is None and facts.vocab_size is None


@pytest.mark.parametrize(
    "content", [b"\xff\xfe{\x00}\x00", b'{"a": "\xe9"}', b"{" * 10**6, b'{"a": ' + b"9" * 10**5 + b"}"]
)
def test_what_no_reader_takes(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "config.json").write_bytes(content)
    with pytest.raises(GpuFleetError, match="is no JSON"):
        read_model(str(tmp_path))
