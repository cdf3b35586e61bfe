# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What has to be there before a service's own files are touched, harms nobody, and stays: nothing of it is ever undone.

The account and the directories of the service, and what finishes a change when whoever began it is gone: a program and a unit
of the collection (``_job/``). That has to be in place, also at boot, before the first server is stopped.
"""

from __future__ import annotations

from typing import List, Sequence

from .._core.files import FileChange, apply_change, make_directory
from .._unit.change_unit import CHANGE_UNIT
from .account import create
from .look import Look
from .plan import Plan, Step, runner_unit_changed
from .ports import Ports


def prepared_steps(look: Look, plan: Plan) -> List[Step]:
    """The steps of the plan that prepare(..., reload=True) carries out, in order."""
    runner = {change.wanted.path for change in look.view.runner}
    return [
        step for step in plan.steps
        if step.action in ("create_user", "make_directory")
        or step.target in runner
        or (step.action, step.target) == ("enable", CHANGE_UNIT)
        or (step.action == "daemon_reload" and runner_unit_changed(look.view.runner))
    ]


def prepare(look: Look, plan: Plan, ports: Ports, reload: bool = False) -> None:
    """Carry these steps out.

    With ``reload`` systemd reads a changed unit of ours again at once, as it is about to be started; a new one it finds by itself.
    """
    if plan.has("create_user"):
        create(look.account, ports.paths.home, ports.runner)
    for directory in plan.targets("make_directory"):
        make_directory(directory)
    prepare_runner(look.view.runner, CHANGE_UNIT in plan.targets("enable"), ports, reload)


def prepare_runner(runner: Sequence[FileChange], enable: bool, ports: Ports, reload: bool) -> None:
    """Put in place what carries out changes by itself."""
    for change in runner:
        apply_change(change)
    if reload and runner_unit_changed(runner):
        ports.systemd.daemon_reload()
    if enable:
        ports.systemd.enable(CHANGE_UNIT)
