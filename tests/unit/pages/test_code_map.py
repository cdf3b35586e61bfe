# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The map of the code is true: what it names is there, and no room or directory is missing from it."""

from __future__ import annotations

from pathlib import Path

import pytest
import tree
from pages.blocks import ROOT, name_of
from pages.code_map import DRAWN, is_there, places, rooms

TRACKED = tree.tracked_files()


def directories(below: str) -> set[str]:
    """The directories right below one, of files that git knows. Names that begin with a dot are tools'."""
    inner = [name[len(below) :].split("/") for name in TRACKED if name.startswith(below)]
    return {parts[0] for parts in inner if len(parts) > 1 and not parts[0].startswith(".")}


def named(*pages: Path) -> set[str]:
    return {text.rstrip("/") for page in pages for _place, text in places(page)}


@pytest.mark.parametrize("page", DRAWN, ids=name_of)
def test_what_the_map_names_is_there(page: Path) -> None:
    assert [(place, path) for place, path in places(page) if not is_there(path)] == []


def test_every_room_is_on_the_map_and_no_other() -> None:
    assert set(rooms()) == directories("plugins/module_utils/")
    strangers = {other for allowed in rooms().values() for other in allowed} - set(rooms())
    assert strangers == set()


def test_every_directory_is_on_the_map() -> None:
    # Links count for git, but are no files of the tree: collections/ holds nothing else.
    assert directories("") | {"collections"} <= {path.split("/")[0] for path in named(ROOT / "CONTRIBUTING.md")}
    assert {"plugins/" + name for name in directories("plugins/")} <= named(ROOT / "CONTRIBUTING.md")
    assert {"tests/" + name for name in directories("tests/")} <= named(ROOT / "docs" / "design.md")


def test_the_map_is_read_as_it_is_drawn() -> None:
    assert rooms()["_core"] == frozenset()
    assert rooms()["_reclaim"] == {"_core", "_gpu", "_process", "_systemd", "_guard"}
    assert rooms()["_service"] == set(rooms()) - {"_service", "_job", "_benchmark", "_borrow", "_status"}
    assert is_there("plugins/module_utils/_*/") and is_there("_service/run.py") and not is_there("_nothing/")
    assert len(places(ROOT / "docs" / "design.md")) > 40
