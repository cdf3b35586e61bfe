# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Every scenario of the driver, through both backends: the same facts, and the ones that they should be."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from facts_contract import held_facts

from lab.driver import presets
from lab.driver.testing import LocalDriver

from .reading import BACKENDS, Reading, comparable, differences

TABLE = Path(__file__).resolve().parents[2] / "docs" / "gpu-scenarios.md"
UPDATE_VARIABLE = "GPUFLEET_UPDATE_DOCS"

# Scenario -> what both backends must make of it, in the words of summary().
EXPECTED = {
    "default": "8 GPUs: all ok",
    "no_driver": "not available: no_driver",
    "no_permission": "not available: permission",
    "init_unknown": "not available: error",
    "library_missing": "not available: library_missing",
    "mismatch": "not available: driver_library_mismatch",
    "no_gpus": "0 GPUs",
    "gb10": "1 GPU: all ok, unified memory",
    "wsl": "1 GPU: all ok, reserve counted as used, process memory unknown",
    "vgpu_guest": "1 GPU: all ok",
    "vgpu_host": "8 GPUs: all ok",
    "mig": "3 GPUs: all ok, 5 MIG devices",
    "a100": "8 GPUs: all ok",
    "h100": "8 GPUs: all ok",
    "lost": "8 GPUs: GPU 3 lost",
    "unknown_error": "8 GPUs: GPU 3 error",
    "reset_required": "8 GPUs: GPU 3 reset_required",
    "fewer_gpus_than_pci": "7 GPUs: all ok",
    "stride16": "8 GPUs: all ok",
    "stride24": "8 GPUs: all ok",
    "stride32": "8 GPUs: all ok",
    "v1_only": "8 GPUs: all ok, reserve counted as used",
    "process_memory_not_available": "8 GPUs: all ok, process memory unknown",
    "hung": "not available: driver_hung",
    "slow_release": "8 GPUs: all ok",
    "staged_release": "8 GPUs: all ok",
    "leak": "8 GPUs: all ok",
    "held": "8 GPUs: all ok, 96002 MiB unattributed",
    "unlisted": "8 GPUs: all ok, 3002 MiB unattributed, holders that no list shows",
    "foreign_pids": "8 GPUs: all ok, process list not reliable, 30002 MiB unattributed",
    "mps": "8 GPUs: all ok",
    "graphics": "8 GPUs: all ok",
    "bad_name": "8 GPUs: all ok",
    "old_driver": "8 GPUs: all ok, reserve counted as used",
    "new_banner": "8 GPUs: all ok",
}


def summary(facts: dict[str, Any]) -> str:
    """A reading in one line."""
    if not facts["available"]:
        return f"not available: {facts['reason']}"
    gpus = facts["gpus"]
    words = [f"GPU {gpu['index']} {gpu['state']}" for gpu in gpus if gpu["state"] != "ok"] or (["all ok"] if gpus else [])
    readable = [gpu for gpu in gpus if gpu["total_mib"] is not None]
    processes = [process for gpu in gpus for process in gpu["processes"]]
    if any(gpu["memory_type"] == "unified" for gpu in gpus):
        words.append("unified memory")
    elif any(gpu["reserved_mib"] is None for gpu in readable):
        words.append("reserve counted as used")
    mig = sum(len(gpu["mig_devices"]) for gpu in gpus)
    words += [f"{mig} MIG devices"] if mig else []
    words += [] if facts["processes_reliable"] else ["process list not reliable"]
    words += ["process memory unknown"] if any(p["type"] and p["used_mib"] is None for p in processes) else []
    words += [f"{gpu['unattributed_mib']} MiB unattributed" for gpu in gpus if (gpu["unattributed_mib"] or 0) > 1200]
    words += ["holders that no list shows"] if any(p["type"] is None for p in processes) else []
    count = f"{len(gpus)} GPU{'' if len(gpus) == 1 else 's'}"
    return f"{count}: {', '.join(words)}" if words else count


@pytest.fixture(scope="module")
def results(driver_session: LocalDriver) -> Iterator[dict[str, dict[str, Any]]]:
    """Every scenario's reading through each backend, with two processes on the first GPU where they can be."""
    found: dict[str, dict[str, Any]] = {}
    for name in presets.NAMES:
        driver_session.clean()
        driver_session.gpus.preset(name)
        reading = Reading(driver_session)
        before = driver_session.gpus.current
        idle = before.gpus and not before.init_code and not before.failures and before.gpus[0].compute_mode == "default"
        if idle and before.gpus[0].state == "ok" and before.gpus[0].held_mib < 90_000:
            driver_session.hold(0, 2000)
            driver_session.hold(0, 1000, "--kind", "C+G")
        # where nothing hangs, only a busy machine can make a call slow, and that is not what is asked here
        found[name] = dict(zip(BACKENDS, reading.both(timeout=1.0 if name == "hung" else 20.0), strict=True))
    yield found
    driver_session.clean()


@pytest.mark.parametrize("name", presets.NAMES)
@pytest.mark.parametrize("backend", BACKENDS)
def test_a_scenario_is_read_as_what_it_is(results: dict[str, dict[str, Any]], name: str, backend: str) -> None:
    facts = results[name][backend]
    held_facts(facts)
    assert facts["backend"] == backend
    assert summary(facts) == EXPECTED.get(name), facts["reason_detail"]
    if not facts["available"]:
        assert facts["reason_detail"] and facts["free_mib"] is None and not facts["processes_reliable"]


@pytest.mark.parametrize("name", presets.NAMES)
def test_both_backends_say_the_same(results: dict[str, dict[str, Any]], name: str) -> None:
    nvml, smi = (comparable(results[name][backend]) for backend in BACKENDS)
    if name == "no_gpus":  # without a GPU nvidia-smi says nothing at all, not even which driver it is
        for facts in (nvml, smi):
            facts.update(driver_version=None, cuda_version=None)
    if name == "gb10":  # the host's own memory, which moves
        for facts in (nvml, smi):
            for place in (facts, *facts["gpus"]):
                assert place["total_mib"] == place["used_mib"] + place["free_mib"]
                place.update(used_mib=None, free_mib=None)
    assert differences(nvml, smi) == []


def test_the_documented_table_is_what_comes_out(results: dict[str, dict[str, Any]]) -> None:
    rows = ["| scenario | NVML | nvidia-smi |", "|---|---|---|"]
    for name in presets.NAMES:
        rows.append("| %s | %s | %s |" % (name, *(summary(results[name][backend]) for backend in BACKENDS)))
    text = TABLE.read_text(encoding="utf-8") if TABLE.exists() else ""
    new = re.sub(r"(?s)(<!-- table -->\n).*(<!-- end -->)", lambda found: found[1] + "\n".join(rows) + "\n" + found[2], text)
    if os.environ.get(UPDATE_VARIABLE):
        TABLE.write_text(new, encoding="utf-8")
    assert "<!-- table -->" in text and text == new, f"run this test once with {UPDATE_VARIABLE}=1"
