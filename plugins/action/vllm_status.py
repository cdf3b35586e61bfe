# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Makes the declarations of the model catalogue what the module takes, then runs it on the host in one round trip."""

from __future__ import annotations

from typing import Any, Dict, Optional

from ansible.errors import AnsibleActionFail
from ansible.plugins.action import ActionBase
from ansible.utils.display import Display

from ansible_collections.gpufleet.vllm.plugins.plugin_utils._status import declarations

MODULE = "gpufleet.vllm.vllm_status"


class ActionModule(ActionBase):
    """The module, with its catalogue taken apart on the controller."""

    _supports_check_mode = True
    _supports_async = True

    def run(self, tmp: Any = None, task_vars: Optional[Dict[str, Any]] = None) -> Dict[str, Any]:
        """See the module's documentation."""
        result: Dict[str, Any] = super().run(tmp, task_vars)
        args = dict(self._task.args)
        models = args.pop("models", None)
        given = models not in (None, "", {})
        if given and args.get("entries"):
            raise AnsibleActionFail("`models` and `entries` say the same in two ways. Give `models`.")
        made = declarations(models) if given else {}
        faults = {**made.get("faults", {}), **(args.get("faults") or {})}
        for name, text in faults.items():
            Display().warning("The catalogue's entry %r can't be used: %s" % (name, text))  # once for each text
        args.update(made, faults=faults)
        wrap_async = bool(self._task.async_val) and not self._connection.has_native_async
        done = self._execute_module(module_name=MODULE, module_args=args, task_vars=task_vars, wrap_async=wrap_async)
        done.pop("invocation", None)  # as long as the catalogue
        result.update(done)
        return result
