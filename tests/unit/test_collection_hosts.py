# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What runs on managed hosts: Python 3.9, its standard library, and the rooms' one direction of imports."""

from __future__ import annotations

import ast
import sys
from pathlib import Path
from typing import Iterator, List, Tuple

import pytest
from pages.code_map import rooms

from .conftest import ROOT, Collection

UTILS = "ansible_collections.gpufleet.vllm.plugins.module_utils."
HOST_FILES = Collection().files("plugins/modules/*.py") + Collection().files("plugins/module_utils/**/*.py")
# Not in Python 3.9, though in this interpreter's standard library.
NEWER = {"tomllib"}
# Used where it is there; never needed.
OPTIONAL = {"pynvml"}
EVERY_ROOM = {path.name for path in Collection().files("plugins/module_utils/_*")}


def imports(path: Path) -> Iterator[Tuple[int, str]]:
    """Line and full name of everything that a file imports, relative imports resolved."""
    package = path.relative_to(ROOT).with_suffix("").parts[:-1]
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, alias.name
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                parts = package[: len(package) - (node.level - 1)]
                base = "ansible_collections.gpufleet.vllm." + ".".join([*parts, *([base] if base else [])])
            if not node.module:  # from .. import _gpu
                for alias in node.names:
                    yield node.lineno, base + "." + alias.name
            else:
                yield node.lineno, base


def problems_of(path: Path) -> List[str]:
    """What in a file would not work on a host."""
    name = path.relative_to(ROOT)
    text = path.read_text(encoding="utf-8")
    found = []
    try:
        tree = ast.parse(text, feature_version=(3, 9))
    except SyntaxError as exc:
        return ["%s:%s: not Python 3.9: %s" % (name, exc.lineno, exc.msg)]
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and getattr(node.func, "id", getattr(node.func, "attr", "")) == "dataclass":
            newer = {keyword.arg for keyword in node.keywords} & {"slots", "kw_only", "weakref_slot"}
            found += ["%s:%d: dataclass(%s=) is newer than 3.9" % (name, node.lineno, word) for word in newer]
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "zip" and node.keywords:
            found.append("%s:%d: zip(strict=) is newer than 3.9" % (name, node.lineno))
    if text.strip() and tree.body and not any(isinstance(node, ast.ImportFrom) and node.module == "__future__" for node in tree.body):
        found.append("%s: lacks `from __future__ import annotations`" % name)
    return found


def test_there_is_something_to_check() -> None:
    assert len(HOST_FILES) > 20
    assert {"_core", "_gpu", "_process", "_reclaim", "_service", "_systemd", "_unit"} <= EVERY_ROOM


@pytest.mark.parametrize("path", HOST_FILES, ids=lambda path: str(path.relative_to(ROOT / "plugins")))
def test_it_is_python_39(path: Path) -> None:
    assert problems_of(path) == []


@pytest.mark.parametrize("path", HOST_FILES, ids=lambda path: str(path.relative_to(ROOT / "plugins")))
def test_it_needs_no_package_on_the_host(path: Path) -> None:
    is_module = path.parent.name == "modules"
    foreign = []
    for line, name in imports(path):
        top = name.split(".")[0]
        ours = name.startswith(UTILS) or (is_module and name.startswith("ansible.module_utils."))
        if not ours and (top not in sys.stdlib_module_names | OPTIONAL or top in NEWER):
            foreign.append("%s:%d: %s" % (path.name, line, name))
    assert foreign == []


@pytest.mark.parametrize("room", sorted(EVERY_ROOM))
def test_arrows_between_rooms_point_one_way(room: str) -> None:
    allowed = {room} | rooms()[room]  # as docs/design.md has it
    crossed = []
    for path in Collection().files("plugins/module_utils/%s/**/*.py" % room):
        for line, name in imports(path):
            if name.startswith(UTILS) and name[len(UTILS) :].split(".")[0] not in allowed:
                crossed.append("%s/%s:%d: %s" % (room, path.name, line, name[len(UTILS) :]))
    assert crossed == []


def test_the_checks_see_what_they_are_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules[__name__], "ROOT", tmp_path)
    bad = tmp_path / "plugins" / "module_utils" / "_gpu" / "bad.py"
    bad.parent.mkdir(parents=True)
    bad.write_text("from dataclasses import dataclass\nfrom .._service import run\nfrom . import types\n"
                   "@dataclass(slots=True)\nclass A: ...\nzip([], [], strict=True)\n", encoding="utf-8")  # fmt: skip
    assert len(problems_of(bad)) == 3
    assert [name[len(UTILS) :] for line, name in imports(bad)][1:] == ["_service", "_gpu.types"]
    bad.write_text("match 1:\n    case 1: ...\n", encoding="utf-8")
    assert "not Python 3.9" in problems_of(bad)[0]
