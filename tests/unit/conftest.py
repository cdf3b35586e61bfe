# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the unit tests of the collection as a whole read."""

from __future__ import annotations

import ast
import subprocess
from pathlib import Path
from typing import Any, Dict, List

import pytest
import yaml

ROOT = Path(__file__).resolve().parent.parent.parent


class Collection:
    """The checkout, read as files: nothing of it is imported."""

    root = ROOT

    def files(self, pattern: str) -> List[Path]:
        """Files of the checkout that match a glob, in order."""
        return sorted(path for path in self.root.glob(pattern) if "__pycache__" not in path.parts)

    def tracked(self) -> List[str]:
        """The files that git tracks, as paths from the root."""
        done = subprocess.run(["git", "ls-files", "-z"], cwd=self.root, capture_output=True, text=True, check=True)
        return [name for name in done.stdout.split("\0") if name and (self.root / name).exists()]

    def yaml(self, name: str) -> Any:
        """A YAML file's content."""
        return yaml.safe_load((self.root / name).read_text(encoding="utf-8"))

    def modules(self) -> List[str]:
        """The modules' names."""
        return [path.stem for path in self.files("plugins/modules/*.py") if path.stem != "__init__"]

    def roles(self) -> List[str]:
        """The roles' names."""
        return [path.name for path in self.files("roles/*") if path.is_dir()]

    def module_block(self, module: str, name: str) -> Any:
        """DOCUMENTATION, EXAMPLES or RETURN of a module, parsed."""
        return yaml.safe_load(self.constant(self.root / "plugins" / "modules" / (module + ".py"), name))

    def attributes(self, module: str) -> Dict[str, Dict[str, Any]]:
        """A module's attributes, with what it takes over from the collection's fragments."""
        documentation = self.module_block(module, "DOCUMENTATION")
        merged: Dict[str, Dict[str, Any]] = {}
        sources = [documentation.get("attributes") or {}]
        for fragment in documentation.get("extends_documentation_fragment", []):
            if fragment.startswith("gpufleet.vllm."):
                name, *part = fragment.split(".")[2:]
                path = self.root / "plugins" / "doc_fragments" / (name + ".py")
                text = self.constant(path, part[0].upper() if part else "DOCUMENTATION")
                sources.insert(0, yaml.safe_load(text)["attributes"])
        for source in sources:
            for attribute, value in source.items():
                merged.setdefault(attribute, {}).update(value)
        return merged

    @staticmethod
    def constant(path: Path, name: str) -> str:
        """A string that a Python file assigns to a name, at its top level or in a class."""
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Assign) and [getattr(target, "id", None) for target in node.targets] == [name]:
                return str(ast.literal_eval(node.value))
        raise AssertionError("%s does not define %s" % (path, name))


@pytest.fixture(scope="session")
def collection() -> Collection:
    """The checkout as files."""
    return Collection()
