# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The table of a fleet's status, what it has no room for, and which hosts fail the run."""

from __future__ import annotations

from typing import Any, Dict

import pytest
from ansible.errors import AnsibleFilterError

from ansible_collections.gpufleet.vllm.plugins.plugin_utils._status import (
    age,
    declarations,
    findings_of,
    rows_of,
    spans,
)
from ansible_collections.gpufleet.vllm.plugins.plugin_utils._status_faults import faults_of

NOW = 1_800_000_000.0


def service(**more: Any) -> Dict[str, Any]:
    return {
        "name": "kimi", "model": "/models/Kimi-K2.5", "state": "serves", "ready": True, "gpus": [0, 1], "since": NOW - 90000, "detail": "",
        "requests_running": 3, "requests_waiting": 1, "drift": [], "drift_unknown": None, "notes": [], "port": 8000, "version": "0.19.1",
        **more,
    }  # fmt: skip


def host(*services: Dict[str, Any], **more: Any) -> Dict[str, Any]:
    gpus = [{"index": index, "state": "ok", "used_mib": 93000, "total_mib": 97887} for index in range(4)]
    driver = {"available": True, "processes_reliable": True}
    return {"services": list(services), "gpus": gpus, "driver": driver, "others": [], "under_way": None, **more}


def test_a_row_says_what_serves_on_what_since_when() -> None:
    (row,) = rows_of({"gpu01": host(service())}, NOW)
    assert row == {
        "host": "gpu01", "service": "kimi", "model": "Kimi-K2.5", "state": "active", "ready": "yes", "gpus": "0-1", "gpu_gib": "182/191",
        "up": "25 h", "requests": "3+1", "drift": None, "port": 8000, "version": "0.19.1", "since": NOW - 90000, "ok": True,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("more", "state", "ready", "drift"),
    [
        ({"state": "failed"}, "FAILED", "no", None),
        ({"state": "silent"}, "active", "no answer", None),
        ({"state": "not serving"}, "active", "NO", None),
        ({"drift": [{"kind": "boot", "detail": "x"}, {"kind": "unit", "detail": "y"}]}, "active", "yes", "boot, unit"),
        ({"drift": None, "drift_unknown": "the driver hangs"}, "active", "yes", "?"),
        ({"drift": None}, "active", "yes", "undeclared"),
    ],
)
def test_a_row_shows_what_is_not_as_it_should_be(more: Dict[str, Any], state: str, ready: str, drift: Any) -> None:
    (row,) = rows_of({"gpu01": host(service(**more))}, NOW)
    assert (row["state"], row["ready"], row["drift"]) == (state, ready, drift)
    assert row["ok"] is False
    assert faults_of({"gpu01": host(service(**more))}, True) or drift is None, "what fails a run with fail_on_drift is not ok"


def test_hosts_without_a_service_and_hosts_that_did_not_answer_have_rows() -> None:
    results = {"gpu01": host(), "gpu02": {"unreachable": True, "msg": "No route to host"}, "gpu03": {}, "gpu04": {"failed": True}}
    results["gpu05"] = {"failed": True, "timedout": {"period": 120}, "msg": "it took longer than 120 s"}
    rows = rows_of(results, NOW)
    assert [(row["host"], row["state"], row["ok"]) for row in rows] == [
        ("gpu01", "no service", True), ("gpu02", "UNREACHABLE", False), ("gpu03", "UNKNOWN", False), ("gpu04", "UNKNOWN", False),
        ("gpu05", "TIMED OUT", False),
    ]  # fmt: skip
    with pytest.raises(AnsibleFilterError):
        rows_of([], NOW)


def test_what_there_is_no_room_for_is_told_beneath() -> None:
    other = {"pid": 7, "name": "train.py", "user": "bob", "unit": None, "container": None, "orphan": False, "gpus": [2, 3],
             "used_mib": 20480}  # fmt: skip
    driver = {"available": False, "reason": "driver_hung", "detail": "a call did not return"}
    drift = [{"kind": "boot", "detail": "it does not start at boot"}]
    found = findings_of({
        "gpu01": host(service(drift=drift, detail="late"), others=[other, {**other, "used_mib": 0}, {**other, "orphan": True}]),
        "gpu02": host(driver=driver, under_way={"story": "vllm_service started kimi"}),
        "gpu03": {"failed": True, "msg": "No systemd.\nmore"},
        "gpu04": host(under_way={"story": "vllm_service started kimi", "abandoned": True, "complete_with": "change.pyz resume 7"}),
    })  # fmt: skip
    assert [(each["host"], each["about"], each["detail"]) for each in found] == [
        ("gpu01", "kimi", "late"),
        ("gpu01", "kimi", "boot: it does not start at boot"),
        ("gpu01", "not a service", "train.py (pid 7, user bob, no unit) holds 20 GiB on GPU 2-3"),
        ("gpu01", "orphan", "train.py (pid 7, user bob, no unit) holds 20 GiB on GPU 2-3"),
        ("gpu02", "driver", "driver_hung: a call did not return"),
        ("gpu02", "under way", "vllm_service started kimi"),
        ("gpu03", "host", "No systemd."),
        ("gpu04", "abandoned", "nobody carries it out any more: `change.pyz resume 7` there, as root, brings it to its end, and so does "
                               "the next swap: vllm_service started kimi"),
    ]


def test_a_look_that_did_not_finish_says_where_to_look() -> None:
    late = {"failed": True, "timedout": {"frame": "x", "period": 120}, "msg": "Timed out after 120 second(s)."}
    text = faults_of({"gpu01": late}, False)["gpu01"]
    assert "did not finish within 120 s" in text and "`ssh gpu01`" in text and "`dmesg`" in text
    assert [each["detail"] for each in findings_of({"gpu01": late})] == [text], "all of it fits"
    assert "not looked at" in faults_of({"gpu01": {}, "gpu02": {"failed": True, "msg": " "}}, False)["gpu02"]


def test_a_stranger_of_whom_it_is_not_known_how_much_he_holds() -> None:
    other = {"pid": 7, "name": "x", "user": "bob", "gpus": [1], "used_mib": None}
    found = findings_of({"gpu01": host(others=[other, {**other, "pid": 8, "used_mib": 0}])})
    assert [each["detail"] for each in found] == ["x (pid 7, user bob, no unit) holds an unknown amount on GPU 1"]


def test_drift_fails_only_on_request_and_a_host_that_is_not_seen_always() -> None:
    results = {
        "gpu01": host(service(drift=[{"kind": "boot", "detail": "it does not start at boot"}])),
        "gpu02": {"unreachable": True, "msg": "gone"},
        "gpu03": host(service()), "gpu04": host(service(drift=None, drift_unknown="the driver hangs")), "gpu05": host(service(drift=None)),
    }  # fmt: skip
    assert faults_of(results, False) == {"gpu02": "gone"}
    assert faults_of(results, True) == {
        "gpu01": "kimi: boot (it does not start at boot). `ansible-playbook gpufleet.vllm.swap_model -e model=kimi -e target=gpu01 --check "
                 "--diff` shows what would put it right.",
        "gpu02": "gone",
        "gpu04": "kimi: whether it is as declared is unknown: the driver hangs.",
        "gpu05": "kimi is in no catalogue. Enter it in `vllm_models` for this host, or stop it for good: vllm_service with `name: kimi` "
                 "and `state: absent`.",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("kinds", "ways"),
    [
        (["boot", "unit", "running"], ["swap_model -e model=kimi -e target=gpu01"]),
        (["version", "arguments"], ["`state: restarted`", "swap_model"]),
        (["revision"], ["gpufleet.vllm.deploy -e model=kimi -e target=gpu01"]),
        (["taken out"], ["`after_host`"]),
        (["boot", "refused", "taken out"], ["Correct its entry"]),
    ],
)
def test_each_kind_of_drift_says_what_to_do_about_it_once(kinds: list[str], ways: list[str]) -> None:
    drift = [{"kind": kind, "detail": "so it is."} for kind in kinds]
    text = faults_of({"gpu01": host(service(drift=drift))}, True)["gpu01"]
    told, _end, advice = text.partition(". ")
    assert told.startswith("kimi: %s (so it is)" % kinds[0]) and all(way in advice for way in ways)
    assert sum(advice.count(word) for word in ("swap_model", "state: restarted", "deploy", "after_host", "Correct its entry")) == len(ways)


def test_a_service_that_could_not_be_looked_at_fails_its_host_whatever_was_asked() -> None:
    problem = "it could not be looked at: ValueError: odd file (manifest.py, line 7)"
    results = {"gpu01": host(service(state="unknown", ready=False, detail=problem, drift=None, drift_unknown=problem), service())}
    assert faults_of(results, False) == faults_of(results, True) == {"gpu01": "kimi: " + problem + "."}
    assert [each["detail"] for each in findings_of(results)] == [problem]
    rows = rows_of(results, NOW)
    assert [(row["state"], row["drift"], row["ok"]) for row in rows] == [("UNKNOWN", "?", False), ("active", None, True)]


def test_the_catalogue_is_taken_apart_and_its_secrets_apart_from_it() -> None:
    made = declarations({
        "kimi": {"path": "/models/Kimi", "gpus": "all", "revision": "abc", "secrets": {"VLLM_API_KEY": "sk-1"}},
        "broken": {"gpu": [0]},
    })  # fmt: skip
    (entry,) = made["entries"]
    assert entry["gpus"] == ["all"] and entry["replace"] == "conflicting" and entry["state"] == "started" and "secrets" not in entry
    assert made["secrets"] == {"kimi": {"VLLM_API_KEY": "sk-1"}} and made["revisions"] == {"kimi": "abc"}
    assert list(made["faults"]) == ["broken"] and "unknown key 'gpu'" in made["faults"]["broken"], made["faults"]


def test_words_for_numbers() -> None:
    assert [spans(each) for each in ([0, 1, 2, 3], [0, 2, 3, 7], [4], [])] == ["0-3", "0,2-3,7", "4", None]
    assert [age(each) for each in (5, 119, 130, 7300, 90000, 200000)] == ["5 s", "119 s", "2 min", "2 h", "25 h", "2 d"]


def test_a_host_without_a_service_that_was_taken_out_is_told_of() -> None:
    out = {"since": "2026-11-30T11:40:12Z", "model": "new", "before_host": None, "after_host": None}
    found = findings_of({"gpu01": {**host(), "services": [], "taken_out": out}})
    assert [each["detail"] for each in found if each["about"] == "taken out"] == ["since 2026-11-30T11:40:12Z, by a swap to new"]
    found = findings_of({"gpu01": {**host(), "services": [], "taken_out": dict.fromkeys(out)}})
    (detail,) = [each["detail"] for each in found if each["about"] == "taken out"]
    assert detail.startswith("/var/lib/gpufleet/taken-out.json says") and "can't be read" in detail and "?" not in detail
