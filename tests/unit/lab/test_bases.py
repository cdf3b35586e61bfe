# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A base is there whole or not at all."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from lab import bases, wheels
from lab.errors import LabError
from lab.recipe import Recipe


@pytest.fixture(autouse=True)
def without_network(monkeypatch: pytest.MonkeyPatch) -> None:
    """The steps that need root or a network do next to nothing here."""
    monkeypatch.setattr(wheels, "fetch", lambda requirement, python, cache: cache / requirement)
    monkeypatch.setattr(bases, "_configure", lambda wanted, root: None)
    monkeypatch.setattr(bases, "_add_python", lambda wanted, root, fetched: None)


def test_a_base_is_built_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    built: list[str] = []

    def debootstrap(wanted: Recipe, root: Path, cache: Path) -> None:
        root.mkdir()
        (root / "etc").mkdir()
        built.append(wanted.suite)

    monkeypatch.setattr(bases, "_debootstrap", debootstrap)
    said: list[str] = []
    found: list[Path] = []
    threads = [
        threading.Thread(target=lambda: found.append(bases.ensure("bookworm", tmp_path, said.append))) for each in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert built == ["bookworm"]
    assert len(said) == 1 and "building the base bookworm" in said[0]
    assert set(found) == {bases.base_path("bookworm", tmp_path)}
    assert (found[0] / "etc").is_dir()


def test_a_build_that_fails_leaves_no_base_and_is_done_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(wanted: Recipe, root: Path, cache: Path) -> None:
        root.mkdir()
        (root / "half").touch()
        raise LabError("no mirror")

    monkeypatch.setattr(bases, "_debootstrap", fails)
    with pytest.raises(LabError, match="no mirror"):
        bases.ensure("trixie", tmp_path, lambda text: None)
    assert not bases.base_path("trixie", tmp_path).exists()

    monkeypatch.setattr(bases, "_debootstrap", lambda wanted, root, cache: root.mkdir())
    path = bases.ensure("trixie", tmp_path, lambda text: None)
    assert list(path.parent.iterdir()) == [path]
    assert not (path / "half").exists()
