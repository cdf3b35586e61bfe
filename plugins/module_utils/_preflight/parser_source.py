# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The arguments that ``vllm serve`` knows, read out of vLLM's own source without importing it.

An import takes ten seconds and a working driver. The source says the same: nearly every argument is added by its literal name
(``add_argument("--max-model-len", ...)``), and those of the front end are the fields of one class (``FrontendArgs``).
"""

from __future__ import annotations

import ast
import glob
import os
from typing import FrozenSet, List, Optional, Set

from .regular import open_regular

# Fewer than this, and the source is not laid out as it was in any version seen (0.8 to 0.33 have 150 to 320).
_FEWEST = 80
# Each of these stands in every version; without one of them the reading missed something.
_LANDMARKS = frozenset(["tensor_parallel_size", "max_model_len", "gpu_memory_utilization", "max_num_seqs", "port", "chat_template"])
_LIMIT = 2 << 20


def arguments_of_source(package: str) -> Optional[FrozenSet[str]]:
    """The long names in underscore form, without the ``no_`` forms; None where the source can't be read for all of them."""
    names: Set[str] = set()
    for path in _files(package):
        tree = _parsed(path)
        if tree is not None:
            names |= _literal_names(tree) | _front_end_fields(tree)
    if len(names) < _FEWEST or not _LANDMARKS <= names:
        return None
    return frozenset(names)


def _files(package: str) -> List[str]:
    place = glob.escape(package)
    found = [os.path.join(package, "engine", "arg_utils.py"), os.path.join(package, "entrypoints", "cli", "serve.py")]
    for depth in ("*", "*/*"):
        # It moved from entrypoints/openai to entrypoints/launchers and may move again.
        found += sorted(glob.glob(os.path.join(place, "entrypoints", depth, "cli_args.py")))
    return [path for path in found if os.path.isfile(path)]


def _parsed(path: str) -> Optional[ast.Module]:
    try:
        with open_regular(path) as handle:
            return ast.parse(handle.read(_LIMIT))
    except (OSError, SyntaxError, ValueError, RecursionError):
        # Also for syntax that is newer than the host's own Python: then the command itself has to be asked.
        return None


def _literal_names(tree: ast.Module) -> Set[str]:
    found: Set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "add_argument":
            for word in node.args:
                if isinstance(word, ast.Constant) and isinstance(word.value, str) and word.value.startswith("--"):
                    found.add(word.value[2:].replace("-", "_"))
    return found


def _front_end_fields(tree: ast.Module) -> Set[str]:
    found: Set[str] = set()
    for node in tree.body:
        if isinstance(node, ast.ClassDef) and node.name.endswith("FrontendArgs"):
            for line in node.body:
                if isinstance(line, ast.AnnAssign) and isinstance(line.target, ast.Name) and not line.target.id.startswith("_"):
                    found.add(line.target.id)
    return found
