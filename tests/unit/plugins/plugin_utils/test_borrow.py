# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The table of borrowed GPUs, and what is wrong with a request for them."""

from __future__ import annotations

from typing import Any, Dict

import pytest

from ansible_collections.gpufleet.vllm.plugins.plugin_utils._borrow import faults, not_put_back, rows_of

DONE: Dict[str, Any] = {
    "changed": True, "actions": [], "gpus": [0, 1], "outcome": "succeeded", "rc": 0, "seconds": 41.7, "output": "a\n\n 187 GB/s \n",
    "services": [{"name": "kimi", "served": True, "back": True, "seen": "serves again"}],
    "timings": {"downtime": 60.0, "total": 61.0}, "left_behind": [],
    "msg": "", "put_back": True,
}  # fmt: skip


@pytest.mark.parametrize(
    ("result", "word", "ok"),
    [
        (DONE, "succeeded", True),
        ({**DONE, "failed": True, "outcome": "failed", "rc": 3, "msg": "it ended with exit status 3"}, "FAILED", False),
        ({**DONE, "failed": True, "outcome": "timed out", "rc": None}, "TIMED OUT", False),
        ({**DONE, "failed": True, "put_back": False, "msg": "PUTTING BACK FAILED"}, "NOT PUT BACK", False),
        ({**DONE, "put_back": None, "outcome": None, "actions": [{"action": "stop"}]}, "would run", True),
        ({"changed": True, "actions": [{"action": "follow"}]}, "under way", True),
        ({"failed": True, "changed": False, "actions": [], "put_back": None, "msg": "Another change ..."}, "refused", False),
        ({"failed": True, "msg": "Broken pipe"}, "UNKNOWN", False),
        ({"unreachable": True, "msg": "No route"}, "UNREACHABLE", False),
        ({}, "not begun", False),
    ],
)
def test_the_word_for_what_came_of_it(result: Dict[str, Any], word: str, ok: bool) -> None:
    (row,) = rows_of({"gpu01": result})
    assert (row["result"], row["ok"]) == (word, ok)
    assert not_put_back({"gpu01": result}) == (["gpu01"] if word in ("NOT PUT BACK", "UNKNOWN", "UNREACHABLE") else [])


def test_a_row_has_the_end_of_the_output_and_what_is_back() -> None:
    (row,) = rows_of({"gpu01": DONE})
    assert (row["last_line"], row["services"], row["gpus"], row["downtime_s"]) == ("187 GB/s", "kimi serves again", "0,1", 60.0)
    (row,) = rows_of({"gpu01": {**DONE, "services": [{"name": "kimi", "served": True, "back": False}], "left_behind": [{"pid": 7}]}})
    assert row["services"] == "kimi NOT BACK" and row["left_behind"] == 1 and row["detail"] == "it left 1 process behind, ended since"


@pytest.mark.parametrize(
    ("asked", "names", "said"),
    [
        ({"command": "", "gpus": ["all"]}, [], "no command is given"),
        ({"command": "true", "gpus": "0,x9"}, [], "'x9' in gpus is no GPU"),
        ({"command": "true", "gpus": []}, [], "`gpus` is empty"),
        ({"command": {"a": 1}, "gpus": ["all"]}, [], "a line for the shell"),
        ({"command": "true", "gpus": ["all"]}, ["gpu"], "did you mean gpus"),
        ({"command": "true", "gpus": ["all"]}, ["gpu_borrow_timout"], "did you mean gpu_borrow_timeout"),
    ],
)
def test_a_request_that_cannot_be_meant(asked: Dict[str, Any], names: Any, said: str) -> None:
    fault, *more = faults(asked, names)
    # What may be somebody else's is told so.
    assert said in fault and len(more) == ("gpu" in names)


@pytest.mark.parametrize("gpus", ["0,1", [0, 1], 4, "all", ["GPU-1c2d"]])
def test_gpus_may_be_said_in_every_way_that_the_module_takes(gpus: Any) -> None:
    assert faults({"command": ["nvidia-smi", "-L"], "gpus": gpus}, ["command", "gpus", "gpu_borrow_user", "unrelated"]) == []


def test_a_result_that_stands_says_nothing_of_the_services() -> None:
    result = {"changed": False, "outcome": "succeeded", "put_back": None, "rc": 0, "services": [], "actions": [], "detail": "it ended at 3"}
    (row,) = rows_of({"gpu01": result})
    assert (row["result"], row["ok"], row["services"], row["detail"]) == ("stands", True, None, "it ended at 3")


def test_a_result_that_nobody_had_heard_of_says_so() -> None:
    job = {"id": "a1", "attached": True, "ended": "2026-01-02 03:04:05"}
    (row,) = rows_of({"gpu01": {**DONE, "job": job}})
    assert row["result"] == "succeeded" and "ended at 2026-01-02 03:04:05, which nobody had heard of" in row["detail"]
    (row,) = rows_of({"gpu01": {**DONE, "job": job, "failed": True, "outcome": "failed", "msg": "it ended with 3"}})
    assert row["result"] == "FAILED" and "nobody had heard of" in row["detail"] and row["detail"].endswith("; it ended with 3")


@pytest.mark.parametrize(
    ("variables", "said"),
    [
        ({"gpu_borrow_timeout": "abc"}, "`gpu_borrow_timeout` is 'abc'. It is a whole number"),
        ({"gpu_borrow_timeout": 0}, "`gpu_borrow_timeout` is 0"),
        ({"gpu_borrow_output_kib": 1.5}, "is 1.5. It is a whole number"),
        ({"gpu_borrow_reconnect_timeout": "soon"}, "It is a whole number"),
        ({"gpu_borrow_force": "perhaps"}, "It is true or false"),
        ({"gpu_borrow_env": "A=b"}, "no dictionary"),
        ({"gpu_borrow_env": {"CUDA_VISIBLE_DEVICES": "0"}}, "what the command is told of its GPUs"),
        ({"gpu_borrow_chdir": "bench"}, "an absolute path"),
        ({"gpu_borrow_gpus": ["x9"]}, "'x9' in gpus is no GPU"),
        ({"gpu_borrow_usr": "nobody"}, "there is no variable gpu_borrow_usr; did you mean gpu_borrow_user"),
    ],
)
def test_every_value_of_every_host_is_checked(variables: Dict[str, Any], said: str) -> None:
    (fault,) = faults({"command": "true"}, [], {"gpu01": variables})
    assert said in fault
    (fault,) = faults({"command": "true"}, [], {"gpu01": {}, "gpu02": variables})
    assert said in fault and fault.endswith("(gpu02)")


def test_the_inventory_may_say_command_and_gpus() -> None:
    assert faults({}, [], {"gpu01": {"gpu_borrow_command": "true", "gpu_borrow_gpus": [0], "gpu_borrow_timeout": "300"}}) == []
    assert "no command" in faults({}, [], {"gpu01": {"gpu_borrow_gpus": [0]}})[0]
    assert faults({"command": "true", "gpus": [1]}, [], {"gpu01": {"gpu_borrow_gpus": ["x9"]}}) == [], "the run's own word counts more"
    assert "did you mean gpus" in faults({"command": "true"}, ["gpu_borrow_gpus"])[0]


def test_a_host_that_had_failed_before_is_said_to_and_no_other_reason_is_made_up() -> None:
    rows = rows_of({"gpu01": {}, "gpu02": {}}, ["gpu01"])
    assert [(each["result"], each["detail"]) for each in rows] == [
        (rows[0]["result"], "it had failed before this playbook, in the same run"),
        (rows[0]["result"], "no host after one that is not put back gives its GPUs away"),
    ]
