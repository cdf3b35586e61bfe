# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The glance at a usual checkpoint says what a look at every tensor says, or nothing."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ansible_collections.gpufleet.vllm.plugins.module_utils._model.checkpoint import Checkpoint, read_checkpoint
from ansible_collections.gpufleet.vllm.plugins.module_utils._model.facts import facts_from_config
from ansible_collections.gpufleet.vllm.plugins.module_utils._model.quantisation import Quantisation
from ansible_collections.gpufleet.vllm.plugins.module_utils._model.types import ModelFacts
from ansible_collections.gpufleet.vllm.plugins.module_utils._preflight.quick import quick_checkpoint
from ansible_collections.gpufleet.vllm.tests.unit.plugins.module_utils._preflight.checkpoints import (
    Entry,
    minimax,
    write,
)


def _filled(found: Checkpoint) -> dict[str, int]:
    return {role: size for role, size in found.role_bytes.items() if size}


def same(directory: Path, facts: ModelFacts) -> bool:
    """Whether the glance agrees with the look; False where it says nothing."""
    glance, whole = quick_checkpoint(str(directory), facts), read_checkpoint(str(directory), facts.layers)
    if glance is None:
        return False
    quick = glance.checkpoint
    assert (quick.total_bytes, quick.tensors, quick.files) == (whole.total_bytes, whole.tensors, whole.files)
    assert _filled(quick) == _filled(whole)
    assert whole.dtype_bytes.get("F32", 0) == glance.float32_bytes
    assert quick.complete and whole.complete
    return True


@pytest.mark.parametrize(("layers", "experts", "index"), [(2, 3, True), (1, 1, False), (3, 8, True)])
def test_both_say_the_same(tmp_path: Path, layers: int, experts: int, index: bool) -> None:
    config, shards = minimax(layers, experts, scales="BF16")
    shards[1] = {**shards[1], "model.layers.0.block_sparse_moe.gate.weight": ("F32", (7, 3))}
    assert same(write(tmp_path / "m", shards, config, index), facts_from_config(config))


def _truncated(directory: Path) -> None:
    shard = directory / "model-00002-of-00002.safetensors"
    with shard.open("rb+") as handle:
        handle.truncate(shard.stat().st_size - 1)


def _short_header(directory: Path) -> None:
    with (directory / "model-00001-of-00002.safetensors").open("rb+") as handle:
        handle.truncate(100)


def _index_of_more(directory: Path) -> None:
    index = directory / "model.safetensors.index.json"
    index.write_text(index.read_text().replace('{"weight_map": {', '{"weight_map": {"x": "model-00001-of-00002.safetensors", '))


@pytest.mark.parametrize("damage", [
    _truncated,
    _short_header,
    _index_of_more,
    lambda directory: (directory / "model-00001-of-00002.safetensors").unlink(),
    lambda directory: (directory / "model-00001-of-00002.safetensors").write_bytes(b""),
    lambda directory: (directory / "model-00001-of-00002.safetensors").write_bytes(b"version https://git-lfs.github.com/spec/v1\n"),
    lambda directory: (directory / "model-00002-of-00002.safetensors.incomplete").touch(),
    lambda directory: (directory / "consolidated.safetensors").touch(),
    lambda directory: (directory / "model.safetensors.index.json").write_text("{"),
    lambda directory: (directory / ".cache/huggingface/download").mkdir(parents=True),
])
def test_what_is_not_as_usual_is_left_to_the_look(tmp_path: Path, damage: Callable[[Path], object]) -> None:
    config, shards = minimax(scales="BF16")
    directory = write(tmp_path / "m", shards, config)
    assert same(directory, facts_from_config(config))
    damage(directory)
    assert quick_checkpoint(str(directory), facts_from_config(config)) is None


@pytest.mark.parametrize("name", ["model.layers.2.block_sparse_moe.experts.0.w1.weight", "mtp.layers.0.mlp.experts.0.w1.weight",
                                  "talker.model.layers.0.mlp.experts.0.weight", "visual.blocks.0.qkv.weight_packed"])
def test_tensors_that_are_no_experts_of_the_model_are_looked_at_one_by_one(tmp_path: Path, name: str) -> None:
    config, shards = minimax(scales="BF16")
    directory = write(tmp_path / "m", [shards[0], {**shards[1], name: ("F8_E4M3", (128, 128))}], config)
    assert not same(directory, facts_from_config(config))


def test_the_scales_of_experts_are_counted(tmp_path: Path) -> None:
    config, shards = minimax(scales="F32")
    directory, facts = write(tmp_path / "m", shards, config), facts_from_config(config)
    assert same(directory, facts)
    glance = quick_checkpoint(str(directory), facts)
    assert glance is not None and glance.float32_bytes == 2 * 3 * 2 * 12 * 2 * 4


def test_weights_in_eight_bits_have_to_be_what_the_configuration_means(tmp_path: Path) -> None:
    config, shards = minimax(scales="BF16")
    directory = write(tmp_path / "m", shards, config)
    facts = facts_from_config(config)
    assert quick_checkpoint(str(directory), facts) is not None
    plain = facts_from_config({name: value for name, value in config.items() if name != "quantization_config"})
    assert quick_checkpoint(str(directory), plain) is None
    assert isinstance(facts.quantisation, Quantisation)


_NAMES = st.sampled_from([
    "model.embed_tokens.weight", "lm_head.weight", "model.norm.weight", "model.layers.0.self_attn.q_proj.weight",
    "model.layers.0.mlp.experts.0.w1.weight", "model.layers.0.mlp.experts.1.w1.weight", "model.layers.1.mlp.experts.0.w1.weight",
    "model.layers.1.mlp.shared_experts.w1.weight", "model.layers.1.mlp.gate.weight", "model.layers.2.mlp.experts.0.w1.weight",
    "language_model.model.layers.0.mlp.experts.0.w1.weight", "mtp.0.experts.0.w", "a}b", "visual.x", ".experts.", "x.experts.\"q",
])
_ENTRY = st.tuples(st.sampled_from(["BF16", "F32", "I32"]), st.tuples(st.integers(0, 4), st.integers(1, 3)))
_SHARD = st.dictionaries(_NAMES, _ENTRY, max_size=8)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(shards=st.tuples(_SHARD, _SHARD))
def test_on_any_names_in_any_order_the_glance_is_right_or_silent(
    shards: tuple[dict[str, Entry], dict[str, Entry]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    first, second = shards
    second = {name: entry for name, entry in second.items() if name not in first}
    directory = write(tmp_path_factory.mktemp("m"), [first, second], index=bool(first or second))
    same(directory, ModelFacts(str(directory), "config.json", layers=2))
