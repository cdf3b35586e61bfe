# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""An action plugin as the task executor makes it, without an executor."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, Callable, Dict
from unittest import mock

import pytest
from ansible.parsing.dataloader import DataLoader
from ansible.playbook.task import Task
from ansible.template import Templar

RunAction = Callable[..., Dict[str, Any]]


@pytest.fixture
def run_action() -> RunAction:
    """run_action(ActionModule, args, task_vars={}, check_mode=False, limit=0) -> the task's result. ``limit`` is the task's async."""

    def run(
        action: Any, args: Dict[str, Any], task_vars: Dict[str, Any] | None = None, check_mode: bool = False, limit: int = 0
    ) -> Dict[str, Any]:
        loader = DataLoader()
        task = Task()
        task.action = "gpufleet.vllm.under_test"
        task.args = args
        task.check_mode = check_mode
        task.async_val, task.poll = limit, 1
        plugin = action(
            task=task,
            # A controller-side plugin has nothing to ask of its connection but whether to clean up after it.
            connection=SimpleNamespace(_shell=SimpleNamespace(tmpdir=None), has_native_async=False, reset=lambda: None),
            play_context=mock.Mock(check_mode=check_mode),
            loader=loader,
            templar=Templar(loader=loader),
            shared_loader_obj=None,
        )
        result: Dict[str, Any] = plugin.run(task_vars=task_vars or {})
        return result

    return run
