# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Every key of what comes back has an entry of its own under RETURN: a page that names it in passing is not found by it."""

from __future__ import annotations

from typing import Any

import yaml

from ansible_collections.gpufleet.vllm.plugins.module_utils._core.errors import GpuFleetError
from ansible_collections.gpufleet.vllm.plugins.module_utils._gpu.types import Snapshot
from ansible_collections.gpufleet.vllm.plugins.module_utils._preflight.asked import Asked, Seen
from ansible_collections.gpufleet.vllm.plugins.module_utils._preflight.model import judge_model
from ansible_collections.gpufleet.vllm.plugins.module_utils._status.service import Subject, unseen
from ansible_collections.gpufleet.vllm.plugins.module_utils._systemd.show import UnitStatus
from ansible_collections.gpufleet.vllm.plugins.modules import vllm_preflight, vllm_status


def entries(module: Any, name: str) -> set[str]:
    found: dict[str, Any] = yaml.safe_load(module.RETURN)[name]["contains"]
    return set(found)


def test_each_key_of_a_service_is_described() -> None:
    unit = "vllm-x.service"
    try:
        raise GpuFleetError("odd")
    except GpuFleetError as exc:
        found = unseen(Subject(unit), UnitStatus(unit, "loaded", "active", "running", main_pid=7), exc)
    assert set(found) == entries(vllm_status, "services")


def test_each_key_of_what_a_plan_is_about_is_described() -> None:
    found = judge_model(Asked(model="org/x"), Seen(Snapshot(True), ()), None, "/nonexistent", False).about
    assert set(found) | {"vllm_version", "vllm_version_from"} == entries(vllm_preflight, "about")
