# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A list of units to replace that does not name what is in the way."""

from __future__ import annotations

from typing import Any

import pytest

from ansible_collections.gpufleet.vllm.plugins.module_utils._core.errors import GpuFleetError
from ansible_collections.gpufleet.vllm.plugins.module_utils._service.request import Request
from ansible_collections.gpufleet.vllm.plugins.module_utils._service.rivals import rivals_of
from ansible_collections.gpufleet.vllm.plugins.module_utils._unit.spec import ServiceSpec
from ansible_collections.gpufleet.vllm.tests.unit.plugins.module_utils._service.world import World, gpu, managed, status


@pytest.mark.parametrize(("listed", "missing"), [("vllm-odl.service", True), ("other.service", False)])
def test_a_misspelt_unit_is_named_when_something_is_in_the_way(listed: str, missing: bool) -> None:
    old = managed("old")
    there = {unit: status(unit, "active") for unit in (old.unit, "other.service")}
    ports: Any = type("Ports", (), {"systemd": World(units=dict(there))})()
    request = Request(name="new", model="/models/new", replace="listed", replace_units=(listed,))
    spec = ServiceSpec(name="new", model="/models/new", served_name="new", gpus=(0,))
    with pytest.raises(GpuFleetError, match="vllm-old.service is in the way") as failure:
        rivals_of(request, spec, [old], {old.unit: there[old.unit]}, [gpu(0)], ports)
    assert ("There is no unit %s on this host" % listed in failure.value.msg) is missing
