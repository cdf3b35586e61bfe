# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The guard as one executable file, made of the very sources that the modules run.

The sources come from whatever loader imported them, so that this works in a checkout, an installed collection, and the
payload that Ansible sends to a host (a zip file itself). What goes in is found by following the relative imports from
``main``. The result depends on the sources alone: byte for byte the same on every host.
"""

from __future__ import annotations

import ast
import io
import zipfile
from importlib.util import find_spec
from typing import Dict, List, Tuple

from .._core.errors import GpuFleetError

# Not used here, but imported: what Ansible sends to a host is what is imported.
from . import main as _main

_SHEBANG = b"#!/usr/bin/python3\n"
_PACKAGE = "gpufleet_guard"
_START = '''import sys

from %s._guard.main import main

sys.exit(main(sys.argv[1:]))
'''
_EPOCH = (1980, 1, 1, 0, 0, 0)


def build_guard() -> bytes:
    """The zipapp's bytes. Raises GpuFleetError when a source can't be had (bytecode-only installations)."""
    root = _main.__name__.rsplit(".", 2)[0]
    files = {"%s/%s.py" % (_PACKAGE, name.replace(".", "/")): text for name, text in _closure(root, "_guard.main").items()}
    for name in list(files):
        parts = name.split("/")[:-1]
        for depth in range(1, len(parts) + 1):
            files.setdefault("/".join(parts[:depth]) + "/__init__.py", "")
    files["__main__.py"] = _START % _PACKAGE
    buffer = io.BytesIO()
    buffer.write(_SHEBANG)
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_STORED) as archive:
        for name in sorted(files):
            entry = zipfile.ZipInfo(name, _EPOCH)
            entry.create_system = 3
            entry.external_attr = 0o100644 << 16
            archive.writestr(entry, files[name].encode("utf-8"))
    return buffer.getvalue()


def _closure(root: str, first: str) -> Dict[str, str]:
    """Sources by module name relative to ``root``: ``first`` and everything that it imports relatively."""
    found: Dict[str, str] = {}
    waiting = [first]
    while waiting:
        name = waiting.pop()
        if name in found:
            continue
        found[name] = _source("%s.%s" % (root, name))
        for base, names in _imports(found[name], name):
            waiting += [base] if not _is_package("%s.%s" % (root, base)) else ["%s.%s" % (base, each) for each in names]
    return found


def _is_package(name: str) -> bool:
    spec = find_spec(name)
    return spec is not None and spec.submodule_search_locations is not None


def _source(name: str) -> str:
    spec = find_spec(name)
    get_source = getattr(spec.loader, "get_source", None) if spec is not None else None
    text = get_source(name) if get_source is not None else None
    if text is None:
        raise GpuFleetError(
            "The source of %s can't be read, and the guard is built from it. Install the collection with its .py files." % name
        )
    return str(text)


def _imports(text: str, name: str) -> List[Tuple[str, List[str]]]:
    """A module's relative imports: (what is imported from, relative to the root; the names)."""
    package = name.split(".")[:-1]
    found: List[Tuple[str, List[str]]] = []
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.ImportFrom) and node.level:
            base = package[: len(package) - (node.level - 1)] + (node.module.split(".") if node.module else [])
            found.append((".".join(base), [alias.name for alias in node.names]))
    return found
