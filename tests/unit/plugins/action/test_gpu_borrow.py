# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The task gpu_borrow: what nobody had heard of is noted as heard by whoever tells it, and a forced run is forced once."""

from __future__ import annotations

import os
from typing import Any

import pytest
from ansible.errors import AnsibleConnectionFailure

from ansible_collections.gpufleet.vllm.plugins.action.gpu_borrow import ActionModule
from ansible_collections.gpufleet.vllm.tests.unit.plugins.action import test_vllm_service as base

JOB = {"id": "a1", "unit": "gpufleet-change.service", "attached": True, "ended": "2026-01-02 03:04:05"}
UNHEARD = {"changed": True, "actions": [], "put_back": True, "outcome": "succeeded", "job": JOB, "warnings": ["nobody had heard of it"]}
DONE = {"id": "a1", "done": True, "result": {"changed": True, "outcome": "succeeded", "actions": [], "put_back": True}}
RECEIVED = {"id": "a1", "received": True}


@pytest.fixture(autouse=True)
def _borrow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(base, "ActionModule", ActionModule)


def received(task: base.Task1) -> int:
    return sum(" received a1" in command for command in task.commands)


@pytest.mark.parametrize("failed", [False, True])
@pytest.mark.parametrize("wait", [False, True])
def test_an_unheard_result_is_told_as_such_and_noted_as_heard_once(failed: bool, wait: bool) -> None:
    said = {**UNHEARD, **({"failed": True, "msg": "3"} if failed else {})}
    task = base.Task1([said], [DONE, RECEIVED] if wait and not failed else [RECEIVED])
    told = task.run({"command": "x", "wait": wait})
    assert told["job"]["ended"] == JOB["ended"] and "nobody had heard" in str(told["warnings"][0]), told
    assert received(task) == 1, task.commands


def test_what_somebody_else_begun_and_came_first_is_not_noted_as_heard() -> None:
    first = {**base.FIRST, "job": {**base.FIRST["job"], "id": "b2"}}
    begun = {"changed": True, "actions": [], "job": {**JOB, "ended": None}}
    task = base.Task1([first, begun], [{**base.DONE, "id": "b2"}, DONE, RECEIVED])
    done = task.run({"command": "x"})
    assert done["outcome"] == "succeeded" and done["actions"] == base.FIRST["actions"] and received(task) == 1, task.commands
    assert not any(" received b2" in command for command in task.commands)


def test_check_mode_does_not_count_as_hearing() -> None:
    task = base.Task1([UNHEARD], [])
    assert task.run({"command": "x"}, check_mode=True)["job"]["ended"] and task.commands == []


def test_whoever_outlives_the_controller_has_heard_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    parents = iter([1, 2, 3, 4])
    monkeypatch.setattr(os, "getppid", lambda: next(parents))
    assert os.getppid() == 1
    task = base.Task1([UNHEARD], [DONE])
    task.run({"command": "x"})
    assert received(task) == 0


def test_a_forced_run_whose_begin_was_lost_is_looked_for_and_not_forced_again() -> None:
    begun: dict[str, Any] = {"changed": True, "actions": [], "job": {**JOB, "ended": None}}
    task = base.Task1([AnsibleConnectionFailure("gone"), begun], [DONE, RECEIVED])
    task.run({"command": "x", "force": True})
    assert [call["force"] for call in task.calls] == [True, False]
    stands = {"changed": False, "actions": [], "outcome": "succeeded", "put_back": None}
    task = base.Task1([AnsibleConnectionFailure("gone"), stands, begun], [DONE, RECEIVED])
    task.run({"command": "x", "force": True})
    assert [call["force"] for call in task.calls] == [True, False, True], "nothing of it had begun"
