# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Files that hold anything: no exception but the one that says what is wrong, and no answer where there is none."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ansible_collections.gpufleet.vllm.plugins.module_utils._core.errors import GpuFleetError
from ansible_collections.gpufleet.vllm.plugins.module_utils._model.checkpoint import read_checkpoint
from ansible_collections.gpufleet.vllm.plugins.module_utils._model.facts import facts_from_config, read_model
from ansible_collections.gpufleet.vllm.plugins.module_utils._model.names import NAMES
from ansible_collections.gpufleet.vllm.plugins.module_utils._model.parallel import check_parallel, working_sizes
from ansible_collections.gpufleet.vllm.plugins.module_utils._model.roles import Roles
from ansible_collections.gpufleet.vllm.plugins.module_utils._model.safetensors import Broken, summarise
from ansible_collections.gpufleet.vllm.plugins.module_utils._model.weights_check import check_weights

from .weights import gguf, safetensors

FIXTURES = Path(__file__).parents[3] / "fixtures"
CONFIGS: dict[str, Any] = json.loads((FIXTURES / "model_configs.json").read_text(encoding="utf-8"))
MORE_KEYS = (
    "text_config", "thinker_config", "vision_config", "audio_config", "quantization_config", "quantization", "layer_types",
    "layers_block_type", "hybrid_override_pattern", "attn_type_list", "hybrid_layer_pattern", "block_types", "block_configs",
    "attn_layer_indices", "linear_attn_config", "full_attn_layers", "attn_layer_period", "attn_layer_offset", "moe",
    "full_attention_interval", "layer_group_size", "attention_chunk_size", "no_rope_layers", "sliding_window",
    "use_sliding_window", "max_window_layers", "sliding_window_pattern", "num_kv_shared_layers", "global_head_dim",
    "model_type", "architectures", "mamba_d_state", "mamba_n_heads", "mamba_d_head", "mamba_n_groups", "mamba_expand",
    "linear_num_value_heads", "linear_num_key_heads", "mlp_only_layers", "moe_layer_freq", "moe_layers", "mlp_layer_types",
    "first_k_dense_replace", "decoder_sparse_step", "expert_layer_period", "expert_layer_offset", "moe_layer_end_index",
    "multi_query", "new_decoder_architecture", "multi_query_attention", "attn_config", "ffn_config", "swa_head_dim",
)  # fmt: skip
KEYS = sorted({name for names in NAMES.values() for name in names} | set(MORE_KEYS))
WORDS = st.sampled_from(
    [
        "full_attention",
        "sliding_attention",
        "mamba",
        "attention",
        "falcon",
        "mamba2",
        "gemma3",
        "nemotron_h",
        "fp8",
        "M*-E",
    ]
)
LEAVES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-5, 300),
    st.integers(),
    st.floats(),
    st.text(max_size=4),
    WORDS,
    st.just(2**70),
)
MANGLED = st.recursive(
    LEAVES,
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(st.sampled_from(KEYS), inner, max_size=4)),
    max_leaves=8,
)
QUANTISATION_KEYS = (
    "quant_method", "weight_block_size", "group_size", "q_group_size", "bits", "config_groups", "ignore", "dynamic",
    "modules_to_not_convert", "extra_config", "global_quant_config", "quant_type", "quant_algo", "quantization",
    "modules_in_block_to_quantize", "targets", "weights", "strategy", "block_structure", "input_activations", "default",
)  # fmt: skip
QUANTISATION = st.recursive(
    st.one_of(
        LEAVES,
        st.sampled_from(["gptq", "awq", "quark", "torchao", "compressed-tensors", "re:.*", "re:(", "*", "block"]),
    ),
    lambda inner: st.one_of(
        st.lists(inner, max_size=4), st.dictionaries(st.sampled_from(QUANTISATION_KEYS), inner, max_size=5)
    ),
    max_leaves=10,
)
ON_DISK = settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)


@settings(deadline=None)
@given(
    st.sampled_from(sorted(CONFIGS)), st.dictionaries(st.sampled_from(KEYS), MANGLED, max_size=8), st.integers(1, 16)
)
def test_any_configuration(name: str, changes: dict[str, Any], tp: int) -> None:
    for config in ({**CONFIGS[name], **changes}, changes, {"text_config": changes}):
        facts = facts_from_config(config)
        for check in check_parallel(facts, tp, 2, True, 8, dcp=2):
            assert check.detail and check.status in ("pass", "warn", "fail", "skip")
            assert check.fix or check.status != "fail"
        working_sizes(facts, 8)
        assert not facts.attention_layers or len(facts.attention_layers) == facts.layers


@settings(max_examples=60, deadline=None)
@given(st.dictionaries(st.sampled_from(QUANTISATION_KEYS), QUANTISATION, max_size=6), st.integers(1, 16))
def test_any_quantisation(raw: dict[str, Any], tp: int) -> None:
    facts = facts_from_config({**CONFIGS["MiniMax-M2.5"], "quantization_config": raw})
    check_parallel(facts, tp)


NO_SIZE = st.one_of(
    st.text(max_size=5),
    st.booleans(),
    st.integers(max_value=-1),
    st.just([]),
    st.just({}),
    st.just([1, 2]),
    st.just(1.5),
)


@pytest.mark.parametrize(
    ("key", "rules"),
    [
        ("num_attention_heads", {"attention_heads"}),
        ("num_key_value_heads", {"kv_heads"}),
        ("intermediate_size", {"mlp_experts"}),
        ("num_local_experts", {"mlp_experts", "expert_parallel"}),
    ],
)
@settings(max_examples=20, deadline=None)
@given(value=NO_SIZE)
def test_no_confident_answer_about_what_is_no_size(key: str, rules: set[str], value: Any) -> None:
    checks = {
        check.id: check
        for check in check_parallel(facts_from_config({**CONFIGS["MiniMax-M2.5"], key: value}), 8, 1, True)
    }
    assert {rule for rule in rules if checks[rule].status == "skip"} == rules


@settings(max_examples=60, deadline=None)
@given(
    value=st.one_of(
        st.text(min_size=1, max_size=5),
        st.booleans(),
        st.just([128]),
        st.just([0, 128]),
        st.just({"a": 1}),
        st.just(128),
    )
)
def test_no_confident_answer_about_blocks_that_are_none(value: Any) -> None:
    raw = {"quant_method": "fp8", "weight_block_size": value}
    checks = check_parallel(facts_from_config({**CONFIGS["MiniMax-M2.5"], "quantization_config": raw}), 8)
    assert [check.status for check in checks if check.id == "mlp_experts"] == ["skip"]


@ON_DISK
@given(st.binary(max_size=200))
def test_any_bytes_as_a_configuration(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "config.json").write_bytes(content)
    try:
        check_parallel(read_model(str(tmp_path)), 8)
    except GpuFleetError as exc:
        assert str(tmp_path) in exc.msg


CHANGES = st.lists(st.tuples(st.integers(0, 2000), st.integers(0, 255)), min_size=1, max_size=6)


def changed(raw: bytes, changes: list[tuple[int, int]], cut: int) -> bytes:
    """Some bytes changed, and the end cut off."""
    found = bytearray(raw)
    for at, value in changes:
        found[at % len(found)] = value
    return bytes(found[: len(found) - cut % len(found)] if cut else found)


@ON_DISK
@given(CHANGES, st.one_of(st.just(0), st.integers(1, 5000)))
def test_any_safetensors(tmp_path: Path, changes: list[tuple[int, int]], cut: int) -> None:
    path = tmp_path / "model.safetensors"
    tensors = {"model.layers.%d.mlp.experts.0.w.weight" % layer: ("BF16", [4, 4]) for layer in range(12)}
    safetensors(path, {**tensors, "lm_head.weight": ("F8_E4M3", [8, 8])})
    path.write_bytes(changed(path.read_bytes(), changes, cut))
    found = read_checkpoint(str(tmp_path), 10)
    assert found.total_bytes <= 2**62
    check_weights(facts_from_config({}), found)


@ON_DISK
@given(CHANGES, st.one_of(st.just(0), st.integers(1, 5000)))
def test_any_gguf(tmp_path: Path, changes: list[tuple[int, int]], cut: int) -> None:
    path = tmp_path / "model.gguf"
    metadata = {
        "general.architecture": "llama",
        "llama.block_count": 4,
        "llama.x": ["a", "b"],
        "llama.y": [1, 2],
        "z": True,
    }
    gguf(path, metadata, {"token_embd.weight": (12, [256, 4], 576), "output.weight": (0, [8], 32)})
    path.write_bytes(changed(path.read_bytes(), changes, cut))
    try:
        check_parallel(read_model(str(tmp_path)), 8)
    except GpuFleetError as exc:
        assert str(path) in exc.msg
    read_checkpoint(str(tmp_path))


NAMES_OF_TENSORS = st.one_of(
    st.builds(
        "{}layers.{}.{}experts.{}.{}".format,
        st.sampled_from(["model.", "", "language_model.model.", "mtp.", "model.visual.", "talker.model."]),
        st.one_of(st.integers(0, 12), st.integers(0, 130)),
        st.sampled_from(["mlp.", "block_sparse_moe.", "mlp.shared_", ""]),
        st.integers(0, 3),
        st.sampled_from(["w1.weight", "w1.weight_scale", 'w"1', "w\\1"]),
    ),
    st.sampled_from(["lm_head.weight", "model.embed_tokens.weight", "visual.x.qweight", "", "__metadata__x", "é"]),
    st.text(max_size=6),
)


@settings(deadline=None)
@given(
    st.dictionaries(
        NAMES_OF_TENSORS,
        st.tuples(st.sampled_from(["BF16", "F8_E4M3", "F4", "made_up"]), st.integers(0, 8)),
        max_size=12,
    ),
    st.booleans(),
    st.integers(0, 3),
    st.one_of(st.none(), st.integers(0, 12), st.integers(0, 130)),
)
def test_counting_experts_finds_what_parsing_finds(
    tensors: dict[str, tuple[str, int]], compact: bool, padding: int, layers: int | None
) -> None:
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, (dtype, size) in tensors.items():
        bits = {"BF16": 16, "F4": 4}.get(dtype, 8)
        size_bytes = 2 * size * bits // 8
        header[name] = {"dtype": dtype, "shape": [2, size], "data_offsets": [end, end + size_bytes]}
        end += size_bytes
    raw = json.dumps(header, separators=(",", ":") if compact else None).encode() + b" " * padding
    counted, parsed = (summarise(raw, end, Roles(layers), set(), large) for large in (0, len(raw)))
    assert (counted.tensors, counted.encoder_packed) == (parsed.tensors, parsed.encoder_packed)
    assert {role: size for role, size in counted.roles.items() if size} == {
        role: size for role, size in parsed.roles.items() if size
    }
    assert {one: size for one, size in counted.dtypes.items() if size} == {
        one: size for one, size in parsed.dtypes.items() if size
    }
    with pytest.raises(Broken):
        summarise(raw, end + 1, Roles(layers), set(), 0)
