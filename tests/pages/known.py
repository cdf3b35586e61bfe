# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What there is to be named in an example: playbooks and their variables, roles, modules, their options, targets of make."""

from __future__ import annotations

import ast
import re
from functools import cache
from typing import Any

import yaml

from docs import playbook_page

from .blocks import ROOT

NAMESPACE = "gpufleet.vllm."


@cache
def playbooks() -> dict[str, frozenset[str]]:
    """The variables of each playbook: those that the comment at its head lists, and those of the roles that it runs."""
    found = {}
    for path in sorted((ROOT / "playbooks").glob("*.yml")):
        text = path.read_text(encoding="utf-8")
        own = re.findall(r"^\| `(\w+)` \|", playbook_page(path.stem, text), re.M)
        names = {*own, "vllm_models", *re.findall(r"\bgpufleet_\w+", text)}
        for role in set(re.findall(r"name: gpufleet\.vllm\.(\w+)", text)) & set(roles()):
            names |= roles()[role]
        names |= {name for name in re.findall(r"\b\w+", text) if name in _of_roles()}
        found[path.stem] = frozenset(names)
    return found


@cache
def roles() -> dict[str, frozenset[str]]:
    """The variables of each role, with the one that holds its result."""
    found = {}
    for path in sorted((ROOT / "roles").glob("*/meta/argument_specs.yml")):
        role = path.parent.parent.name
        specs = yaml.safe_load(path.read_text(encoding="utf-8"))["argument_specs"]
        found[role] = frozenset({name for spec in specs.values() for name in spec["options"]} | {role + "_result"})
    return found


@cache
def _of_roles() -> frozenset[str]:
    return frozenset().union(*roles().values())


@cache
def options_of_modules() -> dict[str, dict[str, Any]]:
    """The options of each module, with what they take."""
    return {path.stem: _documentation(path.read_text(encoding="utf-8"))["options"] for path in _sources()}


@cache
def options_of_roles() -> dict[str, Any]:
    """The variables of all roles, with what they take."""
    found: dict[str, Any] = {}
    for path in sorted((ROOT / "roles").glob("*/meta/argument_specs.yml")):
        for spec in yaml.safe_load(path.read_text(encoding="utf-8"))["argument_specs"].values():
            found.update(spec["options"])
    return found


@cache
def modules() -> dict[str, frozenset[str]]:
    """The names of the options of each module."""
    return {name: frozenset(options) for name, options in options_of_modules().items()}


def _sources() -> list[Any]:
    return sorted(path for path in (ROOT / "plugins" / "modules").glob("*.py") if path.stem != "__init__")


def _documentation(source: str) -> Any:
    for node in ast.parse(source).body:
        if isinstance(node, ast.Assign) and [getattr(target, "id", None) for target in node.targets] == ["DOCUMENTATION"]:
            return yaml.safe_load(ast.literal_eval(node.value))
    raise AssertionError("a module without DOCUMENTATION")


@cache
def filters() -> frozenset[str]:
    """The names of the filters."""
    return frozenset(path.stem for path in (ROOT / "plugins" / "filter").glob("*.yml"))


@cache
def make_targets() -> frozenset[str]:
    """What `make` can be asked for."""
    return frozenset(re.findall(r"^([a-z-]+):.*##", (ROOT / "Makefile").read_text(encoding="utf-8"), re.M))


def of_ours(name: str) -> bool:
    """Whether a variable has the name of a role in front, and so is the collection's to know."""
    return any(name.startswith(role + "_") for role in roles())


@cache
def variables() -> frozenset[str]:
    """Every variable that any playbook or role knows."""
    return _of_roles().union(*playbooks().values())
