# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a host says of itself: its services, their drift as vllm_service's check mode sees it, and who else is on its GPUs."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.gpufleet.vllm.plugins.module_utils._core.errors import GpuFleetError
from ansible_collections.gpufleet.vllm.plugins.module_utils._core.zipapp import closure
from ansible_collections.gpufleet.vllm.plugins.module_utils._gpu.types import Gpu, GpuProcess, Snapshot
from ansible_collections.gpufleet.vllm.plugins.module_utils._service.parameters import to_request
from ansible_collections.gpufleet.vllm.plugins.module_utils._service.run import run
from ansible_collections.gpufleet.vllm.plugins.module_utils._status import host as status_host
from ansible_collections.gpufleet.vllm.plugins.module_utils._status import service as one
from ansible_collections.gpufleet.vllm.tests.unit.plugins.module_utils._job.host import OLD
from ansible_collections.gpufleet.vllm.tests.unit.plugins.module_utils._status.place import (
    DECLARED,
    Looked,
    kinds,
    status,
)


def mutable(host: Looked) -> tuple[Any, list[str]]:
    return host.snapshot(), [*host.units.log, str(host.count)]


def test_a_service_that_serves_as_declared(looked: Looked) -> None:
    before = mutable(looked)
    found = status(looked)
    (service,) = found["services"]
    assert (service["state"], service["ready"], service["drift"], service["name"]) == ("serves", True, [], "old"), service
    assert service["requests_running"] == 0 and service["enabled"] and service["in_catalogue"] and service["gpus"] == [0, 1, 2, 3]
    assert found["drifted"] is False and found["used_mib"] is None and found["under_way"] is None
    assert mutable(looked) == before and not os.path.exists(looked.paths.run + "/change.lock")


@pytest.mark.parametrize("change", [
    {"args": {"max_num_seqs": 16}}, {"env": {"HINT": "other"}}, {"secrets": {"VLLM_API_KEY": "sk-other"}}, {"port": 8001},
    {"unit_options": {"Service": {"Nice": 5}}}, {},
])
def test_drift_is_what_the_check_mode_of_vllm_service_would_do(looked: Looked, change: dict[str, Any]) -> None:
    declared = {**DECLARED, **change}
    planned = run(replace(to_request(declared), preflight="skip"), looked.ports(), True)
    (service,) = status(looked, None, declared)["services"]
    assert service["actions"] == planned.to_result()["actions"]
    assert bool(service["drift"]) == planned.changed == bool(change), (service["drift"], planned.plan.steps)
    assert "sk-other" not in json.dumps(service)
    assert service["ready"], "what serves still serves, whatever is declared"


def test_it_says_what_differs(looked: Looked) -> None:
    (service,) = status(looked, None, {**DECLARED, "args": {"max_num_seqs": 16}})["services"]
    assert service["drift"] == [{"kind": "arguments", "detail": 'old.yaml lacks "max-num-seqs: 16"'}], service["drift"]
    config = Path(looked.paths.config, "old.yaml")
    config.write_text(config.read_text() + "max-num-seqs: 8\n")
    (service,) = status(looked, None, {**DECLARED, "args": {"max_num_seqs": 16}})["services"]
    assert 'has "max-num-seqs: 8" where "max-num-seqs: 16" is declared' in service["drift"][0]["detail"]


def test_a_unit_that_was_changed_by_hand(looked: Looked) -> None:
    unit = Path(looked.paths.units, OLD)
    unit.write_text(unit.read_text().replace("[Service]", "[Service]\nNice=-5", 1))
    (service,) = status(looked)["services"]
    assert kinds(service) == ["unit"] and 'has "Nice", which is not declared' in service["drift"][0]["detail"]


def test_one_that_does_not_run_and_one_that_does_not_start_at_boot(looked: Looked) -> None:
    looked.units.stop(OLD)
    (service,) = status(looked)["services"]
    assert service["state"] == "stopped" and kinds(service) == ["running"] and service["drift"][0]["detail"] == "it is inactive"
    looked.units.bring_up(OLD)
    looked.units.disable(OLD)
    looked.serving()
    (service,) = status(looked)["services"]
    assert service["ready"] and kinds(service) == ["boot"]


def test_what_is_at_rest_is_no_drift_unless_it_is_the_one_that_has_to_serve(looked: Looked) -> None:
    looked.units.stop(OLD)
    looked.units.disable(OLD)
    found = status(looked)
    assert found["services"] == [] and found["at_rest"] == ["old"] and not found["drifted"]
    (service,) = status(looked, "old")["services"]
    assert kinds(service) == ["running", "boot"] and found["drifted"] is False


def test_the_one_that_has_to_serve_may_not_even_be_there(looked: Looked) -> None:
    new = {**DECLARED, "name": "new", "model": "/models/new"}
    found = status(looked, "new", DECLARED, new)
    by_name = {service["name"]: service for service in found["services"]}
    assert by_name["new"]["state"] == "missing" and kinds(by_name["new"])[:2] == ["missing", "rival"], by_name["new"]["drift"]
    assert OLD in by_name["new"]["drift"][1]["detail"] and by_name["old"]["ready"] and found["drifted"]
    with pytest.raises(GpuFleetError, match="not in the catalogue of this host"):
        status(looked, "nothing")


def test_a_service_that_no_entry_declares_is_still_told_of(looked: Looked) -> None:
    (service,) = status(looked, None, {**DECLARED, "name": "other"})["services"]
    assert service["drift"] is None and not service["in_catalogue"] and service["ready"] and service["drift_unknown"] is None


def test_a_driver_that_says_nothing_hides_no_service(looked: Looked) -> None:
    looked.driver_answers = False
    found = status(looked)
    (service,) = found["services"]
    assert service["ready"] and service["state"] == "serves" and service["drift"] is None and "cannot be read" in service["drift_unknown"]
    assert found["driver"]["available"] is False and found["driver"]["reason"] == "no_driver" and not found["drifted"]


def test_who_else_is_on_the_gpus(looked: Looked) -> None:
    looked.processes = (
        GpuProcess(100, "C", 90000, name="VLLM::Worker", unit=OLD),
        GpuProcess(700, "C", 2048, name="train.py", user="bob"),
        GpuProcess(701, "C", 4096, name="VLLM::Worker", orphan=True),
    )
    found = status(looked)["others"]
    assert [(each["pid"], each["user"], each["orphan"], each["gpus"], each["used_mib"]) for each in found] == [
        (700, "bob", False, [1], 2048), (701, None, True, [1], 4096),
    ]  # fmt: skip


def test_a_change_that_is_under_way_is_told_with_who(looked: Looked) -> None:
    looked.begin()
    found = status(looked)
    assert "vllm_service started new, begun by anna from 192.0.2.7" in found["under_way"]["story"]


def test_a_host_that_was_taken_out_and_not_taken_back_has_drifted(looked: Looked) -> None:
    note = {"since": "2026-11-30T11:40:12Z", "model": "new", "before_host": "/srv/out.yml", "after_host": "/srv/in.yml"}
    os.makedirs(looked.paths.records, exist_ok=True)
    Path(looked.paths.records, "taken-out.json").write_text(json.dumps(note), encoding="utf-8")
    found = status(looked)
    assert found["taken_out"] == dict(note, id=None) and found["drifted"] is True
    (service,) = found["services"]
    assert kinds(service) == ["taken out"] and note["since"] in service["drift"][0]["detail"]
    # What can't be read is told as that, with what to do, and not as a swap to nobody knows what.
    Path(looked.paths.records, "taken-out.json").write_text("{", encoding="utf-8")
    (service,) = status(looked)["services"]
    detail = service["drift"][0]["detail"]
    assert kinds(service) == ["taken out"] and detail.startswith("%s/taken-out.json says" % looked.paths.records)
    assert "can't be read" in detail and "then remove the file" in detail and "?" not in detail and "unknown" not in detail
    # What is declared nowhere can't drift; that the host is out is told all the same.
    os.unlink(Path(looked.paths.records, "taken-out.json"))
    assert status(looked)["taken_out"] is None


def test_a_change_that_nobody_carries_out_is_told_apart(looked: Looked) -> None:
    looked.begin()
    assert status(looked)["under_way"]["abandoned"] is False and status(looked)["under_way"]["complete_with"] is None
    looked.units.clock.now += 60.0
    found = status(looked)["under_way"]
    assert found["abandoned"] is True and "change.pyz resume id-" in found["complete_with"], found


def test_another_vllm_and_another_revision(looked: Looked, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(one, "_asked", lambda server, status: {"version": "0.18.0", "requests_running": 0, "requests_waiting": 0})
    monkeypatch.setattr(one, "_installed", lambda service: "0.19.1")
    monkeypatch.setattr(one, "_revision", lambda model, notes: "a" * 40)
    (service,) = status(looked, None, DECLARED, old="b" * 40)["services"]
    assert kinds(service) == ["version", "revision"] and "vLLM 0.18.0 runs, 0.19.1 is installed" in service["drift"][0]["detail"]


def test_one_reading_is_enough_for_everybody() -> None:
    reading = Snapshot(True, gpus=tuple(Gpu(index, "GPU-%d" % index, None, None) for index in range(3)))
    fixed = status_host.Fixed(reading)
    assert [each.index for each in fixed.snapshot(["2", "GPU-0"]).gpus] == [2, 0] and fixed.snapshot() is reading


def test_what_the_hosts_programs_are_made_of_is_sent_along() -> None:
    sent = set(closure("_status.host"))
    assert set(closure("_job.main")) | set(closure("_guard.main")) <= sent
