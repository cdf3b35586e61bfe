# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The task vllm_service: begun by the module, followed by the controller, told as the module would."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest
from ansible import constants
from ansible.errors import AnsibleActionFail, AnsibleConnectionFailure
from ansible.parsing.dataloader import DataLoader
from ansible.playbook.task import Task
from ansible.template import Templar

from ansible_collections.gpufleet.vllm.plugins.action import vllm_service
from ansible_collections.gpufleet.vllm.plugins.action.vllm_service import ActionModule
from ansible_collections.gpufleet.vllm.plugins.plugin_utils import _resident
from ansible_collections.gpufleet.vllm.plugins.plugin_utils._task_result import merged

BEGUN = {
    "changed": True, "ready": False, "actions": [{"action": "start"}], "warnings": ["tight"], "diff": [{}],
    "job": {"id": "a1", "unit": "gpufleet-change.service", "attached": False},
    "invocation": {"module_args": {"name": "kimi", "wait": False, "secrets": "VALUE_SPECIFIED_IN_NO_LOG_PARAMETER"}},
}  # fmt: skip
RESULT = {"changed": True, "ready": True, "actions": [{"action": "start"}], "warnings": ["tight", "slow"], "diff": [{"after": "x"}]}
DONE = {"id": "a1", "done": True, "result": RESULT}
FIRST: dict[str, Any] = {
    "failed": True, "changed": True, "msg": "Nothing of what is asked for was begun.",
    "actions": [{"action": "complete", "target": "gpu_borrow of GPU 4 for a command", "reason": "nobody carries it out any more"}],
    "job": {"id": "f0", "unit": "gpufleet-change.service", "attached": True, "first": True},
}  # fmt: skip
FIRST_DONE = {"id": "f0", "done": True, "result": {"changed": True, "actions": [], "failed": True, "msg": "the host went down"}}
RUNNING = {"id": "f0", "done": False, "unfinished": True, "phase": "command"}
LOADING = {"id": "a1", "done": False, "unfinished": True, "phase": "load", "service": "kimi"}


class Task1:
    """One task on one host; ``module`` and ``program`` are what the host answers, in order."""

    def __init__(self, module: list[Any], program: list[Any] | None = None, pipelining: bool = False) -> None:
        self.pipelining = pipelining
        self.sent: list[bytes] = []
        self.module = list(module)
        self.program = [DONE] if program is None else list(program)
        self.calls: list[dict[str, Any]] = []
        self.commands: list[str] = []
        self.resets = 0

    def run(self, args: dict[str, Any] | None = None, **more: Any) -> dict[str, Any]:
        task = Task()
        task.action = "gpufleet.vllm.vllm_service"
        task.args = {"name": "kimi", "model": "/models/kimi", **(args or {})}
        for key, value in more.items():
            setattr(task, key, value)
        loader = DataLoader()
        connection = SimpleNamespace(_shell=SimpleNamespace(tmpdir=None), has_native_async=False, reset=self._reset,
                                     is_pipelining_enabled=lambda _wrap_async: self.pipelining)  # fmt: skip
        plugin = ActionModule(task=task, connection=connection, play_context=mock.Mock(), loader=loader,
                              templar=Templar(loader=loader), shared_loader_obj=None)  # fmt: skip
        plugin._execute_module = self._module
        plugin._low_level_execute_command = self._program
        result: dict[str, Any] = plugin.run(task_vars={"inventory_hostname": "gpu01", "ansible_play_batch": ["gpu01"]})
        return result

    def _reset(self) -> None:
        self.resets += 1

    def _module(self, module_name: str, module_args: dict[str, Any], task_vars: Any, wrap_async: bool = False) -> dict[str, Any]:
        self.calls.append({**module_args, "wrap_async": wrap_async})
        return dict(self._next(self.module))

    def _program(self, command: str, in_data: bytes | None = None) -> dict[str, Any]:
        self.commands.append(command)
        if in_data is not None:
            self.sent.append(in_data)
        answer = self._next(self.program)
        return answer if "rc" in answer else {"rc": 0, "stdout": json.dumps(answer), "stderr": ""}

    @staticmethod
    def _next(answers: list[Any]) -> Any:
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer


@pytest.fixture(autouse=True)
def shown(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What the terminal shows; nobody sleeps."""
    lines: list[str] = []
    display = SimpleNamespace(display=lambda text, **_more: lines.append(text), vv=lambda _text: None)
    monkeypatch.setattr(vllm_service, "Display", lambda: display)
    monkeypatch.setattr("time.sleep", lambda _seconds: None)
    callback(monkeypatch, "default")
    return lines


def callback(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setattr(constants.config, "get_config_value", lambda _name: name)


def test_the_jobs_result_is_the_tasks(shown: list[str]) -> None:
    task = Task1([BEGUN], [LOADING, DONE])
    result = task.run()
    assert result["ready"] and result["changed"] and result["job"]["id"] == "a1"
    assert result["warnings"] == ["tight", "slow"] and "diff" not in result
    assert result["invocation"]["module_args"]["wait"] is True
    assert [call["wait"] for call in task.calls] == [False]
    assert [line.split()[0] for line in shown] == ["gpu01"] and "loading kimi" in shown[0]


def test_the_diff_is_shown_in_diff_mode() -> None:
    assert Task1([BEGUN]).run(diff=True)["diff"] == RESULT["diff"]


@pytest.mark.parametrize("more", [{"check_mode": True}, {"async_val": 60}])
def test_who_does_not_wait_is_left_to_the_module(more: dict[str, Any]) -> None:
    task = Task1([BEGUN])
    assert task.run(**more)["job"]["id"] == "a1"
    assert "wait" not in task.calls[0] and not task.commands
    assert task.calls[0]["wrap_async"] is ("async_val" in more)


@pytest.mark.parametrize("wait", [False, "no", "false"])
def test_so_is_who_says_that_he_does_not_wait(wait: Any) -> None:
    task = Task1([BEGUN])
    assert task.run({"wait": wait})["ready"] is False and not task.commands


def test_nothing_to_follow_is_one_round_trip() -> None:
    task = Task1([{"changed": False, "ready": True}])
    assert task.run() == {"changed": False, "ready": True} and not task.commands


def test_a_refusal_is_the_modules_own() -> None:
    assert Task1([{"failed": True, "msg": "no", "job": {"id": "a1"}}]).run()["msg"] == "no"


def test_what_was_abandoned_is_followed_to_its_end_before_the_tasks_own(shown: list[str]) -> None:
    task = Task1([FIRST, BEGUN], [RUNNING, AnsibleConnectionFailure("Broken pipe"), FIRST_DONE, LOADING, DONE])
    result = task.run()
    assert result["ready"] and not result.get("failed") and result["job"]["id"] == "a1"
    assert [each["action"] for each in result["actions"]] == ["complete", "start"]
    assert [call["wait"] for call in task.calls] == [False, False], "and the module never waits for it"
    assert [command.split()[1:3] for command in task.commands] == [["attend", "f0"]] * 3 + [["attend", "a1"]] * 2
    assert "first this is brought to its end: gpu_borrow of GPU 4" in shown[0] and "running the command" in shown[1]
    assert "lost" in shown[2] and "answers again" in shown[3] and "failed: the host went down" in shown[4] and "kimi" in shown[5]


@pytest.mark.parametrize("own", [{"changed": False, "actions": []}, {"failed": True, "msg": "no"}])
def test_what_came_first_is_told_whatever_comes_after_it(own: dict[str, Any]) -> None:
    result = Task1([FIRST, own], [FIRST_DONE]).run()
    assert result["actions"] == FIRST["actions"] and result["changed"] and result.get("failed") == own.get("failed")


def test_who_does_not_wait_for_his_own_change_follows_what_comes_first() -> None:
    task = Task1([FIRST, BEGUN], [FIRST_DONE])
    result = task.run({"wait": False})
    assert [each["action"] for each in result["actions"]] == ["complete", "start"] and len(task.commands) == 1
    assert result["job"]["id"] == "a1" and result["invocation"]["module_args"]["wait"] is False


def test_what_is_abandoned_again_is_a_failure_and_not_followed_for_ever() -> None:
    task = Task1([FIRST, FIRST], [FIRST_DONE])
    result = task.run()
    assert result["failed"] and result["msg"] == FIRST["msg"] and result["actions"] == FIRST["actions"] and len(task.calls) == 2


def test_a_job_that_cannot_bring_it_to_its_end_is_told_with_what_the_host_says() -> None:
    dead = {"id": "f0", "done": False, "unfinished": True, "job": "failed"}
    task = Task1([FIRST, FIRST], [dead, {"id": "f0", "unfinished": True}] * 3 + [dead])
    result = task.run()
    assert result["failed"] and "ends again and again" in result["msg"] and result["msg"].endswith(FIRST["msg"])


def test_a_host_that_is_lost_with_what_comes_first_is_unreachable_with_what_to_do() -> None:
    with pytest.raises(AnsibleConnectionFailure, match="same command"):
        Task1([FIRST], [AnsibleConnectionFailure("no route")] * 3).run({"reconnect_timeout": 0})


def test_what_comes_first_is_never_waited_for_by_the_module_which_would_begin_its_own_then() -> None:
    no = {"rc": 1, "stdout": "", "stderr": "Traceback\nModuleNotFoundError: gpufleet_change"}
    refused = {"failed": True, "msg": "Another change of this host's services is under way."}
    task = Task1([FIRST, refused], [no, no])
    assert task.run()["msg"] == refused["msg"] and [call["wait"] for call in task.calls] == [False, False]


@pytest.mark.parametrize("name", ["ansible.posix.json", "somebodys.own"])
def test_nothing_is_shown_to_machines_and_hardly_asked(name: str, shown: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    callback(monkeypatch, name)
    task = Task1([BEGUN], [LOADING, DONE])
    assert task.run()["ready"] and not shown
    assert "--for 60" in task.commands[0] and "--steady 120" in task.commands[0]


def test_nothing_is_shown_of_a_task_whose_output_is_hidden(shown: list[str]) -> None:
    assert Task1([BEGUN], [LOADING, DONE]).run(no_log=True)["ready"] and not shown


def test_a_connection_that_breaks_while_following_is_no_failure(shown: list[str]) -> None:
    task = Task1([BEGUN], [LOADING, AnsibleConnectionFailure("Broken pipe"), {"rc": 255, "stdout": "", "stderr": "closed"}, DONE])
    assert task.run()["ready"] and task.resets == 2
    assert "lost" in shown[1] and "answers again" in shown[2]


def test_no_patience_makes_the_host_unreachable_with_what_to_do() -> None:
    task = Task1([BEGUN], [AnsibleConnectionFailure("no route")] * 3)
    with pytest.raises(AnsibleConnectionFailure, match="same command"):
        task.run({"reconnect_timeout": 0})


@pytest.mark.parametrize("key", ["_ansible_no_log", "_ansible_verbose_always", "add_host", "add_group", "ansible_facts"])
def test_a_host_gives_ansible_no_orders(key: str) -> None:
    task = Task1([], [answered(changed=True, ready=True, warnings=[], **{key: {"ansible_python_interpreter": "/tmp/x"}})], pipelining=True)
    result = task.run({"wait": False})
    assert result["changed"] and not {key, "warnings"} & set(result), result


def test_a_connection_that_breaks_under_the_module_is_tried_once_more() -> None:
    task = Task1([AnsibleConnectionFailure("Broken pipe"), BEGUN])
    assert task.run()["ready"] and task.resets == 1


@pytest.mark.parametrize("args", [{"state": "restarted"}, {"deployment": {"state": "restarted"}}])
def test_a_restart_is_not_begun_twice(args: dict[str, Any]) -> None:
    task = Task1([AnsibleConnectionFailure("Broken pipe"), BEGUN])
    with pytest.raises(AnsibleConnectionFailure):
        task.run(args)
    no = {"rc": 1, "stdout": "", "stderr": "Traceback\nModuleNotFoundError: gpufleet_change"}
    task = Task1([BEGUN, RESULT], [no, no])
    assert "Nothing was begun again" in task.run(args)["msg"] and len(task.calls) == 1
    task = Task1([BEGUN, RESULT], [no, DONE])
    assert task.run(args)["ready"] and len(task.calls) == 1 and task.commands[1].endswith(" result a1 --for 30")


def test_what_a_host_says_amiss_is_not_shown_where_its_output_is_hidden(shown: list[str]) -> None:
    for rc in (1, 255):
        task = Task1([BEGUN], [{"rc": rc, "stdout": "", "stderr": "the key hush-hush is wrong"}, DONE])
        assert task.run(no_log=True)["ready"]
    assert len(shown) == 3 and "hush" not in "".join(shown) and "no_log" in shown[0]


def test_a_failure_has_what_a_failure_of_the_module_has() -> None:
    result = merged(BEGUN, {"failed": True, "msg": "rolled back", "changed": True}, False, ActionModule.failed_with)
    assert result["actions"] == [] and result["rolled_back"] is False and result["failed"]


def test_what_was_seen_of_the_host_before_the_job_began_stays() -> None:
    out = {"since": "2026-11-30T11:40:12Z", "model": "new", "before_host": None, "after_host": "/srv/in.yml"}
    assert merged({**BEGUN, "taken_out": out}, {"changed": True}, False, {})["taken_out"] == out


def test_a_deployment_is_taken_apart_and_what_is_given_by_itself_counts_more() -> None:
    task = Task1([BEGUN])
    task.run({"deployment": {"name": "other", "port": 8001}, "wait": False})
    assert task.calls[0]["port"] == 8001 and task.calls[0]["name"] == "kimi" and "deployment" not in task.calls[0]


def test_a_deployment_that_is_none_is_refused() -> None:
    with pytest.raises(AnsibleActionFail, match="dictionary of options"):
        Task1([BEGUN]).run({"deployment": "kimi"})


# -- by the program that the host has ----------------------------------------------------------------------------------

OTHER = {"id": _resident.DIGEST, "other": True}
SECRET = {"secrets": {"VLLM_API_KEY": "hush-hush"}}


def answered(**result: Any) -> dict[str, Any]:
    """What the program prints for a request."""
    return {"id": _resident.DIGEST, "result": result}


def test_a_host_that_has_the_code_is_sent_the_parameters_alone() -> None:
    task = Task1([], [answered(changed=True, job={"id": "a1"}, warnings=["tight"]), DONE], pipelining=True)
    result = task.run({"port": "8001"})
    assert result["ready"] and result["warnings"] == ["tight", "slow"] and not task.calls
    assert task.commands[0] == "/usr/local/lib/gpufleet/change.pyz module %s" % _resident.DIGEST
    sent = json.loads(task.sent[0])
    assert (sent["check_mode"], sent["wait"], sent["diff"]) == (False, False, False)
    assert sent["params"]["port"] == 8001 and sent["params"]["gpus"] == ["all"] and "wait" not in sent["params"]
    assert sent["params"]["guard"] == {"enabled": True, "timeout": 300, "margin_mib": 0}
    assert result["invocation"]["module_args"]["name"] == "kimi" and result["invocation"]["module_args"]["wait"] is True


def test_so_is_one_that_is_only_planned_for() -> None:
    task = Task1([], [answered(changed=True, actions=[])], pipelining=True)
    assert task.run(check_mode=True, diff=True)["changed"] and not task.calls
    sent = json.loads(task.sent[0])
    assert (sent["check_mode"], sent["wait"], sent["diff"]) == (True, True, True)


@pytest.mark.parametrize("answer", [
    OTHER,
    {"rc": 127, "stdout": "", "stderr": "not found"},
    {"rc": 2, "stdout": "", "stderr": "invalid choice: 'module'"},
    {"rc": 1, "stdout": json.dumps(answered(changed=True)), "stderr": "Traceback"},
    {"rc": 0, "stdout": "welcome\n{\"id\": \"else\"}\n{", "stderr": ""},
    {"id": _resident.DIGEST, "result": None},
])  # fmt: skip
def test_a_host_that_has_other_code_or_none_is_sent_the_module(answer: dict[str, Any]) -> None:
    task = Task1([{"changed": False, "ready": True}], [answer], pipelining=True)
    assert task.run()["ready"] and len(task.calls) == 1 and len(task.commands) == 1


@pytest.mark.parametrize(("args", "more"), [
    ({"port": "eight"}, {}),
    ({"nonsense": 1}, {}),
    ({"executable": "~/vllm"}, {}),
    ({"executable": "$HOME/vllm"}, {}),
    ({"state": "restarted"}, {}),
    ({}, {"environment": [{"PATH": "/opt/bin"}]}),
    ({}, {"async_val": 60}),
])  # fmt: skip
def test_what_the_module_alone_can_tell_or_must_not_do_twice_is_the_modules(args: dict[str, Any], more: dict[str, Any]) -> None:
    task = Task1([{"changed": False, "ready": True}], [], pipelining=True)
    assert task.run(args, **more)["ready"] and len(task.calls) == 1 and not task.commands


def test_nobody_reads_a_secret_in_what_the_program_answers() -> None:
    task = Task1([], [answered(failed=True, msg="it said hush-hush", _ansible_no_log=False)], pipelining=True)
    result = task.run(SECRET)
    assert json.loads(task.sent[0])["params"]["secrets"] == SECRET["secrets"]
    assert result["failed"] and "hush" not in json.dumps(result) and "_ansible_no_log" not in result


def test_a_connection_that_breaks_under_the_program_is_tried_once_more() -> None:
    task = Task1([], [AnsibleConnectionFailure("Broken pipe"), answered(job={"id": "a1"}), DONE], pipelining=True)
    assert task.run()["ready"] and task.resets == 1 and not task.calls


def test_without_sources_to_compare_the_module_is_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_resident, "DIGEST", None)
    task = Task1([{"changed": False, "ready": True}], [], pipelining=True)
    assert task.run()["ready"] and not task.commands
