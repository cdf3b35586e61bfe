# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the table of a swap says of each way a host can end."""

from __future__ import annotations

from typing import Any

import pytest
from ansible.errors import AnsibleFilterError

from ansible_collections.gpufleet.vllm.plugins.filter.swap_rows import swap_failed, swap_results, swap_rows

OLD, NEW = "vllm-old.service", "vllm-new.service"
SWAPPED: dict[str, Any] = {
    "changed": True, "ready": True, "unit": NEW, "served_models": ["new"], "replaced": [{"unit": OLD, "name": "old"}],
    "serving_before": ["old"],
    "actions": [{"action": "write", "target": "/etc/x", "reason": ""}, {"action": "stop", "target": OLD, "reason": ""},
                {"action": "start", "target": NEW, "reason": ""}],
    "timings": {"total": 9.5, "downtime": 8.25, "load": 7.0},
}
CHECKED: dict[str, Any] = {"served_models": [], "ready": False, "timings": {"total": 0.3, "load": 0.0, "downtime": 0.0}}
UNCHANGED: dict[str, Any] = {
    "changed": False, "ready": True, "unit": NEW, "served_models": ["new"], "replaced": [], "actions": [], "timings": {"total": 0.3},
    "serving_before": ["new"],
}


def row(result: dict[str, Any], plan: bool = False) -> dict[str, Any]:
    return swap_rows({"gpu01": result}, "new", plan)[0]


@pytest.mark.parametrize(("result", "said"), [
    (SWAPPED, {"before": "old", "after": "new", "result": "swapped", "downtime_s": 8.25, "total_s": 9.5}),
    (UNCHANGED, {"before": "new", "after": "new", "result": "ok, unchanged", "downtime_s": None}),
    ({**UNCHANGED, "ready": False, "warnings": ["It may hang."]},
     {"before": "new", "after": "new", "result": "unchanged, not seen to serve", "detail": "It may hang."}),
    ({**SWAPPED, "replaced": [], "serving_before": []}, {"before": None, "after": "new", "result": "started"}),
    ({**UNCHANGED, "changed": True, "actions": [{"action": "write", "target": "/x"}]}, {"before": "new", "result": "updated"}),
    ({**SWAPPED, "replaced": [], "serving_before": ["new"],
      "actions": [{"action": "stop", "target": NEW}, {"action": "start", "target": NEW}]},
     {"before": "new", "result": "restarted"}),
    ({"failed": True, "msg": "It died.\nMore.", "rolled_back": True, "serving_before": ["old"], "actions": [], "changed": True},
     {"before": "old", "after": "old", "result": "rolled back", "detail": "It died."}),
    ({"failed": True, "msg": "Lost.", "serving_before": ["old"], "actions": [], "changed": True, "timings": {"downtime": None}},
     {"before": "old", "after": None, "result": "FAILED", "downtime_s": "down"}),
    ({"failed": True, "msg": "No such model.", "changed": False, "serving_before": ["old"], "actions": []},
     {"before": "old", "after": "old", "result": "refused"}),
    ({"failed": True, "msg": "MODULE FAILURE", "changed": False, "rc": 255}, {"after": None, "result": "UNKNOWN"}),
    ({"unreachable": True, "msg": "No route."}, {"result": "unreachable", "detail": "No route."}),
    ({}, {"result": "untouched", "after": None}),
    ({"untouched": True, "serving_before": ["old"]}, {"before": "old", "after": "old", "result": "untouched", "detail": "not begun"}),
    ({**SWAPPED, **CHECKED}, {"before": "old", "after": "new", "result": "would swap"}),
    ({**SWAPPED, **CHECKED, "replaced": []}, {"result": "would start"}),
    ({**SWAPPED, **CHECKED, "replaced": [], "actions": [{"action": "stop", "target": NEW}, {"action": "start", "target": NEW}]},
     {"result": "would restart"}),
    ({"failed": True, "msg": "new cannot work on this host, and nothing was touched:\n  - port: taken. Free it.\n  - gpus: gone.",
      "changed": False, "actions": []}, {"result": "refused", "detail": "port: taken. Free it. (and 1 more)"}),
])
def test_each_end_has_its_word(result: dict[str, Any], said: dict[str, Any]) -> None:
    found = row(result)
    assert {key: found[key] for key in said} == said


def test_a_plan_names_its_steps_in_order() -> None:
    found = row(SWAPPED, plan=True)
    assert found == {"host": "gpu01", "now": "old", "then": "new", "plan": "write 1 file, stop %s, start %s" % (OLD, NEW)}
    assert row(UNCHANGED, plan=True)["plan"] == "nothing to do"


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
        "done": SWAPPED, "failed": {"failed": True, "msg": "x"}, "stopped_before": UNTOUCHED, "nothing_to_do": UNCHANGED,
        "of_another_swap": UNTOUCHED,
        "lost": {"unreachable": True, "msg": "Gone."}, "never_there": {"unreachable": True, "msg": "No route."}, "never_reached": {},
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


def test_the_phases_are_in_the_row_in_order() -> None:
    timings = {"total": 9.5, "downtime": 8.0, "load": 7.0, "stop": 1.0, "preflight": 0.2, "drain": 0.0}
    assert list(row({**SWAPPED, "timings": timings})["phases_s"].items()) == [("preflight", 0.2), ("stop", 1.0), ("load", 7.0)]


def test_anything_else_is_refused() -> None:
    with pytest.raises(AnsibleFilterError, match="list of host names"):
        swap_results("gpu01", {})
    with pytest.raises(AnsibleFilterError, match="list of host names"):
        swap_failed("gpu01", {})
    with pytest.raises(AnsibleFilterError, match="dictionary of results"):
        swap_rows(["gpu01"], "new")


def test_of_a_task_that_ran_out_of_time_only_the_time_is_kept() -> None:
    """Ansible warns whenever the rest is looked at."""
    late = {"failed": True, "msg": "Timed out after 300 second(s).", "timedout": {"period": 300, "frame": "..."}}
    for found in (
        swap_results(["a"], {"a": {"swap_model_plan": late}}, plan=True),
        swap_results(["a"], {"a": {"vllm_swap_result": late}}),
    ):
        assert found["a"]["timedout"] == {"period": 300} and found["a"]["failed"]
