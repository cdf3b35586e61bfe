# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What somebody did to a host by hand, what nobody has foreseen, and what takes too long: told, and never with a secret."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.gpufleet.vllm.plugins.module_utils._core.errors import GpuFleetError
from ansible_collections.gpufleet.vllm.plugins.module_utils._gpu.types import GpuProcess
from ansible_collections.gpufleet.vllm.plugins.module_utils._server.ready import ReadyState
from ansible_collections.gpufleet.vllm.plugins.module_utils._status import service as one
from ansible_collections.gpufleet.vllm.plugins.module_utils._status.drift import _differences
from ansible_collections.gpufleet.vllm.plugins.module_utils._status.state import state_of
from ansible_collections.gpufleet.vllm.plugins.module_utils._systemd.show import UnitStatus
from ansible_collections.gpufleet.vllm.plugins.plugin_utils._status import findings_of
from ansible_collections.gpufleet.vllm.tests.unit.plugins.module_utils._job.host import OLD
from ansible_collections.gpufleet.vllm.tests.unit.plugins.module_utils._status.place import (
    DECLARED,
    Looked,
    broken,
    kinds,
    link,
    status,
)


def test_what_somebody_wrote_into_a_file_by_hand_may_be_a_secret(looked: Looked) -> None:
    unit = Path(looked.paths.units, OLD)
    by_hand = '[Service]\nEnvironment="VLLM_API_KEY=sk-one"\nEnvironment=HF_TOKEN=sk-two\nSomething=sk-three\n# sk-four\n'
    unit.write_text(unit.read_text().replace("[Service]\n", by_hand, 1))
    config = Path(looked.paths.config, "old.yaml")
    config.write_text(config.read_text() + 'api-key: "sk-five=a"\n- sk-six\nseed: 1\nrevision: sk-seven\n')
    declared = {**DECLARED, "args": {"seed": 2, "revision": "main"}}
    text = json.dumps(status(looked, None, declared)["services"])
    assert "sk-" not in text
    details = [each["detail"] for each in status(looked, None, declared)["services"][0]["drift"]]
    assert any('has "VLLM_API_KEY", which is not declared, has "HF_TOKEN", which is' in each for each in details), details
    assert any('old.yaml has "api-key", which is not declared, has a line that is not' in each for each in details), details


@pytest.mark.parametrize(("has", "declared", "told"), [
    ("ExecStart=/bin/vllm --api-key sk-1", "ExecStart=/bin/vllm", 'has another "ExecStart" where "ExecStart=/bin/vllm" is declared'),
    ("Environment=HINT=sk-1", "Environment=HINT=x", 'has another "HINT" than is declared'),
    ("Nice=5", "Nice=0", 'has "Nice=5" where "Nice=0" is declared'),
    ("", "Environment=HF_TOKEN=sk-1", 'lacks "HF_TOKEN"'),
])
def test_of_a_changed_line_only_a_plain_value_is_told(has: str, declared: str, told: str) -> None:
    assert _differences("x.service", has.encode(), declared.encode()) == "x.service " + told


@pytest.mark.parametrize(("has", "declared", "told"), [
    ("api-key: 12345", "api-key: 5", 'has another "api-key" than is declared'),
    ("max-num-tokens: 1", "max-num-tokens: 2", 'has "max-num-tokens: 1" where "max-num-tokens: 2" is declared'),
    ("", "api-key:\n- sk-1", 'lacks "api-key", lacks a line that is declared'),
    ("model: /m/sk-1", "model: /m/a", 'has another "model" where "model: /m/a" is declared'),
])
def test_of_an_argument_as_well(has: str, declared: str, told: str) -> None:
    assert _differences("x.yaml", has.encode(), declared.encode()) == "x.yaml " + told


def test_an_entry_that_cannot_be_used_is_no_missing_entry(looked: Looked) -> None:
    for expected in (None, "old"):
        found = broken(looked, expected, old="unknown key 'prot' (did you mean 'port'?).", other="no path")
        (service,) = found["services"]
        assert service["in_catalogue"] and service["ready"] and service["name"] == "old" and found["drifted"]
        assert kinds(service) == ["refused"] and "'prot'" in service["drift"][0]["detail"], service["drift"]
        assert found["faults"]["other"] == "no path"
    by_name = {each["name"]: each for each in broken(looked, "new", new="no path")["services"]}
    assert by_name["new"]["state"] == "missing" and "no path" in by_name["new"]["drift"][0]["detail"]
    assert by_name["old"]["drift"] is None and not by_name["old"]["in_catalogue"]
    with pytest.raises(GpuFleetError, match="of which nothing can be said: no unit"):
        broken(looked, "///", **{"///": "no unit."})


def test_one_service_that_cannot_be_looked_at_hides_no_other(looked: Looked, monkeypatch: pytest.MonkeyPatch) -> None:

    def read_record(model: str) -> Any:
        if model == "/models/new":
            raise ValueError("odd file")
        return None

    looked.install("new")
    monkeypatch.setattr(one, "read_record", read_record)
    looked.units.enable("vllm-new.service")
    found = status(looked, None, DECLARED, {**DECLARED, "name": "new", "model": "/models/new"})
    by_name = {each["name"]: each for each in found["services"]}
    assert by_name["old"]["state"] != "unknown" and by_name["old"]["drift"] is not None
    odd = by_name["new"]
    assert odd["state"] == "unknown" and odd["drift"] is None and set(odd) == set(by_name["old"])
    assert odd["detail"] == odd["drift_unknown"] and "could not be looked at: ValueError: odd file (" in odd["detail"]


def test_a_mask_hides_no_service_that_runs(looked: Looked) -> None:
    path = link(looked, OLD, "/dev/null")
    looked.units.units[OLD] = replace(looked.units.units[OLD], unit_file_state="masked")
    looked.processes = (GpuProcess(100, "C", 90000, name="VLLM::Worker", unit=OLD),)
    for expected in (None, "old"):
        found = status(looked, expected)
        (service,) = found["services"]
        assert kinds(service)[0] == "unit" and f"{path} is a symbolic link to /dev/null" in service["drift"][0]["detail"]
        assert service["name"] == "old" and service["state"] == "masked" and found["others"] == []
        assert "what was started before still runs (pid " in service["detail"]
    (service,) = broken(looked, None)["services"]
    assert service["drift"] is None and "symbolic link" in service["notes"][0], "nobody declares it, and it is told all the same"
    looked.units.stop(OLD)
    assert status(looked)["at_rest"] == ["old"]


def test_a_unit_file_that_lies_elsewhere(looked: Looked, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere.service"
    Path(looked.paths.units, OLD).rename(elsewhere)
    link(looked, OLD, elsewhere)
    link(looked, "vllm-alias.service", OLD)
    link(looked, "vllm-foreign.service", "/dev/null")
    (service,) = status(looked)["services"]
    assert service["ready"] and service["gpus"] == [0, 1, 2, 3] and f"link to {elsewhere}, not" in service["drift"][0]["detail"]


def test_a_start_that_takes_too_long_and_a_process_that_is_gone() -> None:
    slow = UnitStatus(OLD, "loaded", "activating", "start-pre", state_change=1000.0)
    assert state_of(slow, None, True, 2800.0, 1800.0)["detail"] == "its guard waits for free memory"
    late = state_of(slow, None, True, 2801.0, 1800.0)
    assert late["state"] == "starting" and "for 1801 s now, longer than its ready_timeout of 1800 s" in late["detail"]
    loading = UnitStatus(OLD, "loaded", "active", "running", main_pid=7, active_enter=1000.0)
    seen = ReadyState(False, "loading", "HTTP 503")
    assert "HTTP 503, for 5000 s now" in state_of(loading, seen, True, 6000.0, 60.0)["detail"]
    gone = state_of(UnitStatus(OLD, "loaded", "active", "exited"), None, True, 0.0, 60.0)
    assert gone["state"] == "exited" and not gone["ready"] and f"journalctl -u {OLD}" in gone["detail"]


def test_a_start_is_held_against_the_ready_timeout_of_its_declaration(looked: Looked) -> None:
    began = looked.ports().clock.time() - 100
    up = replace(looked.units.units[OLD], active_state="activating", sub_state="start-pre", main_pid=0, state_change=began)
    for timeout, told in ((60, True), (600, False)):
        looked.units.units[OLD] = up
        (service,) = status(looked, None, {**DECLARED, "ready_timeout": timeout})["services"]
        assert service["state"] == "starting" and ("longer than its ready_timeout" in service["detail"]) is told, service


def test_a_service_without_its_process_has_drifted(looked: Looked) -> None:
    looked.units.units[OLD] = replace(looked.units.units[OLD], sub_state="exited", main_pid=0)
    (service,) = status(looked)["services"]
    assert service["state"] == "exited" and "running" in kinds(service), service["drift"]


def test_a_server_of_which_it_is_not_known_where_it_listens() -> None:
    runs = state_of(UnitStatus(OLD, "loaded", "active", "running", main_pid=7), None, True, 0.0, 60.0)
    assert runs["state"] == "active" and "whether it serves is not known" in runs["detail"]


def test_a_number_that_is_none(looked: Looked) -> None:
    class Odd:
        def version(self, timeout: float) -> str:
            return "0.19.1"

        def metrics(self, timeout: float) -> dict[str, float]:
            return {"num_requests_running": float("nan"), "num_requests_waiting": 2.0}

    said = one._asked(Odd(), UnitStatus(OLD, "loaded", "active", "running", main_pid=7))  # type: ignore[arg-type]
    assert said == {"version": "0.19.1", "requests_running": None, "requests_waiting": 2}


@pytest.mark.parametrize(("runs", "installed", "kinds_"), [
    ("0.32.0", "0.32.0+cpu", []), ("0.19.1+cu129", "0.19.1", []), ("0.19.1+cu129", "0.19.1+CU129", []),
    ("0.19.1+cu128", "0.19.1+cu129", ["version"]), ("0.19.1", "0.19.1.post1", ["version"]), ("0.19.1", "0.19.10", ["version"]),
])
def test_a_wheel_may_have_a_label_of_which_the_program_does_not_know(
    looked: Looked, monkeypatch: pytest.MonkeyPatch, runs: str, installed: str, kinds_: list[str]
) -> None:
    monkeypatch.setattr(one, "_asked", lambda server, status: {"version": runs, "requests_running": 0, "requests_waiting": 0})
    monkeypatch.setattr(one, "_installed", lambda service: installed)
    assert kinds(status(looked)["services"][0]) == kinds_


@pytest.mark.parametrize(
    ("state", "sub_state", "word"), [("failed", "failed", "failed"), ("activating", "auto-restart", "crashing")], ids=["failed", "crashing"]
)
def test_one_that_has_failed_says_why_by_its_journal(looked: Looked, state: str, sub_state: str, word: str) -> None:
    ended = replace(looked.units.units[OLD], active_state=state, sub_state=sub_state, result="exit-code", main_pid=0,
                    exec_main_code="exited", exec_main_status=1)  # fmt: skip
    looked.units.units[OLD] = ended
    looked.journal = ("OSError: [Errno 98] error while attempting to bind on address ('0.0.0.0', 8000): address already in use",)
    (service,) = status(looked)["services"]
    assert service["state"] == word and not service["ready"]
    assert service["diagnosis"]["summary"] in service["detail"] and service["diagnosis"]["kind"] != "unknown", service
    found = [each["detail"] for each in findings_of({"gpu01": status(looked)}) if each["about"] == "old"]
    assert service["detail"][:300] in found and service["diagnosis"]["advice"][:300] in found, found


def test_a_journal_that_cannot_be_read_hides_no_failure(looked: Looked) -> None:
    looked.units.units[OLD] = replace(looked.units.units[OLD], active_state="failed", sub_state="failed", result="exit-code", main_pid=0)
    looked.journal = None
    (service,) = status(looked)["services"]
    assert service["state"] == "failed" and "journal could not be read: no room" in service["detail"]
    assert looked.serving() == []


def test_one_that_serves_is_asked_for_no_journal(looked: Looked) -> None:
    looked.journal = None
    (service,) = status(looked)["services"]
    assert service["ready"] and service["diagnosis"] is None
