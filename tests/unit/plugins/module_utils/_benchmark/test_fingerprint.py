# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a result depends on: what changes the digests, what does not, and what can be told of a change."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ansible_collections.gpufleet.vllm.plugins.module_utils._benchmark.fingerprint import (
    Fingerprint,
    changed_parts,
    files_part,
    gpus_part,
    model_part,
    plain_parts,
)
from ansible_collections.gpufleet.vllm.plugins.module_utils._benchmark.store import ResultStore
from ansible_collections.gpufleet.vllm.plugins.module_utils._core.errors import GpuFleetError

UUID = "GPU-12345678-1234-1234-1234-1234567890ab"
OTHER = "GPU-87654321-1234-1234-1234-1234567890ab"


def gpu(uuid: str, name: str = "NVIDIA H200") -> "dict[str, object]":
    return {"index": 0, "uuid": uuid, "name": name, "total_mib": 143771}


def fingerprint(tmp_path: Path, unit: str = "[Service]\n", uuid: str = UUID, version: str = "0.33.0") -> Fingerprint:
    path = tmp_path / "vllm-m.service"
    path.write_text(unit)
    return Fingerprint((files_part("unit", [str(path)]), gpus_part([gpu(uuid)]), *plain_parts({"vllm_version": version})))


def test_the_same_gives_the_same(tmp_path: Path) -> None:
    assert fingerprint(tmp_path).digest == fingerprint(tmp_path).digest
    assert len(fingerprint(tmp_path).digest) == 32


def test_everything_that_can_move_the_result_changes_it(tmp_path: Path) -> None:
    digests = {
        fingerprint(tmp_path).digest,
        fingerprint(tmp_path, unit="[Service]\nNice=1\n").digest,
        fingerprint(tmp_path, uuid=OTHER).digest,
        fingerprint(tmp_path, version="0.33.1").digest,
    }
    assert len(digests) == 4


def test_another_card_of_the_same_kind_is_the_same_deployment(tmp_path: Path) -> None:
    here = fingerprint(tmp_path, unit="ExecStartPre=guard --gpus %s,00000000:1B:00.0\n" % UUID)
    there = fingerprint(tmp_path, unit="ExecStartPre=guard --gpus %s,00000000:3D:00.0\n" % OTHER, uuid=OTHER)
    assert here.digest != there.digest
    assert here.deployment == there.deployment
    assert here.deployment != fingerprint(tmp_path, unit="ExecStartPre=guard --gpus 0,1\n").deployment


def test_what_changed_is_told_by_name(tmp_path: Path) -> None:
    before, after = fingerprint(tmp_path), fingerprint(tmp_path, version="0.33.1")
    assert changed_parts(before.to_result(), after.to_result()) == [{"name": "vllm_version", "before": "0.33.0", "after": "0.33.1"}]
    assert changed_parts(before.to_result(), before.to_result()) == []
    assert changed_parts([], after.to_result()[:1])[0]["before"] is None


def test_a_models_configuration_counts_by_content_and_its_weights_by_size_and_time(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "model.safetensors").write_bytes(b"x" * 10)
    first = Fingerprint((model_part(str(tmp_path)),))
    os.utime(tmp_path / "config.json", (1, 1))
    assert Fingerprint((model_part(str(tmp_path)),)).digest == first.digest, "a file that was only touched says the same"
    os.utime(tmp_path / "model.safetensors", (1, 1))
    touched = Fingerprint((model_part(str(tmp_path)),))
    assert touched.digest != first.digest
    assert touched.deployment == first.deployment, "copies on two hosts have times of their own"
    (tmp_path / "model.safetensors").write_bytes(b"x" * 11)
    assert Fingerprint((model_part(str(tmp_path)),)).deployment != first.deployment
    (tmp_path / "config.json").write_text('{"a": 1}')
    assert Fingerprint((model_part(str(tmp_path)),)).deployment != touched.deployment


def test_a_model_that_is_not_there_is_told(tmp_path: Path) -> None:
    with pytest.raises(GpuFleetError, match="Cannot look into the model's directory"):
        model_part(str(tmp_path / "no"))


def test_a_result_is_kept_and_found(tmp_path: Path) -> None:
    store = ResultStore(str(tmp_path / "benchmarks"))
    digest = "0" * 32
    assert store.load(digest) is None
    path = store.save({"schema_version": 1, "fingerprint": digest, "levels": []})
    assert path == str(tmp_path / "benchmarks" / (digest + ".json"))
    assert store.load(digest) == {"schema_version": 1, "fingerprint": digest, "levels": []}
    store.save({"schema_version": 1, "fingerprint": digest, "levels": [], "tool": "builtin"})
    found = store.load(digest)
    assert found is not None and found["tool"] == "builtin"
    assert os.listdir(tmp_path / "benchmarks") == [digest + ".json"]


@pytest.mark.parametrize("text", ["", "{", "[]", '{"schema_version": 99}', '{"schema_version": 1, "fingerprint": "other", "levels": []}'])
def test_a_result_that_cannot_be_used_is_as_good_as_none(tmp_path: Path, text: str) -> None:
    (tmp_path / ("0" * 32 + ".json")).write_text(text)
    assert ResultStore(str(tmp_path)).load("0" * 32) is None


def test_a_fingerprint_is_never_a_path(tmp_path: Path) -> None:
    with pytest.raises(GpuFleetError, match="no fingerprint"):
        ResultStore(str(tmp_path)).path("../../etc/shadow")
