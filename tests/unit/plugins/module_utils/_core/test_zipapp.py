# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a program on the host is packed from is what its code imports, whatever way of finding that out is cheap."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from ansible_collections.gpufleet.vllm.plugins.module_utils._core.zipapp import imports

ROOT = Path(__file__).resolve().parents[5] / "plugins" / "module_utils"
SOURCES = sorted(path for path in ROOT.glob("_*/*.py") if path.name != "__init__.py")


def _parsed(text: str, name: str) -> set[tuple[str, str]]:
    package = name.split(".")[:-1]
    found = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.ImportFrom) and node.level:
            base = package[: len(package) - (node.level - 1)] + (node.module.split(".") if node.module else [])
            found |= {(".".join(base), alias.name) for alias in node.names}
    return found


def test_there_are_sources() -> None:
    assert len(SOURCES) > 80


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_the_text_tells_the_same_imports_as_the_parser(path: Path) -> None:
    name = f"{path.parent.name}.{path.stem}"
    text = path.read_text()
    assert {(base, each) for base, names in imports(text, name) for each in names} == _parsed(text, name)


def test_no_room_has_a_room_inside_and_none_holds_code_of_its_own() -> None:
    assert not list(ROOT.glob("_*/*/__init__.py"))
    for path in ROOT.glob("_*/__init__.py"):
        code = [node for node in ast.parse(path.read_text()).body if not isinstance(node, ast.Expr)]
        assert all(isinstance(node, ast.ImportFrom) and node.module == "__future__" for node in code), f"{path} would be left out"
    for path in SOURCES:
        assert all(base for base, _names in imports(path.read_text(), f"{path.parent.name}.{path.stem}")), f"{path} imports a whole room"


def test_every_form_of_an_import_is_seen() -> None:
    text = (
        "from .errors import A, B  # why\nfrom .._gpu.reader import (\n    C,  # a comment, with a comma\n    D as E,\n)\n"
        "def f():\n    from . import main\n    from .. import _core\n"
    )
    expected = [("_room.errors", ["A", "B"]), ("_gpu.reader", ["C", "D"]), ("_room", ["main"]), ("", ["_core"])]
    assert imports(text, "_room.module") == expected
