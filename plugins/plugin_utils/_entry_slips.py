# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Keys of a model's entry that were set on the command line, where nothing reads them: ``-e port=8001`` moves no server."""

from __future__ import annotations

import re
from typing import Any, Iterable, Iterator, List, Mapping

from ansible_collections.gpufleet.vllm.plugins.module_utils._catalogue.schema import ELSEWHERE, FIELDS

# Ansible's own, which are large and no user's to write.
_NOT_THEIRS = ("hostvars", "groups", "vars")
# Words that people have variables of their own by, and that take no GPU and no port.
_ANYBODYS = ("env", "group", "host", "user")
# Tasks of the user's, which may read whatever was set.
_HOOKS = ("before_host", "after_host")
_ARGUMENTS = frozenset(name for name, place in ELSEWHERE.items() if "`args`" in place)


def entry_slips(names: Iterable[str], variables: Mapping[str, Any]) -> List[str]:
    """A sentence for each of ``names`` that only an entry of ``vllm_models`` can say.

    ``variables`` are a host's as they are written, templates and all: what one of them is written in terms of, as in
    ``port: "{{ port }}"``, is meant to be set from outside and no slip.
    """
    names = list(names)
    asked = [name for name in names if name in FIELDS and name not in _ANYBODYS or name in _ARGUMENTS]
    if not asked or any(hook in names for hook in _HOOKS):
        return []
    templates = [text for name, value in variables.items() if name not in _NOT_THEIRS for text in _templates(value)]
    return [_sentence(name) for name in asked if not any(re.search(r"\b%s\b" % re.escape(name), text) for text in templates)]


def _templates(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        if "{{" in value or "{%" in value:
            yield value
    elif isinstance(value, Mapping):
        for each in value.values():
            yield from _templates(each)
    elif isinstance(value, (list, tuple)):
        for each in value:
            yield from _templates(each)


def _sentence(name: str) -> str:
    where = "under `args` of the model's entry" if name in _ARGUMENTS else "in the model's entry"
    return "`%s` was set on the command line, where nothing reads it: put it %s in `vllm_models`." % (name, where)
