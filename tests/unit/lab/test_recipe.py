# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Recipes of bases, and the wheels that go into them."""

from __future__ import annotations

import dataclasses
import zipfile
from pathlib import Path

import pytest

from lab import bases, locks, recipe, wheels
from lab.errors import LabError
from lab.plan import BASES


def test_every_change_gives_another_key() -> None:
    one = recipe.recipe("bookworm")
    assert one.key() == recipe.recipe("bookworm").key()
    assert one.key() != recipe.recipe("trixie").key()
    assert one.key() != dataclasses.replace(one, packages=(*one.packages, "less")).key()
    assert one.key() != dataclasses.replace(one, wheels=()).key()


@pytest.mark.parametrize("base", BASES)
def test_bases_have_no_python_packages_of_their_own(base: str) -> None:
    packages = recipe.recipe(base).packages
    assert [name for name in packages if name.startswith("python3")] == ["python3"]


def test_wheels_are_pinned() -> None:
    pinned = recipe.pinned_wheels()
    assert {wheels.distribution(requirement) for requirement in pinned} == {"pyyaml", "setproctitle", "nvidia_ml_py"}
    assert all("==" in requirement for requirement in pinned)


def test_where_wheels_go() -> None:
    assert bases.site_directory("nvidia-ml-py==1", "python3.11") == "usr/local/lib/python3.11/dist-packages"
    assert bases.site_directory("PyYAML==1", "python3.13") == "opt/vllm/lib/python3.13/site-packages"


def wheel(path: Path, *names: str) -> Path:
    with zipfile.ZipFile(path, "w") as archive:
        for name in names:
            archive.writestr(name, "x = 1\n")
    return path


def test_a_wheel_in_the_cache_is_not_fetched_again(tmp_path: Path) -> None:
    (tmp_path / "wheels").mkdir()
    for name in (
        "pyyaml-6.0.3-cp313-cp313-manylinux2014_x86_64.whl",
        "pyyaml-6.0.3-cp311-cp311-manylinux2014_x86_64.whl",
    ):
        wheel(tmp_path / "wheels" / name, "yaml/__init__.py")
    pure = wheel(tmp_path / "wheels/nvidia_ml_py-1.2-py3-none-any.whl", "pynvml.py")
    assert wheels.fetch("PyYAML==6.0.3", "3.11", tmp_path).name.split("-")[2] == "cp311"
    assert wheels.fetch("nvidia-ml-py==1.2", "3.13", tmp_path) == pure


def test_unpacking(tmp_path: Path) -> None:
    wheels.unpack(wheel(tmp_path / "a-1-py3-none-any.whl", "a/b.py", "a-1.dist-info/RECORD"), tmp_path / "site")
    assert (tmp_path / "site/a/b.py").read_text(encoding="utf-8") == "x = 1\n"


@pytest.mark.parametrize("name", ["../evil.py", "/evil.py", "a-1.data/scripts/run"])
def test_wheels_that_need_more_than_unpacking(tmp_path: Path, name: str) -> None:
    with pytest.raises(LabError, match="need an installer"):
        wheels.unpack(wheel(tmp_path / "a-1-py3-none-any.whl", name), tmp_path / "site")
    assert not list((tmp_path / "site").iterdir())


def test_a_lock_that_is_held_names_who_is_waited_for(tmp_path: Path) -> None:
    with (
        locks.exclusive(tmp_path / "lock", 1, "somebody"),
        pytest.raises(LabError, match="waited too long for a build to finish"),
        locks.exclusive(tmp_path / "lock", 0.1, "a build"),
    ):
        pytest.fail("held twice")


def test_a_lock_whose_file_is_removed_meanwhile(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    with locks.exclusive(path, 1, "somebody"):
        path.unlink()
        with locks.exclusive(path, 1, "another"):
            assert path.exists()
