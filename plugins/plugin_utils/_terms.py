# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What something is written in terms of: the expressions in variables and in files of YAML, and the names that stand in them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Iterable, Iterator, List, Mapping, Optional, Tuple

import yaml

# Ansible's own, which are large and no user's to write.
_NOT_THEIRS = ("hostvars", "groups", "vars")
# Keys of plays and tasks whose values are expressions without braces.
_BARE = ("when", "that", "until", "failed_when", "changed_when", "var")
_TEMPLATE = re.compile(r"\{[{%].*[%}]\}", re.DOTALL)


class YamlFile:
    """A playbook or a file of tasks on the controller."""

    def __init__(self, text: str) -> None:
        """``text`` is what the file holds. Its tags are left alone, so that it can hold any. Raises yaml.YAMLError."""
        self._documents = list(yaml.compose_all(text, Loader=yaml.SafeLoader))

    def expressions(self) -> List[str]:
        """The expressions that stand in it."""
        return [text for document in self._documents for text in _of_node(document, False)]

    def keys(self) -> List[Tuple[str, str]]:
        """Each key in it by the last part of its name, with its value, which is empty where that is no text."""
        pairs = [pair for document in self._documents for pair in _pairs(document)]
        return [(str(key.value).rpartition(".")[2], value.value if isinstance(value, yaml.ScalarNode) else "") for key, value in pairs]


def read(path: Path) -> Optional[YamlFile]:
    """The file; None where it can't be read, or not without a password."""
    try:
        text = path.read_text(encoding="utf-8")
        return None if text.startswith("$ANSIBLE_VAULT;") else YamlFile(text)
    except (OSError, UnicodeDecodeError, yaml.YAMLError):
        return None


def of_variables(variables: Mapping[str, Any]) -> List[str]:
    """The expressions in a host's variables, which are as they are written, templates and all."""
    return [text for name, value in variables.items() if name not in _NOT_THEIRS for text in _templates(value)]


def names_it(name: str, expressions: Iterable[str]) -> bool:
    """Whether one of the expressions reads the variable ``name``: ``{{ port }}`` reads ``port``, and ``{{ item.port }}`` does not."""
    pattern = re.compile(r"(?:(?<![\w.])|hostvars\[[^\]]*\]\.)%s(?!\w)" % re.escape(name))
    return any(pattern.search(text) for text in expressions)


def _templates(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        found = _TEMPLATE.search(value)
        if found:
            yield found.group()
    elif isinstance(value, Mapping):
        for each in value.values():
            yield from _templates(each)
    elif isinstance(value, (list, tuple)):
        for each in value:
            yield from _templates(each)


def _of_node(node: Any, bare: bool) -> Iterator[str]:
    if isinstance(node, yaml.ScalarNode):
        yield from [str(node.value)] if bare else _templates(node.value)
    elif isinstance(node, yaml.SequenceNode):
        for each in node.value:
            yield from _of_node(each, bare)
    elif isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            yield from _of_node(value, str(key.value) in _BARE)


def _pairs(node: Any) -> Iterator[Tuple[Any, Any]]:
    if isinstance(node, yaml.SequenceNode):
        for each in node.value:
            yield from _pairs(each)
    elif isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            yield key, value
            yield from _pairs(value)
