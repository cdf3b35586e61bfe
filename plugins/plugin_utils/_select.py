# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""``select`` of gpu_reclaim: a JMESPath expression that is true for the processes to be ended, evaluated on the controller."""

from __future__ import annotations

import re
from typing import Any, Dict, Iterator, List, Mapping, Tuple

from ansible_collections.gpufleet.vllm.plugins.module_utils._gpu.types import GpuProcess

# What a process has, and its GPU's index beside it.
FIELDS = frozenset(GpuProcess(0, None, None).to_dict()) | {"gpu"}
_NUMBERS = "; numbers stand in backticks, e.g. used_mib > `10240`"


class SelectError(Exception):
    """An expression that can't be used; the text says why."""


class Select:
    """A compiled expression with its text, for messages."""

    def __init__(self, text: str, expression: Any) -> None:
        self.text = text
        self._expression = expression

    def chooses(self, process: Mapping[str, Any]) -> bool:
        """Whether the expression is true for a process. Null (a field that is unknown) is not true.

        Anything but true, false and null is refused: ``select: name`` is a slip, not a wish to end whatever has a name.
        """
        try:
            answer = self._expression.search(process)
        except (ValueError, TypeError) as exc:  # every error of jmespath is a ValueError; what it lets through is Python's
            hint = _NUMBERS if isinstance(exc, TypeError) else ""
            raise SelectError(
                "`select` (%s) can't be evaluated for pid %s (%s): %s%s"
                % (self.text, process.get("pid"), process.get("name"), exc, hint)
            ) from None
        if answer is not None and not isinstance(answer, bool):
            raise SelectError(
                "`select` (%s) must be true or false for each process, and is %r for pid %s (%s)."
                " Compare the value with something, e.g. vllm && used_mib > `1024`."
                % (self.text, answer, process.get("pid"), process.get("name"))
            )
        return bool(answer)


def compile_select(text: Any) -> Select:
    """The expression over a process. Raises SelectError when it is none, jmespath is missing, or it asks for a field that is not there.

    A field that no process has is null for each, and ``usr != 'alice'`` would be true for everybody.
    """
    select, expression = _compile(text)
    unknown = sorted({name for name in _fields(expression.parsed) if name not in FIELDS})
    if unknown:
        raise SelectError(
            "`select` (%s) asks for %s, which no process has. Its fields: %s." % (text, ", ".join(unknown), ", ".join(sorted(FIELDS)))
        )
    return select


def compile_query(text: Any) -> Select:
    """Any expression, whatever its fields. Raises SelectError when it is none or jmespath is missing."""
    return _compile(text)[0]


def _fields(node: Mapping[str, Any]) -> Iterator[str]:
    if node["type"] == "field":
        yield node["value"]
    for child in node["children"]:
        if isinstance(child, Mapping):
            yield from _fields(child)


def _compile(text: Any) -> Tuple[Select, Any]:
    try:
        import jmespath
    except ImportError:
        raise SelectError(
            "`select` is a JMESPath expression and is evaluated on the controller, in the environment that runs Ansible, where"
            " the Python library jmespath is missing: pip install jmespath"
        ) from None
    if not isinstance(text, str) or not text.strip():
        raise SelectError("`select` must be a JMESPath expression, not %r." % (text,))
    try:
        expression = jmespath.compile(text)
    except ValueError as exc:
        hint = _NUMBERS if re.search(r"[<>=]\s*-?[0-9]", text) else ""
        raise SelectError("`select` is no valid JMESPath expression%s: %s" % (hint, exc)) from None
    return Select(text, expression), expression


def choose(select: Select, gpus: Any) -> List[Dict[str, Any]]:
    """The identities (pid and start) of the processes that the expression chooses on any GPU they hold. Raises SelectError."""
    chosen: Dict[int, Dict[str, Any]] = {}
    for gpu in plain(gpus):
        for process in gpu["processes"]:
            if select.chooses(dict(process, gpu=gpu["index"])) and process["start_time"] is not None:
                chosen[process["pid"]] = {"pid": process["pid"], "start_time": process["start_time"]}
    return [chosen[pid] for pid in sorted(chosen)]


def plain(value: Any) -> Any:
    """The value without Ansible's tags: JMESPath looks at the exact types."""
    if isinstance(value, Mapping):
        return {plain(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    if isinstance(value, str):
        return value.encode("utf-8", "surrogatepass").decode("utf-8", "surrogatepass")
    if isinstance(value, bool) or value is None:
        return value
    if isinstance(value, int):
        return int.__add__(value, 0)
    if isinstance(value, float):
        return float.__add__(value, 0.0)
    return value
