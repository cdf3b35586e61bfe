# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a failure says of GPUs, and how long it gets."""

from __future__ import annotations

import json

from ansible_collections.gpufleet.vllm.plugins.module_utils._gpu.types import GpuProcess
from ansible_collections.gpufleet.vllm.plugins.module_utils._service.brief import brief_gpus

from .world import gpu

HOLDER = GpuProcess(4711, "C", 90051, "VLLM::Worker_TP", "VLLM::Worker_TP0", "vllm", 1.0, "vllm-old.service")


def test_a_failure_tells_memory_and_who_has_it() -> None:
    found = brief_gpus([gpu(3, 90051, [HOLDER]).to_dict()])
    assert found == brief_gpus(found) == [{
        "index": 3, "uuid": "GPU-3", "state": "ok", "total_mib": found[0]["total_mib"], "used_mib": 90051,
        "free_mib": found[0]["total_mib"] - 90051,
        "processes": [{"pid": 4711, "name": "VLLM::Worker_TP", "user": "vllm", "unit": "vllm-old.service", "used_mib": 90051}],
    }]  # fmt: skip


def test_eight_idle_gpus_fit_on_a_screen() -> None:
    assert len(json.dumps(brief_gpus([gpu(index).to_dict() for index in range(8)]), indent=1).splitlines()) <= 82
