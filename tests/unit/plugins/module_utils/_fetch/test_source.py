# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A model from a directory of the host: a mirror, with a record of what it is or without."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from hub.server import Hub

from ansible_collections.gpufleet.vllm.plugins.module_utils._core.errors import GpuFleetError
from ansible_collections.gpufleet.vllm.plugins.module_utils._fetch import source as source_module
from ansible_collections.gpufleet.vllm.plugins.module_utils._fetch.manifest import RECORD

from .conftest import REPO, Place, content


def test_a_mirror_without_a_record_is_copied_with_hashes(place: Place, mirror: Path, hub: Hub) -> None:
    planned = place.ensure(check_mode=True, repo=None, source=str(mirror))
    done = place.ensure(repo=None, source=str(mirror))
    assert done["changed"] and done["actions"] == planned["actions"]
    wanted = {name: data for name, data in content().items() if not name.startswith(".")}
    assert place.files() == wanted and hub.requests == []
    shutil.rmtree(mirror)
    assert not place.ensure(repo=None, source=str(mirror), verify="full")["changed"]


def test_a_mirror_with_a_record_is_held_against_it(place: Place, mirror: Path) -> None:
    place.ensure()
    shutil.copy(place.path / RECORD, mirror)
    copied = place.root / "copied"
    done = place.ensure(path=str(copied), source=str(mirror))
    assert done["changed"] and done["commit"] == place.hub.models[REPO].head
    with pytest.raises(GpuFleetError, match=r"has tests/tiny at .*, not tests/other"):
        place.ensure(path=str(place.root / "other"), repo="tests/other", source=str(mirror))
    (mirror / "config.json").write_bytes(b"x" * len(content()["config.json"]))
    with pytest.raises(GpuFleetError) as failed:
        place.ensure(path=str(place.root / "bad"), source=str(mirror))
    assert failed.value.result["kind"] == "hash_mismatch" and not (place.root / "bad").exists()


def test_a_mirror_without_a_record_is_no_repository(place: Place, mirror: Path) -> None:
    """Whatever lies there would be recorded, and told ever after, as what was asked for."""
    for check_mode in (True, False):
        with pytest.raises(GpuFleetError, match="nothing proves that it is tests/tiny. Leave repo and revision out") as failed:
            place.ensure(check_mode=check_mode, source=str(mirror))
        assert failed.value.result["kind"] == "unproven" and not place.path.exists()


def test_a_model_is_no_source_of_itself(place: Place, mirror: Path) -> None:
    link = place.root / "link"
    link.symlink_to(mirror)
    for source in (mirror, link):
        with pytest.raises(GpuFleetError, match="source is path itself, .*Leave source out"):
            place.ensure(repo=None, path=str(mirror), source=str(source))


def test_no_mirror_is_told(place: Place, tmp_path: Path) -> None:
    with pytest.raises(GpuFleetError, match="is no directory on this host"):
        place.ensure(repo=None, source=str(tmp_path / "none"))
    (tmp_path / "empty").mkdir()
    with pytest.raises(GpuFleetError, match="has no files in it"):
        place.ensure(repo=None, source=str(tmp_path / "empty"))
    assert place.names == []


def test_a_disk_that_garbles_is_noticed(place: Place, mirror: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = source_module._copy

    def garble(source: str, target: str) -> str:
        said = real(source, target)
        with open(target, "r+b") as handle:
            handle.write(b"\0")
        return said

    monkeypatch.setattr(source_module, "_copy", garble)
    with pytest.raises(GpuFleetError) as failed:
        place.ensure(repo=None, source=str(mirror))
    assert failed.value.result["kind"] == "hash_mismatch" and not place.path.exists()
