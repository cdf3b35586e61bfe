# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Lets the module begin the borrowing, then follows the host's job as a change of services is followed."""

from __future__ import annotations

import os
from typing import Any, Dict, Optional

from ansible_collections.gpufleet.vllm.plugins.action.vllm_service import ActionModule as FollowsAJob
from ansible_collections.gpufleet.vllm.plugins.action.vllm_service import Remote


class ActionModule(FollowsAJob):
    """The module, its result told once: a run of the same task that finds it told runs the command anew."""

    module = "gpufleet.vllm.gpu_borrow"
    failed_with = {"actions": [], "put_back": None}

    _controller: Optional[int] = None

    def run(self, tmp: Any = None, task_vars: Optional[Dict[str, Any]] = None) -> Dict[str, Any]:
        """See the module's documentation."""
        self._controller = os.getppid()
        return super().run(tmp, task_vars)

    def heard(self, remote: Remote, change: str) -> None:
        """See the base. A worker outlives its controller, and what only it has heard nobody will ever read."""
        if os.getppid() == self._controller:
            remote.received(change)
