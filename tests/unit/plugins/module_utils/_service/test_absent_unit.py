# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What is asked of a service that was never declared on this host: stopped it is, and there is nothing to enable."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.gpufleet.vllm.plugins.module_utils._service.look import look
from ansible_collections.gpufleet.vllm.plugins.module_utils._service.plan import make_plan
from ansible_collections.gpufleet.vllm.plugins.module_utils._service.ports import Paths, Ports
from ansible_collections.gpufleet.vllm.plugins.module_utils._service.request import Request
from ansible_collections.gpufleet.vllm.tests.unit.plugins.module_utils._service.world import World, status

UNIT = "vllm-kimi.service"


@pytest.mark.parametrize("there", ["nothing", "a mask", "a file"])
@pytest.mark.parametrize("enabled", [True, False, None])
def test_only_a_unit_file_that_is_there_is_enabled(tmp_path: Path, there: str, enabled: bool | None) -> None:
    path = tmp_path / UNIT
    if there == "a mask":
        path.symlink_to(os.devnull)
    elif there == "a file":
        path.write_text('# Managed by gpufleet.vllm\n[X-GpuFleet]\nService={"name": "kimi", "format": 1}\n')
    world = World(units={UNIT: status(UNIT, load_state="loaded" if there == "a file" else "not-found")})
    systemd: Any = world
    ports = Ports(clock=world.clock, systemd=systemd, paths=Paths(units=str(tmp_path), config=str(tmp_path)))
    request = Request(name="kimi", state="stopped", enabled=enabled)
    plan = make_plan(request, look(request, ports, None).view)
    assert [step.action for step in plan.steps] == (["enable"] if there == "a file" and enabled else [])
