# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Finds a host's baseline on the controller, then runs the module on the host."""

from __future__ import annotations

from typing import Any, Dict, Optional

from ansible.errors import AnsibleActionFail
from ansible.plugins.action import ActionBase

from ansible_collections.gpufleet.vllm.plugins.plugin_utils._baseline import BaselineError, choose, read

MODULE = "gpufleet.vllm.vllm_benchmark"


class ActionModule(ActionBase):
    """The module, with its baseline read where the files of a pipeline are."""

    _supports_check_mode = True
    _supports_async = True

    def run(self, tmp: Any = None, task_vars: Optional[Dict[str, Any]] = None) -> Dict[str, Any]:
        """See the module's documentation."""
        result: Dict[str, Any] = super().run(tmp, task_vars)
        task_vars = task_vars or {}
        args = dict(self._task.args)
        if args.get("baseline") in ("", None):
            args.pop("baseline", None)
        else:
            try:
                document = read(str(args["baseline"])) if isinstance(args["baseline"], str) else args["baseline"]
                args["baseline"] = choose(document, str(task_vars.get("inventory_hostname", "")), args.get("service"))
            except BaselineError as exc:
                raise AnsibleActionFail(str(exc)) from None  # its cause is in its text already
        wrap_async = bool(self._task.async_val) and not self._connection.has_native_async
        result.update(self._execute_module(module_name=MODULE, module_args=args, task_vars=task_vars, wrap_async=wrap_async))
        return result
