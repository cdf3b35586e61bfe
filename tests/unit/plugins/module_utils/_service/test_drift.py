# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A file's mode or owner that somebody changed is set right, and the server that has read the file goes on serving."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from ansible_collections.gpufleet.vllm.plugins.module_utils._core.files import WantedFile, apply_change, changes
from ansible_collections.gpufleet.vllm.plugins.module_utils._service.look import stale_reason
from ansible_collections.gpufleet.vllm.plugins.module_utils._service.plan import Plan, View, make_plan
from ansible_collections.gpufleet.vllm.plugins.module_utils._service.request import Request
from ansible_collections.gpufleet.vllm.tests.unit.plugins.module_utils._service.world import status

UNIT = "vllm-kimi.service"


@pytest.mark.parametrize("names", [[UNIT], ["kimi.yaml"], ["kimi.env"], [UNIT, "kimi.yaml", "kimi.env"]])
def test_a_mode_that_drifted_restarts_nothing_in_this_run_nor_in_the_next(tmp_path: Path, names: list[str]) -> None:
    now = time.time()
    wanted = [WantedFile(str(tmp_path / name), b"as declared\n", 0o600, os.geteuid(), os.getegid()) for name in names]
    for file in wanted:
        Path(file.path).write_bytes(b"as declared\n")
        Path(file.path).chmod(0o664)
        os.utime(file.path, (now - 3600, now - 3600))
    running = status(UNIT, "active", main_start=now - 1800)

    def planned() -> tuple[View, Plan]:
        found = changes(wanted)
        stale = stale_reason(running, [file.path for file in wanted], time.time() + 60)
        view = View(unit=UNIT, status=running, gpus=(0,), changes=tuple(found), stale=stale)
        return view, make_plan(Request(name="kimi", model="/models/kimi"), view)

    view, first = planned()
    assert [(step.action, step.target) for step in first.steps] == [("write", file.path) for file in wanted]
    for change in view.changes:
        apply_change(change)
    assert planned()[1].steps == ()
