# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Evaluates ``select`` on the controller; everything else goes straight to the module, in one round trip."""

from __future__ import annotations

from typing import Any, Dict, List, Mapping, Optional

from ansible.errors import AnsibleActionFail
from ansible.plugins.action import ActionBase


class ActionModule(ActionBase):
    """Chooses the candidates, then runs the module on the host, which proves each of them again."""

    _supports_check_mode = True
    _supports_async = True

    def run(self, tmp: Any = None, task_vars: Optional[Dict[str, Any]] = None) -> Dict[str, Any]:
        """See the module's documentation."""
        result: Dict[str, Any] = super().run(tmp, task_vars)
        args = dict(self._task.args)
        select = args.get("select")
        if select is not None:
            expression = compile_select(_plain(select))  # a mistake in it is said before the host is asked
            facts = self._facts(args, task_vars)
            if facts.get("failed") or facts.get("unreachable"):
                result.update(facts)
                return result
            args["candidates"] = choose(expression, facts["ansible_facts"]["gpu_memory"]["gpus"])
        wrap_async = bool(self._task.async_val) and not self._connection.has_native_async
        result.update(
            self._execute_module(
                module_name="gpufleet.vllm.gpu_reclaim", module_args=args, task_vars=task_vars, wrap_async=wrap_async
            )
        )
        return result

    def _facts(self, args: Mapping[str, Any], task_vars: Optional[Dict[str, Any]]) -> Dict[str, Any]:
        wanted = {"gpus": args["gpus"]} if args.get("gpus") is not None else {}
        facts: Dict[str, Any] = self._execute_module(
            module_name="gpufleet.vllm.gpu_memory_facts", module_args=wanted, task_vars=task_vars
        )
        return facts


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
            raise AnsibleActionFail(
                "Nothing was touched. `select` (%s) can't be evaluated for pid %s (%s): %s"
                % (self.text, process.get("pid"), process.get("name"), exc)
            ) from None
        if answer is not None and not isinstance(answer, bool):
            raise AnsibleActionFail(
                "Nothing was touched. `select` (%s) must be true or false for each process, and is %r for pid %s (%s)."
                " Compare the value with something, e.g. vllm && used_mib > `1024`."
                % (self.text, answer, process.get("pid"), process.get("name"))
            )
        return bool(answer)


def compile_select(text: Any) -> Select:
    """The expression, ready to be asked. Raises AnsibleActionFail when it is none or jmespath is missing."""
    try:
        import jmespath
    except ImportError:
        raise AnsibleActionFail(
            "Nothing was touched. `select` is a JMESPath expression and is evaluated on the controller, in the environment that runs"
            " Ansible, where the Python library jmespath is missing: pip install jmespath"
        ) from None
    if not isinstance(text, str) or not text.strip():
        raise AnsibleActionFail("Nothing was touched. `select` must be a JMESPath expression, not %r." % (text,))
    try:
        return Select(text, jmespath.compile(text))
    except ValueError as exc:
        raise AnsibleActionFail("Nothing was touched. `select` is no valid JMESPath expression: %s" % exc) from None


def choose(select: Select, gpus: List[Any]) -> List[Dict[str, Any]]:
    """The identities (pid and start) of the processes that the expression chooses on any GPU they hold."""
    chosen: Dict[int, Dict[str, Any]] = {}
    for gpu in _plain(gpus):
        for process in gpu["processes"]:
            if select.chooses(dict(process, gpu=gpu["index"])) and process["start_time"] is not None:
                chosen[process["pid"]] = {"pid": process["pid"], "start_time": process["start_time"]}
    return [chosen[pid] for pid in sorted(chosen)]


def _plain(value: Any) -> Any:
    """The value without Ansible's tags: JMESPath looks at the exact types."""
    if isinstance(value, Mapping):
        return {_plain(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if isinstance(value, str):
        return value.encode("utf-8", "surrogatepass").decode("utf-8", "surrogatepass")
    if isinstance(value, bool) or value is None:
        return value
    if isinstance(value, int):
        return int.__add__(value, 0)
    if isinstance(value, float):
        return float.__add__(value, 0.0)
    return value
