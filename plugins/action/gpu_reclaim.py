# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Evaluates ``select`` on the controller; everything else goes straight to the module, in one round trip."""

from __future__ import annotations

from typing import Any, Dict, Mapping, Optional

from ansible.errors import AnsibleActionFail
from ansible.plugins.action import ActionBase

from ansible_collections.gpufleet.vllm.plugins.plugin_utils._select import SelectError, choose, compile_select, plain

NUMBERS = ("max_used_mib", "grace", "timeout", "settle", "min_age")


class ActionModule(ActionBase):
    """Chooses the candidates, then runs the module on the host, which proves each of them again."""

    _supports_check_mode = True
    _supports_async = True

    def run(self, tmp: Any = None, task_vars: Optional[Dict[str, Any]] = None) -> Dict[str, Any]:
        """See the module's documentation."""
        result: Dict[str, Any] = super().run(tmp, task_vars)
        args = dict(self._task.args)
        self._refuse(args)
        select = args.get("select")
        if select is not None:
            try:
                expression = compile_select(plain(select))  # a mistake in it is said before the host is asked
                facts = self._facts(args, task_vars)
                if facts.get("failed") or facts.get("unreachable"):
                    result.update(facts)
                    return result
                args["candidates"] = choose(expression, facts["ansible_facts"]["gpu_memory"]["gpus"])
            except SelectError as exc:
                raise AnsibleActionFail("Nothing was touched. %s" % exc) from None
        wrap_async = bool(self._task.async_val) and not self._connection.has_native_async
        result.update(
            self._execute_module(
                module_name="gpufleet.vllm.gpu_reclaim", module_args=args, task_vars=task_vars, wrap_async=wrap_async
            )
        )
        return result

    @staticmethod
    def _refuse(args: Mapping[str, Any]) -> None:
        """What only the task's own words show: the module gets a candidate like any other, and true as the number 1."""
        if "candidates" in args:
            raise AnsibleActionFail("Nothing was touched. `candidates` is what `select` chose; give `select` itself.")
        truths = [name for name in NUMBERS if isinstance(args.get(name), bool)]
        if truths:
            raise AnsibleActionFail("Nothing was touched. %s must be a number, not true or false." % ", ".join(truths))

    def _facts(self, args: Mapping[str, Any], task_vars: Optional[Dict[str, Any]]) -> Dict[str, Any]:
        wanted = {"gpus": args["gpus"]} if args.get("gpus") is not None else {}
        facts: Dict[str, Any] = self._execute_module(
            module_name="gpufleet.vllm.gpu_memory_facts", module_args=wanted, task_vars=task_vars
        )
        return facts
