# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the module does: here, as a job, by following one, or not at all."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.gpufleet.vllm.plugins.module_utils._core.errors import GpuFleetError
from ansible_collections.gpufleet.vllm.plugins.module_utils._core.host_lock import HostLock
from ansible_collections.gpufleet.vllm.plugins.module_utils._job import change as change_module
from ansible_collections.gpufleet.vllm.plugins.module_utils._job import underway
from ansible_collections.gpufleet.vllm.plugins.module_utils._job.abandoned import clear
from ansible_collections.gpufleet.vllm.plugins.module_utils._job.change import change
from ansible_collections.gpufleet.vllm.plugins.module_utils._job.store import Store
from ansible_collections.gpufleet.vllm.plugins.module_utils._service.parameters import to_request
from ansible_collections.gpufleet.vllm.plugins.module_utils._service.run import Run
from ansible_collections.gpufleet.vllm.plugins.module_utils._unit.change_unit import CHANGE_UNIT
from ansible_collections.gpufleet.vllm.tests.unit.plugins.module_utils._job.host import (
    NEW,
    OLD,
    PARAMS,
    Death,
    Host,
    patch,
)


class Managed(Host):
    """A host whose systemd runs the job when it is started."""

    held_back = False

    def run_job(self) -> None:
        """The unit was started: its condition, the job, and once more when it is killed."""
        while self.store.exists() and not self.held_back:
            try:
                self.job().run()
            except Death:
                self.revive(False)
            self.die_at = None

    def module(self, check_mode: bool = False, wait: bool = True, **params: Any) -> dict[str, Any]:
        asked = {**PARAMS, **params}
        try:
            return change(asked, to_request(asked), self.ports(), check_mode, wait)
        except GpuFleetError as exc:
            return dict(exc.result, msg=exc.msg, failed=True)


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Managed:
    """It serves the old one."""
    patch(monkeypatch)
    made = Managed(tmp_path)
    made.install("old")
    monkeypatch.setattr(change_module, "current_boot", lambda: "boot-%d" % made.boots)
    start = made.units.start

    def started(unit: str, no_block: bool = True, timeout: float = 30.0) -> None:
        if unit == CHANGE_UNIT:
            made.run_job()
        else:
            start(unit)

    monkeypatch.setattr(made.units, "start", started)
    return made


def actions(result: dict[str, Any]) -> list[tuple[str, str]]:
    return [(entry["action"], entry["target"]) for entry in result["actions"]]


def test_what_a_check_tells_is_what_the_job_does_and_then_nothing_is_left_to_do(host: Managed) -> None:
    before = host.snapshot()
    planned = host.module(check_mode=True)
    assert host.snapshot() == before and not host.store.exists() and planned["changed"]
    done = host.module()
    assert (
        actions(done) == actions(planned)
        and done["files"] == planned["files"]
        and done["diff"][:-1] == planned["diff"][:-1]
    )
    assert done["changed"] and done["ready"] and done["job"]["unit"] == CHANGE_UNIT and not done["job"]["attached"]
    assert [entry["name"] for entry in done["replaced"]] == ["old"] and done["timings"]["downtime"] > 0
    assert ("enable", CHANGE_UNIT) in actions(done) and host.paths.program in [entry["path"] for entry in done["files"]]
    again = host.module()
    assert not again["changed"] and again["actions"] == [] and "job" not in again


def test_what_fails_in_the_job_fails_in_the_module_with_all_that_is_known(host: Managed) -> None:
    done = host.module(env={"HINT": "broken"})
    assert done["failed"] and done["rolled_back"] and "Rolled back: %s serves old again" % OLD in done["msg"]
    assert done["diagnosis"] and done["timings"]["downtime"] > 0
    assert done["gpus_before"] and all(
        "free_mib" in gpu and "pci_bus_id" not in gpu for gpu in done["gpus_before"] + done["gpus_after"]
    )
    assert host.serving() == [OLD] == host.at_boot()


def test_states_that_wait_for_nobody_need_no_job(host: Managed) -> None:
    done = host.module(state="present")
    assert done["changed"] and "job" not in done and ("write", host.paths.program) in actions(done)
    assert host.serving() == [OLD]
    assert "job" not in host.module(state="stopped", name="old")
    assert host.serving() == []


def test_not_waited_for_it_tells_the_plan_and_the_same_again_brings_the_end(host: Managed) -> None:
    host.held_back = True
    begun = host.module(wait=False)
    assert begun["changed"] and not begun["ready"] and ("start", NEW) in actions(begun)
    followed = host.module(check_mode=True)
    assert actions(followed) == [("follow", CHANGE_UNIT)] and "begun by" in followed["actions"][0]["reason"]
    host.held_back = False
    done = host.module()
    assert done["job"] == {"id": begun["job"]["id"], "unit": CHANGE_UNIT, "attached": True}
    assert done["ready"] and actions(done) == actions(begun)


def test_another_request_is_refused_while_one_is_under_way(host: Managed) -> None:
    host.held_back = True
    host.module(wait=False)
    for asked in ({"port": 8001}, {"state": "present"}, {"state": "stopped"}):
        refused = host.module(**asked)
        assert (
            refused["failed"] and "vllm_service started new, begun by" in refused["msg"] and "since" in refused["msg"]
        ), asked
    assert host.module(check_mode=True, port=8001)["failed"]


def test_a_record_of_which_nothing_came_is_in_nobodys_way_for_long(host: Managed) -> None:
    host.held_back = True
    host.module(wait=False)
    host.units.clock.now += 60.0
    host.held_back = False
    done = host.module(stop_timeout=7)
    assert not done.get("failed") and done["ready"]


def test_a_change_whose_job_is_gone_is_undone_before_another_one_begins(host: Managed) -> None:
    host.begin()
    host.live(die_at=12)  # in the middle
    assert host.store.exists()
    host.revive(True)
    done = host.module(stop_timeout=7)
    assert not done.get("failed") and done["ready"] and done["serving_before"] == ["old"]


def abandoned(host: Managed) -> None:
    """Another change has begun and was half carried out, and its job is gone."""
    host.begin()
    host.live(die_at=12)
    assert host.store.exists()
    host.revive(False)


def test_a_plan_beside_an_abandoned_change_brings_that_to_its_end_first(host: Managed) -> None:
    abandoned(host)
    before = host.snapshot()
    planned = host.module(check_mode=True, stop_timeout=7)
    assert not planned.get("failed") and planned["changed"], planned
    first = planned["actions"][0]
    assert (first["action"], first["target"]) == ("complete", "vllm_service started new")
    assert "nobody carries it out any more" in first["reason"] and "begun by anna" in first["reason"]
    assert "looked at again" in planned["warnings"][0]
    assert host.snapshot() == before and host.store.exists(), "check mode touches nothing"
    done = host.module(stop_timeout=7)
    assert not done.get("failed") and done["ready"] and done["changed"] and done["actions"][0]["action"] == "complete"
    again = host.module(stop_timeout=7)
    assert not again["changed"] and again["actions"] == []


def test_what_stands_against_it_only_now_does_not_stand_against_the_plan(
    host: Managed, monkeypatch: pytest.MonkeyPatch
) -> None:
    abandoned(host)

    def refuse(*_given: Any, **_more: Any) -> None:
        raise GpuFleetError("GPU 3 is held.")

    monkeypatch.setattr(Run, "examine", refuse)
    planned = host.module(check_mode=True, stop_timeout=7)
    assert not planned.get("failed") and [each["action"] for each in planned["actions"]] == ["complete"]
    assert "GPU 3 is held." in planned["warnings"][0] and planned["timings"]["load"] is None


@pytest.mark.parametrize("asked", [{"state": "stopped"}, {"state": "present"}])
def test_other_states_wait_for_an_abandoned_change_as_well(host: Managed, asked: dict[str, Any]) -> None:
    abandoned(host)
    assert host.module(check_mode=True, **asked)["actions"][0]["action"] == "complete"
    done = host.module(**asked)
    assert (
        not done.get("failed")
        and done["changed"]
        and done["actions"][0]["action"] == "complete"
        and not host.store.exists()
    )


def test_the_same_again_says_that_nobody_carries_it_out(host: Managed) -> None:
    abandoned(host)
    planned = host.module(check_mode=True)
    assert (
        actions(planned) == [("follow", CHANGE_UNIT)]
        and "nobody carries it out any more" in planned["actions"][0]["reason"]
    )
    assert all(value is None for value in planned["timings"].values())


def test_who_does_not_wait_is_told_what_to_follow_first_and_has_begun_nothing(
    host: Managed, monkeypatch: pytest.MonkeyPatch
) -> None:
    abandoned(host)
    record = host.store.load()
    assert record is not None
    with monkeypatch.context() as nobody_waits:
        nobody_waits.delattr(underway, "wait_for_end")
        told = host.module(wait=False, state="restarted")
    assert told["failed"] and told["changed"] and actions(told) == [("complete", "vllm_service started new")]
    assert told["job"] == {"id": record["id"], "unit": CHANGE_UNIT, "attached": True, "first": True}
    assert "Nothing of what is asked for was begun" in told["msg"] and "follow %s" % record["id"] in told["msg"]
    assert not host.store.exists(), "its job was started"
    begun = host.module(wait=False, state="restarted")
    assert not begun.get("failed") and "first" not in begun["job"] and begun["job"]["id"] != record["id"]


def test_what_was_never_carried_out_is_nobodys_to_follow(host: Managed) -> None:
    host.held_back = True
    never = host.module(wait=False)["job"]["id"]
    host.units.clock.now += 60.0
    begun = host.module(wait=False, stop_timeout=7)
    assert not begun.get("failed") and "first" not in begun["job"] and begun["job"]["id"] != never


def test_no_message_advises_to_stop_what_nobody_carries_out(host: Managed) -> None:
    abandoned(host)
    record = host.store.load()
    assert record is not None
    said = underway.refusal(record, host.ports()).msg
    assert "systemctl stop" not in said and "Wait until" not in said
    assert "`%s resume %s`" % (host.paths.program, record["id"]) in said
    assert underway.resume(record["id"], host.store, host.ports()) and not host.store.exists(), (
        "which does what is said"
    )


def test_a_job_that_only_has_to_let_go_is_waited_for(host: Managed, monkeypatch: pytest.MonkeyPatch) -> None:
    abandoned(host)
    lock, clock = HostLock(host.paths.run, "vllm_service started new"), host.units.clock
    ended, sleep = underway.wait_for_end, clock.sleep

    def told(*given: Any) -> dict[str, Any]:
        result = ended(*given)
        lock.__enter__()  # as the job does until it is gone
        monkeypatch.setattr(clock, "sleep", lets_go)
        return result

    def lets_go(seconds: float) -> None:
        lock.__exit__(None, None, None)
        sleep(seconds)

    monkeypatch.setattr(underway, "wait_for_end", told)
    clear(host.store.load() or {}, host.ports(), host.store)
    assert not host.store.exists()


@pytest.mark.parametrize("asked", [0, 1, 3])
def test_the_end_of_a_change_is_told_once_its_job_is_gone(
    host: Managed, monkeypatch: pytest.MonkeyPatch, asked: int
) -> None:
    host.begin()
    host.live()
    ports, looks = host.ports(), []
    status = ports.systemd.status

    def later(unit: str) -> Any:
        looks.append(unit)
        found = status(unit)
        return replace(found, active_state="deactivating") if len(looks) <= asked else found

    monkeypatch.setattr(ports.systemd, "status", later)
    last = host.store.last()
    assert last is not None
    assert underway.wait_for_end(last["id"], host.store, ports) == last["result"] and looks == [CHANGE_UNIT] * (
        asked + 1
    )


def test_who_holds_the_lock_is_named_and_nothing_is_begun(host: Managed) -> None:
    with HostLock(host.paths.run, "gpu_reclaim"):
        refused = host.module()
    assert refused["failed"] and "gpu_reclaim" in refused["msg"] and not host.store.exists()
    assert host.serving() == [OLD] and "serving_before" not in refused, "whoever holds it may stop what served a moment ago"


@pytest.mark.parametrize("where", ["record", "lock"])
def test_what_cannot_be_written_down_is_not_begun_and_says_what_goes_on(host: Managed, monkeypatch: pytest.MonkeyPatch, where: str) -> None:
    """A host that was taken out of its balancer for this is taken back by what its result says."""
    if where == "record":
        monkeypatch.setattr(Store, "create", unwritable)
    else:
        monkeypatch.setattr(HostLock, "__enter__", unwritable)
    refused = host.module()
    assert refused["failed"] and refused["msg"] == "Cannot write it: No space left on device. Nothing was touched."
    assert refused["serving_before"] == ["old"] and host.serving() == [OLD] and not host.store.exists()


def unwritable(*_arguments: Any) -> None:
    raise GpuFleetError("Cannot write it: No space left on device.")


def test_a_job_that_never_ends_anything_is_told_with_where_to_look(host: Managed) -> None:
    host.held_back = True
    refused = host.module()
    assert refused["failed"] and "journalctl -u %s" % CHANGE_UNIT in refused["msg"]


def test_no_secret_is_left_when_it_is_over(host: Managed) -> None:
    secret = "sk-tell-nobody-7341"
    host.module(secrets={"VLLM_API_KEY": secret}, env={"HINT": "broken"})
    readable = [path for path in host.root.rglob("*") if path.is_file() and secret.encode() in path.read_bytes()]
    assert readable == []
    host.module(secrets={"VLLM_API_KEY": secret})
    readable = [path for path in host.root.rglob("*") if path.is_file() and secret.encode() in path.read_bytes()]
    assert [path.name for path in readable] == ["new.env"]


def test_a_job_that_is_gone_is_started_again_for_its_own_change_only(host: Managed) -> None:
    host.held_back = True
    begun = host.module(wait=False, state="restarted")["job"]["id"]
    host.held_back = False
    assert not underway.resume("another", host.store, host.ports()) and host.store.exists()
    assert underway.resume(begun, host.store, host.ports()) and not host.store.exists()
    starts = host.serving()
    assert not underway.resume(begun, host.store, host.ports()), "it has ended"
    assert host.serving() == starts == [NEW]
