# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Messages that are not written where a task is failed with them: made by a function, kept in a variable, put into a result."""

from __future__ import annotations

import ast
from collections.abc import Iterator

# The functions, and the names of a file, whose texts reach a person as (a part of) a message; with what is put before them.
MADE: dict[str, dict[str, str]] = {
    "plugins/filter/swap_results.py": {"_LOST": "… ", "_NEVER_REACHED": "… ", "_STAYS_OUT": "", "_HALF_OUT": ""},
    "plugins/module_utils/_benchmark/run.py": {"summary": ""},
    "plugins/module_utils/_catalogue/strays.py": {"strays": ""},
    "plugins/module_utils/_core/host_lock.py": {"busy_message": ""},
    "plugins/module_utils/_reclaim/left.py": {"failure_message": ""},
    "plugins/module_utils/_reclaim/request.py": {"faults_of": "", "_no_user": "… in `users` ", "_protects_nobody": "… in `protect` "},
    "plugins/module_utils/_service/checks.py": {"refusal": ""},
    "plugins/module_utils/_service/ready.py": {"_crash": "… "},
    "plugins/module_utils/_systemd/manager.py": {"available": ""},
    "plugins/plugin_utils/_borrow.py": {"faults": "", "_faults_of": ""},
    "plugins/plugin_utils/_cleanup.py": {"faults_of_variables": "", "faults_of_names": "", "_said": ""},
    "plugins/plugin_utils/_entry_slips.py": {"_sentence": ""},
    "plugins/plugin_utils/_filter_benchmark_faults.py": {"benchmark_faults": ""},
    "plugins/plugin_utils/_hooks.py": {"_faults_of": "`…`: ", "_tasks": "`…`: …: "},
    "plugins/plugin_utils/_names.py": {"unknown": "", "_did_you_mean": ""},
}


def made(tree: ast.Module, names: dict[str, str]) -> Iterator[tuple[str, int, ast.expr]]:
    """(what is put before it, line, expression) of each text that these functions and names of a file give. KeyError for a stranger."""
    there = dict(_defined(tree))
    for name, before in names.items():
        for node in _texts(there[name]):
            yield before, node.lineno, node


def _defined(tree: ast.Module) -> Iterator[tuple[str, ast.AST]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef):
            yield node.name, node
    for node in tree.body:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            yield node.targets[0].id, node.value


def _texts(of: ast.AST) -> Iterator[ast.expr]:
    """What a function returns, yields, or puts into a list; of a name, its value."""
    if isinstance(of, ast.expr):
        yield of
        return
    for node in ast.walk(of):
        if isinstance(node, (ast.Return, ast.Yield)) and node.value is not None:
            yield from _parts(node.value)
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "append":
            yield from _parts(node.args[0])
        elif isinstance(node, (ast.Assign, ast.AnnAssign, ast.AugAssign)) and node.value is not None and _lists(node):
            yield from _parts(node.value)


def _lists(node: ast.Assign | ast.AnnAssign | ast.AugAssign) -> bool:
    """Whether a list is made or added to, or one of its places is given: a text in a variable may be anything."""
    target = node.targets[0] if isinstance(node, ast.Assign) else node.target
    return isinstance(target, ast.Subscript) or any(isinstance(each, (ast.List, ast.ListComp)) for each in _sides(node.value))


def _sides(node: ast.expr | None) -> Iterator[ast.expr]:
    """The operands of a sum, the branches of a choice; else the expression itself."""
    if isinstance(node, ast.IfExp):
        yield from _sides(node.body)
        yield from _sides(node.orelse)
    elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add) and any(isinstance(s, (ast.List, ast.ListComp)) for s in _ends(node)):
        yield from _sides(node.left)
        yield from _sides(node.right)
    elif node is not None:
        yield node


def _ends(node: ast.expr) -> Iterator[ast.expr]:
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        yield from _ends(node.left)
        yield from _ends(node.right)
    elif isinstance(node, ast.IfExp):
        yield from _ends(node.body)
        yield from _ends(node.orelse)
    else:
        yield node


def _parts(node: ast.expr) -> Iterator[ast.expr]:
    for side in _sides(node):
        if isinstance(side, ast.List):
            for element in side.elts:
                yield from _sides(element)
        elif isinstance(side, ast.ListComp):
            yield from _sides(side.elt)
        else:
            yield side


def in_results(tree: ast.Module, told: set[str]) -> Iterator[tuple[int, ast.expr]]:
    """What is put into a result as its ``msg``, by whatever is no call of ``told``."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and getattr(node.func, "attr", getattr(node.func, "id", "")) not in told:
            yield from ((node.lineno, keyword.value) for keyword in node.keywords if keyword.arg == "msg")
        elif isinstance(node, ast.Dict):
            for key, value in zip(node.keys, node.values, strict=True):
                if isinstance(key, ast.Constant) and key.value == "msg":
                    yield node.lineno, value


def kept(function: ast.AST, node: ast.expr) -> Iterator[ast.expr]:
    """What a variable of a function was given, where a message is made of it; else the expression itself."""
    name = node.left if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mod) else node
    given = [] if not isinstance(name, ast.Name) else [
        each.value for each in ast.walk(function)
        if isinstance(each, ast.Assign) and isinstance(each.targets[0], ast.Name) and each.targets[0].id == name.id
    ]  # fmt: skip
    if given:
        for value in given:
            yield from _sides(value)
    else:
        yield node
