# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Weights on disk: all there, damaged, half downloaded, doubled; their bytes by dtype and by role."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.gpufleet.vllm.plugins.module_utils._core.errors import GpuFleetError
from ansible_collections.gpufleet.vllm.plugins.module_utils._model.check import Check
from ansible_collections.gpufleet.vllm.plugins.module_utils._model.checkpoint import read_checkpoint
from ansible_collections.gpufleet.vllm.plugins.module_utils._model.facts import facts_from_config
from ansible_collections.gpufleet.vllm.plugins.module_utils._model.roles import Roles
from ansible_collections.gpufleet.vllm.plugins.module_utils._model.weights_check import check_weights

from .weights import Tensors, safetensors, sharded

MIB = 2**20


def dense(layers: int = 2) -> Tensors:
    """A small dense model."""
    found: Tensors = {"model.embed_tokens.weight": ("BF16", [1024, 64]), "lm_head.weight": ("BF16", [1024, 64])}
    for layer in range(layers):
        found["model.layers.%d.self_attn.q_proj.weight" % layer] = ("BF16", [64, 64])
        found["model.layers.%d.mlp.down_proj.weight" % layer] = ("F8_E4M3", [64, 64])
    return found


def header(text: str, length: int | None = None) -> bytes:
    """The beginning of a safetensors file with this header."""
    return (len(text) if length is None else length).to_bytes(8, "little") + text.encode()


def status(path: Path, config: dict[str, Any] | None = None) -> dict[str, Check]:
    """What the checks say, by their ids."""
    return {check.id: check for check in check_weights(facts_from_config(config or {}), read_checkpoint(str(path)))}


def test_bytes_by_dtype_and_role(tmp_path: Path) -> None:
    tensors = dense()
    tensors |= {
        "model.layers.0.mlp.experts.7.down_proj.weight": ("BF16", [8, 8]),
        "model.layers.0.mlp.shared_experts.down_proj.weight": ("BF16", [4, 4]),
        "model.layers.2.mlp.experts.0.down_proj.weight": ("BF16", [16, 16]),
        "mtp.fc.weight": ("BF16", [2, 2]),
        "visual.blocks.0.attn.qkv.weight": ("BF16", [32, 32]),
        "talker.model.layers.0.mlp.weight": ("BF16", [128, 128]),
    }
    sharded(tmp_path, tensors, 3)
    found = read_checkpoint(str(tmp_path), layers=2)
    assert found.complete and found.format == "safetensors" and found.tensors == len(tensors)
    assert found.role_bytes == {
        "embedding": 131072,
        "head": 131072,
        "rest": 2 * (8192 + 4096) + 32,
        "experts": 128,
        "nextn": 512 + 8,
        "encoder": 2048,
        "unused": 32768,
    }
    assert found.total_bytes == sum(found.role_bytes.values()) - 32768
    assert found.dtype_bytes["F8_E4M3"] == 8192
    assert status(tmp_path)["weights"].status == "pass"


@pytest.mark.parametrize(
    ("name", "role"),
    [
        ("model.language_model.embed_tokens.weight", "embedding"),
        ("language_model.model.embed_tokens.weight", "embedding"),
        ("transformer.wte.weight", "embedding"),
        ("backbone.embeddings.weight", "embedding"),
        ("language_model.lm_head.weight", "head"),
        ("output.weight", "head"),
        ("output_norm.weight", "rest"),
        ("model.visual.patch_embed.proj.weight", "encoder"),
        ("vision_tower.encoder.layers.30.mlp.fc1.weight", "encoder"),
        ("model.vision_tower.vision_model.encoder.layers.30.mlp.fc1.weight", "encoder"),
        ("thinker.audio_tower.layers.30.fc1.weight", "encoder"),
        ("thinker.model.layers.0.mlp.experts.0.up_proj.weight", "experts"),
        ("multi_modal_projector.linear_1.weight", "encoder"),
        ("model.layers.28.embed_tokens.weight", "nextn"),
        ("model.layers.28.mlp.experts.0.up_proj.weight", "nextn"),
        ("mtp.layers.0.mlp.experts.0.up_proj.weight", "nextn"),
        ("model.mtp_layers.0.mlp.up_proj.weight", "nextn"),
        ("model.layers.27.block_sparse_moe.experts.255.w2.weight_scale_inv", "experts"),
        ("model.layers.27.feed_forward.shared_expert.w2.weight", "rest"),
        ("model.layers.x.mlp.weight", "rest"),
        ("blk.0.ffn_down_exps.weight", "experts"),
        ("v.blk.0.attn_q.weight", "encoder"),
        ("layers.", "rest"),
        ("", "rest"),
    ],
)
def test_roles(name: str, role: str) -> None:
    assert Roles(28).of(name) == role


def test_what_is_missing(tmp_path: Path) -> None:
    names = sharded(tmp_path, dense(8), 4)
    (tmp_path / names[1]).unlink()
    (tmp_path / (names[1] + ".incomplete")).touch()
    found = read_checkpoint(str(tmp_path))
    assert found.missing_files == (names[1],) and not found.complete and found.missing_tensors == ()
    check = status(tmp_path)["weights"]
    assert check.status == "fail" and names[1] in check.detail and "download is not finished" in check.detail


def test_a_shard_that_another_name_tells_of(tmp_path: Path) -> None:
    names = sharded(tmp_path, dense(8), 4)
    (tmp_path / "model.safetensors.index.json").unlink()
    (tmp_path / names[2]).unlink()
    assert read_checkpoint(str(tmp_path)).missing_files == (names[2],)


def test_tensors_that_are_in_no_file(tmp_path: Path) -> None:
    sharded(tmp_path, dense(8), 2)
    path = tmp_path / "model.safetensors.index.json"
    index = json.loads(path.read_text(encoding="utf-8"))
    index["weight_map"]["model.layers.9.mlp.down_proj.weight"] = "model-00001-of-00002.safetensors"
    path.write_text(json.dumps(index), encoding="utf-8")
    assert read_checkpoint(str(tmp_path)).missing_tensors == ("model.layers.9.mlp.down_proj.weight",)
    assert "in no file" in status(tmp_path)["weights"].detail


@pytest.mark.parametrize(
    ("content", "what"),
    [
        (b"", "is empty"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 5\n", "git-lfs pointer"),
        (b"\0" * 4096, "does not begin"),
        (b"<html>", "does not begin"),
        (header("{}", length=16), "ends within its header"),
        (header("{}"), None),
        (header("{]"), "no JSON"),
        (header('{"a": [1, 2, 3]}'), "places its tensors nowhere"),
        (header('{"a": 1}'), "places its tensors nowhere"),
        (header('{"a": {"data_offsets": [4, "1000"]}}'), "places its tensors nowhere"),
        (header('{"a": {"data_offsets": [4, 2]}}'), "places its tensors nowhere"),
        (header('{"a": {"data_offsets": [0, NaN]}}'), "places its tensors nowhere"),
        (header('{"a": {"data_offsets": [0, 9999]}'), "no JSON"),
        (header('{"a": {"data_offsets": [0, 9999]}}'), "is truncated"),
    ],
)
def test_damaged_files(tmp_path: Path, content: bytes, what: str | None) -> None:
    (tmp_path / "model.safetensors").write_bytes(content)
    found = read_checkpoint(str(tmp_path))
    assert found.complete is (what is None)
    if what is not None:
        assert what in found.broken[0][1]
        assert what in status(tmp_path)["weights"].detail


def test_truncated_and_too_long(tmp_path: Path) -> None:
    safetensors(tmp_path / "model.safetensors", dense(), short_by=1)
    assert "is truncated" in read_checkpoint(str(tmp_path)).broken[0][1]
    safetensors(tmp_path / "model.safetensors", dense(), short_by=-1)
    assert "is longer" in read_checkpoint(str(tmp_path)).broken[0][1]


def test_a_download_that_takes_its_room_first(tmp_path: Path) -> None:
    safetensors(tmp_path / "model.safetensors", dense())
    (tmp_path / "model.safetensors.aria2").touch()
    assert status(tmp_path)["weights"].status == "fail"
    (tmp_path / "model.safetensors.aria2").rename(tmp_path / "README.md.aria2")
    assert status(tmp_path)["weights"].status == "pass"


def test_the_hub_clients_own_place_for_downloads(tmp_path: Path) -> None:
    (tmp_path / ".cache" / "huggingface" / "download").mkdir(parents=True)
    (tmp_path / ".cache" / "huggingface" / "download" / "abc.incomplete").touch()
    check = status(tmp_path)["weights"]
    assert check.status == "fail" and "holds no weights" in check.detail and "abc.incomplete" in check.detail


def test_links_as_in_the_hub_cache(tmp_path: Path) -> None:
    blobs, snapshot = tmp_path / "blobs", tmp_path / "snapshots" / "abc"
    blobs.mkdir()
    snapshot.mkdir(parents=True)
    safetensors(blobs / "0123", dense())
    (snapshot / "model.safetensors").symlink_to("../../blobs/0123")
    assert read_checkpoint(str(snapshot)).complete
    (blobs / "0123").unlink()
    assert "../../blobs/0123, which is not there" in read_checkpoint(str(snapshot)).broken[0][1]


def test_the_same_weights_twice_count_once(tmp_path: Path) -> None:
    sharded(tmp_path, dense(), 2)
    total = read_checkpoint(str(tmp_path)).total_bytes
    safetensors(tmp_path / "consolidated.safetensors", {"tok_embeddings.weight": ("BF16", [1024, 64])})
    (tmp_path / "pytorch_model.bin").write_bytes(b"x" * 1000)
    (tmp_path / "original").mkdir()
    (tmp_path / "original" / "consolidated.00.pth").write_bytes(b"x" * 1000)
    found = read_checkpoint(str(tmp_path))
    assert found.total_bytes == total and found.spare == ("consolidated.safetensors",)
    (tmp_path / "model.safetensors.index.json").unlink()
    found = read_checkpoint(str(tmp_path))
    assert found.total_bytes == total and found.spare == ("consolidated.safetensors",)


def test_mistrals_form_alone(tmp_path: Path) -> None:
    safetensors(tmp_path / "consolidated.safetensors", {"tok_embeddings.weight": ("BF16", [1024, 64])})
    assert read_checkpoint(str(tmp_path)).role_bytes == {"embedding": 131072}


def test_pytorch_files(tmp_path: Path) -> None:
    (tmp_path / "pytorch_model-00001-of-00002.bin").write_bytes(b"x" * 1000)
    (tmp_path / "training_args.bin").write_bytes(b"x" * 1000)
    found = read_checkpoint(str(tmp_path))
    assert (found.format, found.total_bytes) == ("pytorch", 1000)
    assert found.missing_files == ("pytorch_model-00002-of-00002.bin",)
    (tmp_path / "pytorch_model-00002-of-00002.bin").write_bytes(b"version https://git-lfs.github.com/spec/v1")
    assert "git-lfs pointer" in read_checkpoint(str(tmp_path)).broken[0][1]
    (tmp_path / "pytorch_model-00002-of-00002.bin").write_bytes(b"x")
    assert status(tmp_path)["weights"].status == "pass"


def test_no_weights_at_all(tmp_path: Path) -> None:
    assert "holds no weights" in status(tmp_path)["weights"].detail
    (tmp_path / "adapter_config.json").touch()
    safetensors(tmp_path / "adapter_model.safetensors", dense())
    assert "an adapter" in status(tmp_path)["weights"].detail
    with pytest.raises(GpuFleetError, match="does not exist"):
        read_checkpoint(str(tmp_path / "nowhere"))


@pytest.mark.parametrize(
    ("index", "message"),
    [
        ("{", "is no JSON"),
        ("[]", "names no weights"),
        ('{"weight_map": {}}', "names no weights"),
        ('{"weight_map": {"a": 4}}', "names no weights"),
        ('{"weight_map": {"a": "../../etc/passwd"}}', "is no file of this directory"),
        ('{"weight_map": {"a": ""}}', "is no file of this directory"),
    ],
)
def test_an_index_that_is_none(tmp_path: Path, index: str, message: str) -> None:
    (tmp_path / "model.safetensors.index.json").write_text(index, encoding="utf-8")
    with pytest.raises(GpuFleetError, match=message):
        read_checkpoint(str(tmp_path))


def test_what_is_no_file_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "model.safetensors")
    assert "no regular file" in read_checkpoint(str(tmp_path)).broken[0][1]


def test_a_configuration_that_belongs_to_other_weights(tmp_path: Path) -> None:
    """Weights that were made BF16 again beside the FP8 configuration: refused, and not by any size."""
    safetensors(tmp_path / "model.safetensors", {"model.embed_tokens.weight": ("BF16", [1024, 64])})
    fp8 = {"quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]}}
    check = status(tmp_path, fp8)["weights_dtype"]
    assert (
        check.status == "fail" and "most are BF16" in check.detail and "Remove quantization_config" in (check.fix or "")
    )
    assert "weights_dtype" not in status(tmp_path)
    safetensors(tmp_path / "model.safetensors", dense())
    assert "weights_dtype" not in status(tmp_path, fp8)
    assert status(tmp_path)["weights_dtype"].status == "warn"


def test_an_encoder_that_was_quantised_by_mistake(tmp_path: Path) -> None:
    awq = {"quantization_config": {"quant_method": "awq", "bits": 4, "group_size": 128}}
    safetensors(tmp_path / "model.safetensors", {"visual.blocks.0.mlp.fc2.qweight": ("I32", [4304, 144])})
    check = status(tmp_path, awq)["weights_encoder"]
    assert check.status == "fail" and "4304" in check.detail
    safetensors(tmp_path / "model.safetensors", {"visual.blocks.0.mlp.fc2.qweight": ("I32", [4096, 144])})
    assert "weights_encoder" not in status(tmp_path, awq)
    packed = {"quantization_config": {"quant_method": "compressed-tensors", "bits": 4, "group_size": 128}}
    safetensors(tmp_path / "model.safetensors", {"visual.blocks.0.mlp.fc2.weight_packed": ("I32", [1152, 538])})
    assert "4304" in status(tmp_path, packed)["weights_encoder"].detail


def test_sixty_four_shards_of_many_experts_take_no_time(tmp_path: Path) -> None:
    tensors = dense(60)
    for layer in range(60):
        for expert in range(128):
            tensors["model.layers.%d.mlp.experts.%d.down_proj.weight" % (layer, expert)] = ("BF16", [8, 8])
    sharded(tmp_path, tensors, 64)
    read_checkpoint(str(tmp_path))
    started = time.process_time()
    assert read_checkpoint(str(tmp_path)).complete
    assert time.process_time() - started < 0.3


@pytest.mark.parametrize("shards", [1, 2])
def test_a_configuration_with_other_layers_than_the_weights(tmp_path: Path, shards: int) -> None:
    tensors = dense(12) | {"visual.layers.40.weight": ("BF16", [2, 2])}
    if shards == 1:
        safetensors(tmp_path / "model.safetensors", tensors)
    else:
        sharded(tmp_path, tensors, shards)

    def found(layers: int, **more: Any) -> str | None:
        config = {"num_hidden_layers": layers, **more}
        checks = {
            check.id: check
            for check in check_weights(facts_from_config(config), read_checkpoint(str(tmp_path), layers))
        }
        return checks["weights_layers"].status if "weights_layers" in checks else None

    assert (found(12), found(16), found(10)) == (None, "fail", "warn")
    assert found(11, num_nextn_predict_layers=1) is None
