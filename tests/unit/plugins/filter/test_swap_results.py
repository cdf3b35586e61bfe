# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a swap came to on each host, out of the variables that the playbook leaves there."""

from __future__ import annotations

from typing import Any

import pytest
from ansible.errors import AnsibleFilterError

from ansible_collections.gpufleet.vllm.plugins.filter.swap_results import swap_failed, swap_results
from ansible_collections.gpufleet.vllm.plugins.filter.swap_rows import swap_rows
from ansible_collections.gpufleet.vllm.tests.unit.plugins.filter.test_swap_rows import MARK, OLD, SWAPPED, UNCHANGED

PLANNED: dict[str, Any] = {**SWAPPED, "served_models": [], "ready": False}
UNTOUCHED = {"untouched": True, "serving_before": ["old"]}
BROKEN = {"failed": True, "msg": "The balancer says no.\nMore."}


def test_results_tell_what_was_done_from_what_was_only_planned() -> None:
    hostvars = {
        "done": {"swap_model_plan": PLANNED, "vllm_swap_result": SWAPPED},
        "failed": {"swap_model_plan": PLANNED, "vllm_swap_result": SWAPPED, "swap_model_failure": {"failed": True, "msg": "x"}},
        "stopped_before": {"swap_model_plan": PLANNED},
        "nothing_to_do": {"swap_model_plan": UNCHANGED},
        "of_another_swap": {"swap_model_plan": PLANNED, "vllm_swap_result": {**SWAPPED, "unit": OLD}},
        "lost": {"swap_model_plan": PLANNED, "vllm_swap_result": {"unreachable": True, "msg": "Gone."}},
        "never_there": {"swap_model_plan": {"unreachable": True, "msg": "No route."}},
        "never_reached": {},
    }
    found = swap_results(list(hostvars), hostvars)
    assert found == {
        "done": SWAPPED, "failed": {"failed": True, "msg": "x", "served_when_planned": ["old"]},
        "stopped_before": UNTOUCHED, "nothing_to_do": UNCHANGED,
        "of_another_swap": UNTOUCHED,
        "lost": {"unreachable": True, "msg": "Gone.", "served_when_planned": ["old"]},
        "never_there": {"unreachable": True, "msg": "No route."}, "never_reached": {},
    }
    assert swap_results(["stopped_before"], hostvars, plan=True) == {"stopped_before": PLANNED}
    faults = swap_failed(list(hostvars), hostvars)
    assert list(faults) == ["failed", "lost", "never_there"]
    assert faults["failed"] == "x" and "Run the same command again" in faults["lost"]
    assert faults["never_there"].startswith("No route. This run touched nothing on it.")
    unspoken = {"gpu01": {"swap_model_plan": {"unreachable": True, "msg": "ssh: Name or service not known\n"}}}
    assert swap_failed(["gpu01"], unspoken)["gpu01"].startswith("ssh: Name or service not known. This run")


def test_a_host_whose_hook_before_failed_is_untouched_and_serves_what_it_did() -> None:
    hostvars = {"gpu01": {"swap_model_plan": PLANNED, "vllm_swap_result": {"skipped": True},
                          "swap_model_failure": {**BROKEN, "hook": "before_host"}}}
    found = swap_rows(swap_results(["gpu01"], hostvars), "new")[0]
    assert (found["before"], found["after"], found["result"]) == ("old", "old", "untouched")
    assert found["detail"] == "before_host failed: The balancer says no."
    assert swap_failed(["gpu01"], hostvars)["gpu01"].startswith("before_host failed: The balancer")


def test_a_host_whose_hook_after_failed_serves_the_new_model_and_is_told_of() -> None:
    failure = {**BROKEN, "hook": "after_host"}
    hostvars = {"gpu01": {"swap_model_plan": PLANNED, "vllm_swap_result": SWAPPED, "swap_model_failure": failure}}
    found = swap_rows(swap_results(["gpu01"], hostvars), "new")[0]
    assert (found["after"], found["result"], found["detail"]) == ("new", "swapped", "after_host failed: The balancer says no.")
    assert "gpu01" in swap_failed(["gpu01"], hostvars)


def test_a_swap_that_failed_is_told_also_where_the_hook_after_it_failed_too() -> None:
    rolled_back = {**SWAPPED, "failed": True, "rolled_back": True, "msg": "It ran out of memory.\nRolled back: old serves again."}
    hostvars = {"gpu01": {"swap_model_plan": PLANNED, "vllm_swap_result": rolled_back,
                          "swap_model_failure": {**BROKEN, "hook": "after_host"}}}
    results = swap_results(["gpu01"], hostvars)
    found = swap_rows(results, "new")[0]
    assert (found["after"], found["result"]) == ("old", "rolled back")
    assert found["detail"] == "It ran out of memory. And after_host failed: The balancer says no."
    assert results["gpu01"]["msg"].endswith("\nRolled back: old serves again.")
    fault = swap_failed(["gpu01"], hostvars)["gpu01"]
    assert fault.startswith(rolled_back["msg"] + "\nafter_host failed: The balancer says no.")


def test_check_mode_is_told() -> None:
    """A follower's result, and files that would be written, are in no other way to be told from what was done."""
    for name in ("ansible_check_mode", "vllm_swap_plan_only"):
        hostvars = {"gpu01": {"swap_model_plan": PLANNED, "vllm_swap_result": SWAPPED, name: True}}
        assert swap_results(["gpu01"], hostvars) == {"gpu01": {**SWAPPED, "check_mode": True}}
        hostvars["gpu01"][name] = False
        assert swap_results(["gpu01"], hostvars) == {"gpu01": SWAPPED}


OUT = {**UNCHANGED, "taken_out": MARK}
# What this run leaves behind on the controller when it has written down that it takes the host out.
NOTED = {
    "swap_model_noted": {"dest": "/x", "changed": True}, "swap_model_mark": MARK, "swap_model_marked": PLANNED.get("unit"),
    "after_host": "in.yml",
}  # fmt: skip


@pytest.mark.parametrize(("variables", "kept", "result"), [
    ({}, {"taken_out": MARK, "takes_back": False}, "ok, unchanged"),
    ({"after_host": "in.yml", "swap_model_taken_back": {"changed": True}}, {"changed": True, "taken_back": MARK}, "taken back"),
    ({"after_host": "in.yml", "swap_model_taken_back": {"changed": True, "failed": True}}, {"taken_out": MARK, "takes_back": True},
     "ok, unchanged"),
    ({"after_host": "in.yml", "swap_model_failure": {**BROKEN, "hook": "after_host"}}, {"taken_out": MARK, "hook": "after_host"},
     "ok, unchanged"),
    ({"after_host": "in.yml", "swap_model_taken_back": {"changed": True}, "vllm_swap_result": {**SWAPPED, "taken_out": MARK}},
     {"changed": True}, "swapped"),
])
def test_a_host_that_an_earlier_run_took_out_is_taken_back_or_told_of(
    variables: dict[str, Any], kept: dict[str, Any], result: str
) -> None:
    hostvars = {"gpu01": {"swap_model_plan": OUT, **variables}}
    found = swap_results(["gpu01"], hostvars)
    assert {key: found["gpu01"].get(key) for key in kept} == kept
    assert ("taken_out" in found["gpu01"]) == ("taken_out" in kept)
    assert swap_rows(found, "new")[0]["result"] == result
    planned = swap_results(["gpu01"], hostvars, plan=True)["gpu01"]
    assert planned == {**OUT, "takes_back": "after_host" in variables}


@pytest.mark.parametrize(("more", "kept", "detail"), [
    ({"swap_model_taken_back": {"changed": True}}, False, ""),
    ({"swap_model_failure": {**BROKEN, "hook": "after_host"}}, True, "after_host failed: The balancer says no. TAKEN OUT: "),
    ({}, True, "TAKEN OUT: before_host was begun"),  # the balancer could not be reached, and Ansible went on without the host
])
def test_a_host_that_this_very_run_took_out_is_no_news(more: dict[str, Any], kept: bool, detail: str) -> None:
    """The module has seen the note that was written just before it ran."""
    swapped = {**SWAPPED, "taken_out": MARK}
    found = swap_results(["gpu01"], {"gpu01": {"swap_model_plan": PLANNED, "vllm_swap_result": swapped, **NOTED, **more}})
    assert ("taken_out" in found["gpu01"]) is kept
    row = swap_rows(found, "new")[0]
    assert row["result"] == "swapped" and (row["detail"] or "").startswith(detail) and bool(row["detail"]) is kept
    assert not kept or row["detail"].endswith("Run the same command again: it takes the host back once it serves.")


@pytest.mark.parametrize(("more", "result", "detail"), [
    ({"swap_model_failure": {**BROKEN, "hook": "before_host"}}, "untouched", "before_host failed: The balancer says no. TAKEN OUT: "),
    # It ended the host's play by itself, or the balancer could not be reached.
    ({}, "untouched", "before_host was begun and did not come to its end, and no service was changed."),
    ({"vllm_swap_result": {**BROKEN, "actions": []}}, "refused", "The balancer says no. TAKEN OUT: "),
])
def test_a_host_that_this_run_took_out_and_did_not_swap_is_told_of(more: dict[str, Any], result: str, detail: str) -> None:
    hostvars = {"gpu01": {"swap_model_plan": PLANNED, **NOTED, **more}}
    row = swap_rows(swap_results(["gpu01"], hostvars), "new")[0]
    assert row["result"] == result and row["detail"].startswith(detail) and "TAKEN OUT" in row["detail"], row
    if "vllm_swap_result" not in more:
        assert "The host counts as taken out" in swap_failed(["gpu01"], hostvars)["gpu01"], "and the run fails"


def test_a_note_that_is_another_runs_by_now_is_not_called_this_ones() -> None:
    lost = {**NOTED, "swap_model_mark": {}, "swap_model_failure": {**BROKEN, "hook": "before_host"}}
    hostvars = {"gpu01": {"swap_model_plan": PLANNED, **lost}}
    assert swap_rows(swap_results(["gpu01"], hostvars), "new")[0]["detail"] == "before_host failed: The balancer says no."
    assert "counts as taken out" not in swap_failed(["gpu01"], hostvars)["gpu01"]


def test_the_note_of_a_swap_before_in_the_same_run_is_not_this_ones() -> None:
    before = {**NOTED, "swap_model_marked": "vllm-another.service", "swap_model_taken_back": {"changed": True}}
    hostvars = {"gpu01": {"swap_model_plan": PLANNED, **before}}
    assert "taken_out" not in swap_results(["gpu01"], hostvars)["gpu01"] and swap_failed(["gpu01"], hostvars) == {}


TOLD = (
    "TAKEN OUT: before_host was begun at 2026-11-30T11:40:12Z, for a swap to new. Nothing has taken it back. Run the same command again: "
    "it takes the host back once it serves."
)


def test_a_host_that_was_not_begun_and_serves_nothing_claims_nothing() -> None:
    out = {**PLANNED, "serving_before": [], "taken_out": MARK}
    found = swap_rows(swap_results(["gpu01"], {"gpu01": {"swap_model_plan": out, "after_host": "in.yml"}}), "new")[0]
    assert (found["before"], found["after"], found["result"], found["detail"]) == (None, None, "untouched", TOLD)


def test_an_after_host_that_failed_says_that_the_host_stays_out() -> None:
    failed = {"vllm_swap_result": SWAPPED, "swap_model_failure": {**BROKEN, "hook": "after_host"}}
    hostvars = {"gpu01": {"swap_model_plan": PLANNED, **NOTED, **failed}}
    assert "counts as taken out until after_host has succeeded" in swap_failed(["gpu01"], hostvars)["gpu01"]


def test_anything_else_is_refused() -> None:
    with pytest.raises(AnsibleFilterError, match="list of host names"):
        swap_results("gpu01", {})
    with pytest.raises(AnsibleFilterError, match="list of host names"):
        swap_failed("gpu01", {})


def test_of_a_task_that_ran_out_of_time_only_the_time_is_kept() -> None:
    """Ansible warns whenever the rest is looked at."""
    late = {"failed": True, "msg": "Timed out after 300 second(s).", "timedout": {"period": 300, "frame": "..."}}
    for found in (
        swap_results(["a"], {"a": {"swap_model_plan": late}}, plan=True),
        swap_results(["a"], {"a": {"vllm_swap_result": late}}),
    ):
        assert found["a"]["timedout"] == {"period": 300} and found["a"]["failed"]


def test_what_was_asked_of_each_host_comes_before_its_variables() -> None:
    plan = {**UNCHANGED, "taken_out": MARK}
    hostvars: dict[str, Any] = {"a": {"swap_model_plan": plan}, "b": {"swap_model_plan": plan, "after_host": "own.yml"}}
    asked: dict[str, Any] = {"a": {"after_host": "back.yml"}}
    for given, takes_back in ((asked, [True, True]), ({"b": {"after_host": ""}}, [False, False]), ({}, [False, True])):
        found = swap_results(["a", "b"], hostvars, plan=True, asked=given)
        assert [found[host]["takes_back"] for host in "ab"] == takes_back
    done = swap_results(["a", "b"], hostvars, asked={"a": {"vllm_swap_plan_only": True}})
    assert [found.get("check_mode") for found in done.values()] == [True, None]


def test_a_host_that_failed_before_has_nothing_of_this_swap() -> None:
    hostvars = {"a": {"swap_model_plan": PLANNED, "vllm_swap_result": SWAPPED, "swap_model_failure": {"failed": True, "msg": "x"}}}
    assert swap_results(["a"], hostvars, left_out=["a"]) == {"a": {"failed_before": True}}


def test_what_was_forgotten_is_nothing() -> None:
    names = ("plan", "failure", "mark", "marked", "noted", "note_now", "look", "taken_back")
    hostvars: dict[str, Any] = {"a": {**{"swap_model_" + name: {} for name in names}, "vllm_swap_result": {}}}
    assert swap_results(["a"], hostvars) == {"a": {}} and swap_results(["a"], hostvars, plan=True) == {"a": {}}
    assert swap_failed(["a"], hostvars) == {}
