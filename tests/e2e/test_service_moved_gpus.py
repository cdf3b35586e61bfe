# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A card leaves the host, and those behind it move up: who named a card or a slot never gets a neighbour's."""

from __future__ import annotations

import json
import time

import pytest
from e2e.direct import SMALL, service

from ansible_collections.gpufleet.vllm.plugins.module_utils._diagnosis.guard import guard_diagnosis
from ansible_collections.gpufleet.vllm.plugins.module_utils._guard import exit_codes
from lab import Host, Lab


@pytest.fixture(params=["gpu01", "gpu03"], ids=["bookworm", "trixie"])
def each(lab: Lab, request: pytest.FixtureRequest) -> Host:
    """A clean host with each systemd."""
    host = lab.hosts[request.param]
    host.reset()
    host.vllm.behave("*", load_seconds=0.1)
    return host


def _refused(host: Host, unit: str) -> list[str]:
    """Start a unit as a boot does; its journal from then on, once the guard has refused."""
    since = f"--since=@{time.time():.6f}"
    host.run(["systemctl", "start", "--no-block", unit])
    end = time.monotonic() + 60
    while f"status={exit_codes.ABSENT}" not in host.systemctl_show(unit, ["ExecStartPre"])["ExecStartPre"]:
        assert time.monotonic() < end, host.journal(unit, "--lines", "40")
        time.sleep(0.2)
    host.run(["systemctl", "stop", unit])
    out = host.run(["journalctl", "--unit", unit, "--output=json", "--no-pager", since]).stdout
    return [str(json.loads(line)["MESSAGE"]) for line in out.splitlines()]


def test_a_card_that_was_named_is_not_mistaken_for_the_one_at_its_index(each: Host) -> None:
    gone, moved = each.gpu.current.gpus[3], each.gpu.current.gpus[4]
    by_uuid = {**SMALL, "gpus": [str(moved.uuid)]}
    by_slot = {**SMALL, "name": "slot", "gpus": [str(gone.pci_bus_id)], "port": 8002}
    for declared in (by_uuid, by_slot):
        done = service(each, **declared)
        assert done["ready"], done
        each.run(["systemctl", "stop", done["unit"]])
    each.gpu.preset("fewer_gpus_than_pci")

    said = _refused(each, "vllm-small.service")
    diagnosis = guard_diagnosis(said, exit_codes.ABSENT)
    assert diagnosis is not None and f"{moved.uuid} is GPU 3 now, not GPU 4" in diagnosis.summary, said
    assert "Deploying the service again" in diagnosis.advice
    assert not any(line.startswith("Started") or "vLLM API server" in line for line in said), "the server itself was started"

    said = _refused(each, "vllm-slot.service")
    diagnosis = guard_diagnosis(said, exit_codes.ABSENT)
    assert diagnosis is not None and "is not on this host" in diagnosis.summary, said

    again = service(each, **by_uuid)
    assert again["changed"] and again["ready"], again
    pid = each.systemctl_show("vllm-small.service", ["MainPID"])["MainPID"]
    assert "CUDA_VISIBLE_DEVICES=3" in each.run(f"tr '\\0' '\\n' < /proc/{pid}/environ").stdout.splitlines()
    lost = service(each, **by_slot)
    assert lost["failed"] and "is not on this host" in lost["msg"], lost
