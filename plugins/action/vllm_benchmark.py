# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Finds a host's baseline on the controller, runs the module on the host, and waits for it as long as somebody works there."""

from __future__ import annotations

import os
from typing import Any, Dict, Optional

from ansible import constants
from ansible.errors import AnsibleActionFail
from ansible.plugins.action import ActionBase
from ansible.utils.display import Display

from ansible_collections.gpufleet.vllm.plugins.plugin_utils._baseline import BaselineError, choose, read
from ansible_collections.gpufleet.vllm.plugins.plugin_utils._host_job import JobLost, wait
from ansible_collections.gpufleet.vllm.plugins.plugin_utils._terminal import for_people

MODULE = "gpufleet.vllm.vllm_benchmark"
# How often a line says that it goes on.
_LINE_S = 60.0


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
        if self._task.async_val and self._task.poll > 0 and result.get("results_file") and not result.get("failed"):
            self._wait(result, task_vars)
        return result

    def _wait(self, result: Dict[str, Any], task_vars: Dict[str, Any]) -> None:
        """Wait until the job has ended, whose result Ansible then fetches at once, or make a failure of what will never end."""
        started = dict(result)
        host = str(task_vars.get("inventory_hostname", ""))
        shows = not self._task.no_log and for_people(constants.config.get_config_value("DEFAULT_STDOUT_CALLBACK"))
        next_line = [_LINE_S]

        def told(seconds: float) -> None:
            if shows and seconds >= next_line[0]:
                next_line[0] += _LINE_S
                Display().display("%s: measured for %d s so far" % (host, seconds))

        try:
            wait(self._ask, self._connection.reset, started, float(self._task.async_val), float(self._task.poll), told)
        except JobLost as lost:
            job = {"jid": started["ansible_job_id"], "mode": "cleanup", "_async_dir": os.path.dirname(str(started["results_file"]))}
            self._execute_module(module_name="ansible.legacy.async_status", module_args=job, task_vars=task_vars)
            result.clear()
            result.update(failed=True, changed=False, msg=str(lost))

    def _ask(self, command: str) -> str:
        return str(self._low_level_execute_command(command)["stdout"])
