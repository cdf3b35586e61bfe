# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the table of a swap says of each way a host can end."""

from __future__ import annotations

from typing import Any

import pytest
from ansible.errors import AnsibleFilterError

from ansible_collections.gpufleet.vllm.plugins.filter.swap_rows import swap_rows
from ansible_collections.gpufleet.vllm.plugins.module_utils._service.rollback import Undone
from ansible_collections.gpufleet.vllm.plugins.module_utils._unit.found import ManagedService

OLD, NEW = "vllm-old.service", "vllm-new.service"
SWAPPED: dict[str, Any] = {
    "changed": True, "ready": True, "unit": NEW, "served_models": ["new"], "replaced": [{"unit": OLD, "name": "old"}],
    "serving_before": ["old"],
    "actions": [{"action": "write", "target": "/etc/x", "reason": ""}, {"action": "stop", "target": OLD, "reason": ""},
                {"action": "start", "target": NEW, "reason": ""}],
    "timings": {"total": 9.5, "downtime": 8.25, "load": 7.0},
}
CHECKED: dict[str, Any] = {"served_models": [], "ready": False, "timings": {"total": 0.3, "load": None, "downtime": None}}
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
    ({**SWAPPED, "failed": True, "msg": "%s serves, but what it replaces is not all gone." % NEW},
     {"before": "old", "after": "new", "result": "FAILED", "downtime_s": 8.25}),
    ({"failed": True, "changed": True, "msg": "No.\nPUTTING BACK WHAT WAS THERE BEFORE FAILED: x.", "serving_before": ["old"],
      "actions": [], "timings": {"downtime": 0.0}}, {"before": "old", "after": "old", "result": "FAILED", "downtime_s": None}),
    ({"failed": True, "msg": "No such model.", "changed": False, "serving_before": ["old"], "actions": []},
     {"before": "old", "after": "old", "result": "refused"}),
    ({"failed": True, "msg": "MODULE FAILURE", "changed": False, "rc": 255}, {"after": None, "result": "UNKNOWN"}),
    ({"unreachable": True, "msg": "No route."}, {"result": "unreachable", "detail": "No route."}),
    ({"unreachable": True, "msg": "No route.", "served_when_planned": ["old"]}, {"before": "old", "after": None, "result": "unreachable"}),
    ({"failed": True, "msg": "Another change is under way.", "changed": False, "actions": [], "served_when_planned": ["old"]},
     {"before": "old", "after": None, "result": "refused"}),
    ({**UNCHANGED, "changed": True, "actions": [{"action": "enable", "target": NEW}], "check_mode": True}, {"result": "would update"}),
    ({**UNCHANGED, "changed": True, "ready": False, "served_models": [], "actions": [{"action": "follow", "target": "gpufleet-change"}]},
     {"result": "would follow"}),
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


ROLLED_BACK = {**SWAPPED, "failed": True, "msg": "It died.", "rolled_back": True, "ready": False, "served_models": []}


@pytest.mark.parametrize(("result", "said"), [
    (SWAPPED, ("old", "new", "swapped")),
    ({**SWAPPED, "serving_before": ["old", "small"]}, ("old, small", "new", "swapped")),
    ({**SWAPPED, **CHECKED}, ("old", "new", "would swap")),
    ({**SWAPPED, "failed": True, "msg": "It serves, but."}, ("old", "new", "FAILED")),
    (ROLLED_BACK, ("old", "old", "rolled back")),
    (UNCHANGED, ("new", "new", "ok, unchanged")),
    ({**UNCHANGED, "changed": True, "actions": [{"action": "write", "target": "/x"}]}, ("new", "new", "updated")),
    ({**UNCHANGED, "changed": True, "taken_back": {"since": "2026-11-30T11:40:12Z", "model": "new"}}, ("new", "new", "taken back")),
])
def test_before_and_after_are_names_of_the_catalogue_not_of_the_server(result: dict[str, Any], said: tuple[str, str, str]) -> None:
    """Both entries have the ``served_name`` that clients ask for; a balancer has to be told the same name of a host in both directions."""
    served = ["for-clients", "an-adapter"] if result["served_models"] else []
    found = row({**result, "served_models": served})
    assert (found["before"], found["after"], found["result"]) == said


def test_a_failure_before_the_swap_is_why_nobody_else_was_swapped() -> None:
    results = {"gpu01": {"untouched": True, "serving_before": ["old"]}, "gpu02": {"failed_before": True}, "gpu03": {}, "gpu04": SWAPPED}
    found = {each["host"]: (each["result"], each["detail"]) for each in swap_rows(results, "new")}
    why = "not begun, as gpu02 had failed before this swap, in the same run"
    assert found["gpu01"] == found["gpu03"] == ("untouched", why)
    assert found["gpu02"] == ("untouched", "it had failed before this swap, in the same run") and found["gpu04"][0] == "swapped"
    assert [each["detail"] for each in swap_rows({"gpu01": {}, "gpu03": {}}, "new")] == ["not begun", "not begun"]


def test_a_plan_names_its_steps_in_order() -> None:
    found = row(SWAPPED, plan=True)
    assert found == {"host": "gpu01", "now": "old", "then": "new", "plan": "write 1 file, stop %s, start %s" % (OLD, NEW)}
    assert row(UNCHANGED, plan=True)["plan"] == "nothing to do"


def test_the_phases_are_in_the_row_in_order() -> None:
    timings = {"total": 9.5, "downtime": 8.0, "load": 7.0, "stop": 1.0, "preflight": 0.2, "drain": 0.0}
    assert list(row({**SWAPPED, "timings": timings})["phases_s"].items()) == [("preflight", 0.2), ("stop", 1.0), ("load", 7.0)]


def test_anything_else_is_refused() -> None:
    with pytest.raises(AnsibleFilterError, match="dictionary of results"):
        swap_rows(["gpu01"], "new")


MARK = {"since": "2026-11-30T11:40:12Z", "model": "new", "before_host": "/srv/out.yml", "after_host": "/srv/in.yml"}


def test_a_host_that_is_still_taken_out_says_so_with_what_takes_it_back() -> None:
    found = row({**UNCHANGED, "taken_out": MARK, "takes_back": False})
    assert found["result"] == "ok, unchanged"
    assert found["detail"] == (
        "TAKEN OUT: before_host was begun at 2026-11-30T11:40:12Z, for a swap to new. Nothing has taken it back. Have after_host do it, "
        "unless that swap is still under way: ansible-playbook gpufleet.vllm.swap_model -i INVENTORY -e model=new -e target=gpu01 "
        "-e after_host=/srv/in.yml"
    )
    failed = row({"failed": True, "msg": "No such model.", "changed": False, "actions": [], "taken_out": MARK, "takes_back": False})
    assert failed["detail"].startswith("TAKEN OUT: ") and failed["detail"].endswith("(No such model.)")
    unread = row({**UNCHANGED, "taken_out": dict.fromkeys(MARK), "takes_back": False})["detail"]
    assert "a time that is not known" in unread and "-e after_host=FILE" in unread


def test_a_host_that_is_taken_back_says_so() -> None:
    found = row({**UNCHANGED, "changed": True, "taken_back": MARK})
    assert (found["result"], found["after"]) == ("taken back", "new") and "2026-11-30T11:40:12Z" in found["detail"]
    would = row({**UNCHANGED, "taken_out": MARK, "takes_back": True, "check_mode": True})
    assert would["result"] == "would take back"
    # A swap of its own is what its row is about.
    assert row({**SWAPPED, "taken_out": MARK, "takes_back": True})["result"] == "swapped"


def test_the_plan_says_what_becomes_of_a_host_that_is_taken_out() -> None:
    assert row({**UNCHANGED, "taken_out": MARK, "takes_back": True}, plan=True)["plan"] == "take it back"
    assert row({**SWAPPED, "taken_out": MARK, "takes_back": False}, plan=True)["plan"].endswith("start %s, leave it TAKEN OUT" % NEW)


def test_a_roll_back_that_failed_leads_the_row_with_what_to_do_next() -> None:
    old = ManagedService(OLD, "old", "/models/old", "old", (0,), 8000, "old", "/etc/systemd/system/" + OLD)
    text = Undone(problems=["%s does not serve old again (it died)" % OLD], down=[old]).text
    detail = row({"failed": True, "msg": "%s did not serve.\nSeen: it ended.\n%s" % (NEW, text), "changed": True, "actions": []})["detail"]
    assert detail.startswith("PUTTING BACK WHAT WAS THERE BEFORE FAILED: %s does not serve old again" % OLD)
    assert "See `journalctl -u %s`; when that is mended, run again with model=old." % OLD in detail
    assert detail.endswith("What had failed before: %s did not serve." % NEW)
