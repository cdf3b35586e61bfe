# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The messages that end a task or a play, as the code has them: gathered from whatever raises, fails or refuses."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from typing import NamedTuple

import made
import yaml
from tree import ROOT, tracked_files

# What a value is replaced by, in the messages here and in the table of the pages.
GAP = "…"
# Errors whose text reaches a person as the message of a task. Others are caught, and put in words by one of these.
TOLD = {
    "GpuFleetError", "ServerError", "NoAnswer", "NotReady", "Interrupted", "AnsibleActionFail", "AnsibleError", "AnsibleFilterError",
    "AnsibleConnectionFailure", "ReportError", "SelectError", "BaselineError", "JobLost", "fail_json",
}  # fmt: skip


# Files in which the problems of an entry of the catalogue are put in words, and what is put before those of one key.
CATALOGUE = {
    "plugins/module_utils/_catalogue/values.py": "vllm_models[…].… ",
    "plugins/module_utils/_catalogue/resolve.py": "",
    "plugins/action/vllm_catalogue.py": "",
}
# What is more than a few values side by side.
WORDS = re.compile(r"[A-Za-z]{3}")
# Tables of messages by kind, by the name that ends with this.
TABLE = "_MESSAGES"


class Message(NamedTuple):
    """One message. ``place`` is the file and line that holds it; values are gaps."""

    place: str
    text: str


def gaps(text: str) -> str:
    """A text to be formatted, with gaps for its values."""
    return re.sub(r"%(?:\(\w+\))?[-+ #0]*[\d.]*[sdrfgiX]", GAP, text).replace("%%", "%")


# Texts that the file at hand has a name for, and puts into several messages.
_named: dict[str, str] = {}


def _parsed(name: str) -> ast.Module:
    tree = ast.parse((ROOT / name).read_text(encoding="utf-8"))
    _named.clear()
    for node in tree.body:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name) and isinstance(node.value, ast.Constant):
            _named[node.targets[0].id] = str(node.value.value)
    return tree


def template(node: ast.expr | None) -> str | None:
    """A message's text with gaps for its values, None where it is made elsewhere."""
    if isinstance(node, ast.Name):
        return _named.get(node.id)
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mod):
        left = template(node.left)
        return None if left is None else gaps(left)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        sides = template(node.left), template(node.right)
        return None if sides == (None, None) else "".join(GAP if side is None else side for side in sides)
    if isinstance(node, ast.JoinedStr):
        return "".join(str(part.value) if isinstance(part, ast.Constant) else GAP for part in node.values)
    return None


def _calls(tree: ast.AST) -> Iterator[ast.Call]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            if name in TOLD:
                yield node


def _of_catalogue(tree: ast.AST) -> Iterator[ast.expr]:
    """What is raised for a key, returned as a list of problems, or added to one."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call) and getattr(node.exc.func, "id", "") == "ValueError":
            yield node.exc.args[0]
        elif isinstance(node, ast.Return):
            lists = node.value.elts[:1] if isinstance(node.value, ast.Tuple) else [node.value]
            yield from (element for each in lists if isinstance(each, ast.List) for element in each.elts)
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "append":
            yield from node.args


def _of_tables(tree: ast.Module) -> Iterator[ast.expr]:
    for node in tree.body:
        if isinstance(node, (ast.Assign, ast.AnnAssign)) and isinstance(node.value, ast.Dict):
            target = node.target if isinstance(node, ast.AnnAssign) else node.targets[0]
            if isinstance(target, ast.Name) and target.id.endswith(TABLE):
                yield from node.value.values


def _of_code(tree: ast.Module) -> Iterator[tuple[int, ast.expr | None]]:
    yield from ((node.lineno, node) for node in _of_tables(tree))
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
    for call in _calls(tree):
        named = [keyword.value for keyword in call.keywords if keyword.arg == "msg"]
        said = call.args[0] if call.args else named[0] if named else None
        # The innermost one: functions are walked from the outside to the inside.
        around = [node for node in functions if node.lineno <= call.lineno <= (node.end_lineno or 0)]
        if said is None or not around:
            yield call.lineno, said
        else:
            yield from ((call.lineno, each) for each in made.kept(around[-1], said))


def _made(name: str, tree: ast.Module) -> Iterator[Message]:
    """What functions give back for a message, and what is put into results."""
    texts = [(line, before, template(node)) for before, line, node in made.made(tree, made.MADE.get(name, {}))]
    texts += [(line, "", template(node)) for line, node in made.in_results(tree, TOLD)]
    # What makes faults of a request for a playbook is met there, and not by whoever uses a filter in a play of his own.
    place = "playbooks/, from " + name if re.match(r"plugins/(plugin_utils|filter)/", name) else name
    frames = {before + GAP for before in made.MADE.get(name, {}).values()}  # into which another of the functions puts its words
    for line, before, text in texts:
        if text is not None and WORDS.search(text) and gaps(text) not in frames:
            yield Message("%s:%d" % (place, line), before + gaps(text).strip())


def of_plugins() -> tuple[list[Message], list[str]]:
    """The messages in plugins/, and the places whose message is made elsewhere."""
    found, elsewhere = [], []
    for name in sorted(name for name in tracked_files() if name.startswith("plugins/") and name.endswith(".py")):
        tree = _parsed(name)
        if name in CATALOGUE:
            texts = [template(node) for node in _of_catalogue(tree)]
            found += [Message(name, CATALOGUE[name] + text) for text in texts if text and WORDS.search(text)]
        found += _made(name, tree)
        for line, node in _of_code(tree):
            place = "%s:%d" % (name, line)
            choices = [node.body, node.orelse] if isinstance(node, ast.IfExp) else [node]
            for choice in choices:
                text = template(choice)
                if text is None or not WORDS.search(text):
                    elsewhere.append(place)
                else:
                    found.append(Message(place, gaps(text)))
    return found, elsewhere


def of_plays() -> list[Message]:
    """What the tasks of playbooks and roles fail with; templates are gaps."""
    found = []
    for name in sorted(name for name in tracked_files() if re.match(r"playbooks/(tasks/)?\w+\.yml|roles/\w+/tasks/", name)):
        for text in _failures(yaml.safe_load((ROOT / name).read_text(encoding="utf-8"))):
            words = re.sub(r"\{\{.*?\}\}", GAP, text, flags=re.S).strip()
            if WORDS.search(words):
                found.append(Message(name, words))
    return found


def _failures(node: object) -> Iterator[str]:
    if isinstance(node, list):
        for item in node:
            yield from _failures(item)
    elif isinstance(node, dict):
        for action, key in (("ansible.builtin.fail", "msg"), ("ansible.builtin.assert", "fail_msg")):
            if action in node:
                yield str(node[action][key])
        for value in node.values():
            yield from _failures(value)
