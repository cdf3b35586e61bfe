# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Lets the module begin the borrowing, then follows the host's job as a change of services is followed."""

from __future__ import annotations

import os
from typing import Any, Dict, Mapping, Optional

from ansible.module_utils.parsing.convert_bool import boolean

from ansible_collections.gpufleet.vllm.plugins.action.vllm_service import ActionModule as FollowsAJob
from ansible_collections.gpufleet.vllm.plugins.action.vllm_service import Remote


class ActionModule(FollowsAJob):
    """The module, its result told once: a run of the same task that finds it told runs the command anew."""

    module = "gpufleet.vllm.gpu_borrow"
    failed_with = {"actions": [], "put_back": None}

    _controller: Optional[int] = None
    _asked = False
    _told = False

    def run(self, tmp: Any = None, task_vars: Optional[Dict[str, Any]] = None) -> Dict[str, Any]:
        """See the module's documentation."""
        self._controller = os.getppid()
        result = super().run(tmp, task_vars)
        job = result.get("job")
        if isinstance(job, Mapping) and job.get("ended") and not self._told and not self._task.check_mode:
            self.heard(Remote(self, {}, task_vars or {}, False), str(job["id"]))
        return result

    def ask(self, args: Dict[str, Any], task_vars: Dict[str, Any]) -> Dict[str, Any]:
        """See the base. Where a connection broke, the run that was forced may have begun, or be over: it is looked for first."""
        again, self._asked = self._asked, True
        if again and boolean(args.get("force") or False, strict=False):
            found = super().ask(dict(args, force=False), task_vars)
            if found.get("failed") or "job" in found:
                return found
        return super().ask(args, task_vars)

    def heard(self, remote: Remote, change: str) -> None:
        """See the base. A worker outlives its controller, and what only it has heard nobody will ever read."""
        if os.getppid() == self._controller:
            remote.received(change)
            self._told = True
