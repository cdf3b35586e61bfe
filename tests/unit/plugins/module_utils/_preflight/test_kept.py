# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What was found in a checkpoint's headers is told again for the same files, and for no others."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO

import pytest

from ansible_collections.gpufleet.vllm.plugins.module_utils._core import zipapp
from ansible_collections.gpufleet.vllm.plugins.module_utils._model.facts import facts_from_config
from ansible_collections.gpufleet.vllm.plugins.module_utils._model.types import ModelFacts
from ansible_collections.gpufleet.vllm.plugins.module_utils._preflight import kept, regular
from ansible_collections.gpufleet.vllm.plugins.module_utils._preflight.quick import Glance, quick_checkpoint
from ansible_collections.gpufleet.vllm.tests.unit.plugins.module_utils._preflight.checkpoints import minimax, write


class Looked:
    """A model, a place for what is kept, and how often its headers were read."""

    def __init__(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        config, shards = minimax(scales="F32")
        self.facts: ModelFacts = facts_from_config(config)
        self.model = write(tmp_path / "model", shards, config)
        self.run = tmp_path / "run"
        self.run.mkdir()
        self.readings = 0
        monkeypatch.setattr(kept, "quick_checkpoint", self._read)

    def _read(self, path: str, facts: ModelFacts) -> Glance | None:
        self.readings += 1
        return quick_checkpoint(path, facts)

    def glance(self, remember: bool = True, settled_s: float = 0.0, facts: ModelFacts | None = None) -> Glance | None:
        return kept.glance_at(str(self.model), facts or self.facts, str(self.run), remember, settled_s)


@pytest.fixture
def looked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Looked:
    return Looked(tmp_path, monkeypatch)


def test_the_same_files_are_read_once(looked: Looked) -> None:
    first = looked.glance()
    assert first is not None and looked.glance() == first and looked.glance(remember=False) == first
    assert looked.readings == 1
    assert (looked.run / "checkpoints.json").stat().st_mode & 0o777 == 0o600


def test_in_check_mode_nothing_is_kept(looked: Looked) -> None:
    assert looked.glance(remember=False) is not None and looked.glance(remember=False) is not None
    assert looked.readings == 2 and not list(looked.run.iterdir())


def test_a_host_without_a_place_for_it_gets_none(looked: Looked) -> None:
    looked.run.rmdir()
    assert looked.glance() is not None and not looked.run.exists()


def _rewritten(model: Path) -> None:
    """As long as before, and with the time that it had."""
    shard = model / "model-00001-of-00002.safetensors"
    before = shard.stat()
    with shard.open("rb+") as handle:
        handle.write(handle.read(1))
    os.utime(shard, ns=(before.st_atime_ns, before.st_mtime_ns))


@pytest.mark.parametrize("change", [
    _rewritten,
    lambda model: (model / "model-00002-of-00002.safetensors").unlink(),
    lambda model: (model / "model-00002-of-00002.safetensors.incomplete").touch(),
    lambda model: (model / "consolidated.safetensors").touch(),
    lambda model: (model / "config.json").write_text("{}", encoding="utf-8"),
    lambda model: (model / ".cache/huggingface/download").mkdir(parents=True),
], ids=["rewritten", "gone", "being fetched", "twice", "configured", "downloads"])
def test_other_files_are_read(looked: Looked, change: Callable[[Path], object]) -> None:
    looked.glance()
    change(looked.model)
    assert looked.glance() == quick_checkpoint(str(looked.model), looked.facts) and looked.readings == 2


def test_downloads_that_begin_in_a_directory_that_is_there_are_seen(looked: Looked) -> None:
    (looked.model / ".cache" / "huggingface").mkdir(parents=True)
    assert looked.glance() is not None
    (looked.model / ".cache" / "huggingface" / "download").mkdir()
    assert looked.glance() is None


def test_behind_a_link_it_is_the_file_that_counts(looked: Looked, tmp_path: Path) -> None:
    shard = looked.model / "model-00001-of-00002.safetensors"
    for number in (1, 2):
        (tmp_path / f"blob{number}").write_bytes(shard.read_bytes())
    shard.unlink()
    shard.symlink_to(tmp_path / "blob1")
    looked.glance()
    (tmp_path / "blob2").rename(tmp_path / "blob1")
    looked.glance()
    assert looked.readings == 2


def test_other_facts_or_other_code_read_again(looked: Looked, monkeypatch: pytest.MonkeyPatch) -> None:
    looked.glance()
    looked.glance(facts=facts_from_config({**minimax(scales="F32")[0], "vocab_size": 2000}))
    assert looked.readings == 2
    looked.glance()
    monkeypatch.setattr(kept, "source_of", lambda name: zipapp.source_of(name) + "# mended\n")
    looked.glance()
    assert looked.readings == 4


def test_what_has_just_been_written_may_be_written_again_in_the_same_moment(looked: Looked) -> None:
    assert looked.glance(settled_s=3600.0) is not None
    assert not list(looked.run.iterdir())


@pytest.mark.parametrize("damage", [
    lambda entry: None,
    lambda entry: {"key": entry["key"]},
    lambda entry: {**entry, "checkpoint": []},
    lambda entry: {**entry, "checkpoint": {**entry["checkpoint"], "role_bytes": [1, 2]}},
    lambda entry: {**entry, "checkpoint": {**entry["checkpoint"], "total_bytes": "x"}},
    lambda entry: {**entry, "float32_bytes": 0},
])
def test_what_is_damaged_is_read_again(looked: Looked, damage: Callable[[Any], Any]) -> None:
    first = looked.glance()
    path = looked.run / "checkpoints.json"
    entries = json.loads(path.read_text(encoding="utf-8"))
    entries[str(looked.model)] = damage(entries[str(looked.model)])
    path.write_text(json.dumps(entries), encoding="utf-8")
    assert looked.glance() == first and looked.glance() == first
    assert looked.readings == 2


def test_what_is_put_in_place_while_it_is_read_is_not_taken_for_what_was_there(looked: Looked, monkeypatch: pytest.MonkeyPatch) -> None:
    good = looked.model
    bad = write(good.with_name("bad"), minimax(scales="F32")[1], minimax(scales="F32")[0])
    (bad / "model-00002-of-00002.safetensors").unlink()
    current = good.with_name("current")

    def swapped(path: str, facts: ModelFacts) -> Glance | None:
        current.unlink()
        current.symlink_to(good)
        return quick_checkpoint(path, facts)

    looked.model = current
    current.symlink_to(bad)
    monkeypatch.setattr(kept, "quick_checkpoint", swapped)
    assert looked.glance() is not None
    monkeypatch.undo()
    current.unlink()
    current.symlink_to(bad)
    assert kept.glance_at(str(current), looked.facts, str(looked.run), False, 0.0) is None


def test_each_file_is_opened_to_be_asked(looked: Looked, monkeypatch: pytest.MonkeyPatch) -> None:
    looked.glance()
    opened: list[str] = []

    def open_regular(path: str) -> BinaryIO:
        opened.append(path)
        return regular.open_regular(path)

    monkeypatch.setattr(kept, "open_regular", open_regular)
    looked.glance()
    assert {Path(path).name for path in opened} >= {path.name for path in looked.model.iterdir()}


def test_a_pipe_in_its_place_holds_nobody_up(looked: Looked) -> None:
    os.mkfifo(looked.run / "checkpoints.json")
    assert looked.glance(remember=False) is not None


@pytest.mark.parametrize("text", ["", "{", "[]", "\0"])
def test_neither_does_a_file_that_says_nothing(looked: Looked, text: str) -> None:
    (looked.run / "checkpoints.json").write_text(text, encoding="utf-8")
    assert looked.glance() is not None and looked.glance() is not None
    assert looked.readings == 1


def test_the_models_of_years_do_not_pile_up(looked: Looked, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept, "_MOST", 2)
    first = looked.model
    for name in ("second", "third"):
        looked.glance()
        looked.model = write(first.with_name(name), minimax(scales="F32")[1], minimax(scales="F32")[0])
    looked.glance()
    assert list(json.loads((looked.run / "checkpoints.json").read_text(encoding="utf-8"))) == [
        str(first.with_name(name)) for name in ("second", "third")
    ]


def test_what_is_no_directory_is_not_a_checkpoint(looked: Looked) -> None:
    looked.model = looked.model / "config.json"
    assert looked.glance() is None
