# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Random states of the driver, read through both backends: sound, and alike."""

from __future__ import annotations

import dataclasses
from typing import Any

from facts_contract import held_facts
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from lab.driver.scenario import Failure, Gpu, Process, Scenario
from lab.driver.testing import LocalDriver

from .reading import Reading, comparable, differences

# What one process of the driver's lists may look like: of elsewhere, absurd, unknown in size.
PROCESS = st.builds(
    Process,
    pid=st.integers(3_000_000, 4_000_000),
    used_mib=st.one_of(st.none(), st.integers(0, 20_000)),
    type=st.sampled_from(["C", "G", "C+G", "M+C"]),
    counts=st.booleans(),
)
GPU = st.builds(
    Gpu,
    total_mib=st.integers(90_000, 200_000),
    reserved_mib=st.integers(1, 2000),
    min_used_mib=st.integers(0, 1200),
    held_mib=st.integers(0, 80_000),
    state=st.sampled_from(["ok", "ok", "ok", "lost", "reset_required", "error"]),
    visible=st.sampled_from([True, True, True, False]),
    processes=st.lists(PROCESS, max_size=3, unique_by=lambda process: process.pid).map(tuple),
    process_memory=st.sampled_from(["reported", "reported", "not_available"]),
    utilization_percent=st.integers(0, 100),
    compute_mode=st.sampled_from(["default", "prohibited", "exclusive_process"]),
    recovery_action=st.sampled_from([0, 0, 0, 1, 2, 4]),
)
FAILURE = st.builds(
    Failure,
    call=st.sampled_from(["nvmlDeviceGetMemoryInfo*", "nvmlDeviceGetUtilizationRates", "nvmlDeviceGetComputeMode"]),
    code=st.sampled_from([3, 4, 999]),
    gpu=st.integers(0, 3),
)
SCENARIO = st.builds(
    Scenario,
    gpus=st.lists(GPU, min_size=1, max_size=4).map(tuple),
    failures=st.lists(FAILURE, max_size=1).map(tuple),
)


# Each example starts processes: failing ones are shown as they are, not made smaller for minutes.
@settings(max_examples=12, deadline=None, phases=[Phase.explicit, Phase.generate],
          suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(SCENARIO)
def test_any_state_is_read_soundly_and_alike(driver_local: LocalDriver, scenario: Scenario) -> None:
    driver_local.gpus.apply(dataclasses.replace(scenario, seed="random"))
    nvml, smi = Reading(driver_local).both(timeout=10.0)
    for facts in (nvml, smi):
        held_facts(facts)
        sound(facts)
    if not any(gpu["total_mib"] is not None for gpu in nvml["gpus"]):
        # without a readable GPU nvidia-smi does not even say which driver it is
        smi.update({key: nvml[key] for key in ("driver_version", "cuda_version") if smi[key] is None})
    assert differences(comparable(nvml), comparable(smi)) == []


def sound(facts: dict[str, Any]) -> None:
    """Nothing negative or absurd, and sums that are sums."""
    assert facts["available"] and facts["count"] == len(facts["gpus"])
    for gpu in facts["gpus"]:
        sizes = [gpu[key] for key in ("total_mib", "used_mib", "free_mib")]
        if None in sizes:
            assert sizes == [None, None, None] and gpu["error"] and gpu["state"] != "ok"
        else:
            total, used, free = sizes
            assert 0 <= used <= total and 0 <= free <= total and used + free + (gpu["reserved_mib"] or 0) == total
        assert gpu["unattributed_mib"] is None or 0 <= gpu["unattributed_mib"] <= gpu["used_mib"]
        for process in gpu["processes"]:
            assert process["pid"] > 1 and process["state"] in ("gone", "not_visible") and process["name"] is None
    for key in ("total_mib", "used_mib", "free_mib"):
        known = [gpu[key] for gpu in facts["gpus"] if gpu[key] is not None]
        assert facts[key] == (sum(known) if known else None)
