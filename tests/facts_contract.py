# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What gpu_memory_facts promises, key by key, for whatever comes out of it: of a test's own making, of the simulated driver, of a host."""

from __future__ import annotations

from typing import Any, Dict

# The contract: key -> kinds of value. None only where it says so.
TEXT, TEXT_OR_NONE, SIZE, NUMBER_OR_NONE = (str,), (str, type(None)), (int, type(None)), (int, float, type(None))
CONTRACT: Dict[str, Any] = {
    "available": (bool,), "reason": TEXT_OR_NONE, "reason_detail": TEXT_OR_NONE, "backend": TEXT_OR_NONE,
    "driver_version": TEXT_OR_NONE, "cuda_version": TEXT_OR_NONE, "count": SIZE, "pci_count": SIZE, "total_mib": SIZE, "used_mib": SIZE,
    "free_mib": SIZE, "processes_reliable": (bool,), "gpus": (list,),
}
CONTRACT_GPU: Dict[str, Any] = {
    "index": (int,), "uuid": TEXT_OR_NONE, "pci_bus_id": TEXT_OR_NONE, "name": TEXT_OR_NONE, "state": TEXT, "error": TEXT_OR_NONE,
    "memory_type": TEXT, "total_mib": SIZE, "used_mib": SIZE, "free_mib": SIZE, "reserved_mib": SIZE, "unattributed_mib": SIZE,
    "utilization_percent": SIZE, "compute_mode": TEXT_OR_NONE, "mig_devices": (list,), "processes": (list,),
}
CONTRACT_PROCESS: Dict[str, Any] = {
    "pid": (int,), "type": TEXT_OR_NONE, "used_mib": SIZE, "name": TEXT_OR_NONE, "cmdline": TEXT_OR_NONE, "user": TEXT_OR_NONE,
    "start_time": NUMBER_OR_NONE, "unit": TEXT_OR_NONE, "container": TEXT_OR_NONE, "state": TEXT, "vllm": (bool,), "orphan": (bool,),
    "protected": (bool,), "protected_by": TEXT_OR_NONE,
}
REASONS = {"no_driver", "library_missing", "driver_library_mismatch", "driver_hung", "permission", "error"}


def held(found: Dict[str, Any], contract: Dict[str, Any]) -> None:
    """Hold a dict against the contract, key by key."""
    assert set(found) == set(contract), set(found) ^ set(contract)
    for key, kinds in contract.items():
        assert type(found[key]) in kinds, (key, found[key])


def held_facts(facts: Dict[str, Any]) -> None:
    """Hold the whole result against the contract."""
    held(facts, CONTRACT)
    assert facts["available"] == (facts["reason"] is None) and (facts["available"] or facts["reason"] in REASONS)
    for gpu in facts["gpus"]:
        held(gpu, CONTRACT_GPU)
        assert gpu["state"] in ("ok", "lost", "reset_required", "error") and gpu["memory_type"] in ("discrete", "unified", "mig")
        for process in gpu["processes"]:
            held(process, CONTRACT_PROCESS)
            assert process["state"] in ("running", "zombie", "gone", "not_visible")
            assert process["protected"] == (process["protected_by"] is not None)
            assert process["type"] is None or set(process["type"].split("+")) <= {"C", "G", "M"}
