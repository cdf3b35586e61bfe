# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""``select`` of gpu_reclaim: a JMESPath expression that is true for the processes to be ended, evaluated on the controller."""

from __future__ import annotations

from typing import Any, Dict, List, Mapping


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
        except ValueError as exc:  # every error of jmespath is one
            raise SelectError(
                "`select` (%s) can't be evaluated for pid %s (%s): %s" % (self.text, process.get("pid"), process.get("name"), exc)
            ) from None
        if answer is not None and not isinstance(answer, bool):
            raise SelectError(
                "`select` (%s) must be true or false for each process, and is %r for pid %s (%s)."
                " Compare the value with something, e.g. vllm && used_mib > `1024`."
                % (self.text, answer, process.get("pid"), process.get("name"))
            )
        return bool(answer)


def compile_select(text: Any) -> Select:
    """The expression, ready to be asked. Raises SelectError when it is none or jmespath is missing."""
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
        return Select(text, jmespath.compile(text))
    except ValueError as exc:
        raise SelectError("`select` is no valid JMESPath expression: %s" % exc) from None


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
