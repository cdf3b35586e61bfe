# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Lets the module begin the borrowing, then follows the host's job as a change of services is followed."""

from __future__ import annotations

from ansible_collections.gpufleet.vllm.plugins.action.vllm_service import ActionModule as FollowsAJob
from ansible_collections.gpufleet.vllm.plugins.action.vllm_service import Remote


class ActionModule(FollowsAJob):
    """The module, its result told once: a run of the same task that finds it told runs the command anew."""

    module = "gpufleet.vllm.gpu_borrow"
    failed_with = {"actions": [], "put_back": None}

    def heard(self, remote: Remote, change: str) -> None:
        """See the base."""
        remote.received(change)
