# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""``select`` is evaluated on the controller; the module gets identities, and never more than were chosen."""

from __future__ import annotations

import builtins
from types import SimpleNamespace
from typing import Any, Dict, List, Tuple
from unittest import mock

import pytest
from ansible.errors import AnsibleActionFail
from ansible.module_utils.datatag import native_type_name
from ansible.parsing.dataloader import DataLoader
from ansible.playbook.task import Task
from ansible.template import Templar, trust_as_template

from ansible_collections.gpufleet.vllm.plugins.action.gpu_reclaim import ActionModule
from ansible_collections.gpufleet.vllm.plugins.plugin_utils._select import SelectError, choose, compile_select

Call = Tuple[str, Dict[str, Any], bool]


def process(pid: int, **more: Any) -> Dict[str, Any]:
    """A process as the facts have it."""
    values = {
        "pid": pid, "type": "C", "used_mib": 90000, "name": "python3", "cmdline": "python3 train.py", "user": "alice",
        "start_time": 1796000000.0 + pid, "unit": None, "container": None, "state": "running", "vllm": False, "orphan": False,
        "protected": False, "protected_by": None,
    }
    values.update(more)
    return values


GPUS: List[Dict[str, Any]] = [
    {"index": 0, "processes": [process(10, vllm=True), process(11, used_mib=None)]},
    {"index": 1, "processes": [process(10, used_mib=5), process(12, user="bob"), process(13, start_time=None)]},
]


class Host:
    """Plays the host: answers the two modules and keeps what they were given."""

    def __init__(self, facts: Any = None) -> None:
        self.calls: List[Call] = []
        self.facts = facts or {"ansible_facts": {"gpu_memory": {"available": True, "gpus": GPUS}}}

    def run(self, args: Dict[str, Any], async_val: int = 0) -> Dict[str, Any]:
        """Run a task with these arguments."""
        task = Task()
        task.action = "gpufleet.vllm.gpu_reclaim"
        task.args = args
        task.async_val = async_val
        loader = DataLoader()
        plugin = ActionModule(
            task=task,
            connection=SimpleNamespace(_shell=SimpleNamespace(tmpdir=None), has_native_async=False),
            play_context=mock.Mock(check_mode=False),
            loader=loader,
            templar=Templar(loader=loader),
            shared_loader_obj=None,
        )
        plugin._execute_module = self._answer
        result: Dict[str, Any] = plugin.run(task_vars={})
        return result

    def _answer(self, module_name: str, module_args: Dict[str, Any], task_vars: Any, wrap_async: bool = False) -> Dict[str, Any]:
        self.calls.append((module_name, module_args, wrap_async))
        return self.facts if module_name.endswith("gpu_memory_facts") else {"changed": True, "freed": True}


def test_without_select_it_is_one_round_trip_with_the_arguments_as_they_are() -> None:
    host = Host()
    assert host.run({"scope": "all", "gpus": [0, 1]})["freed"] is True
    assert host.calls == [("gpufleet.vllm.gpu_reclaim", {"scope": "all", "gpus": [0, 1]}, False)]


def test_with_select_the_module_gets_what_was_chosen() -> None:
    host = Host()
    host.run({"scope": "all", "gpus": [0, 1], "select": "user == 'bob'"})
    assert host.calls == [
        ("gpufleet.vllm.gpu_memory_facts", {"gpus": [0, 1]}, False),
        (
            "gpufleet.vllm.gpu_reclaim",
            {"scope": "all", "gpus": [0, 1], "select": "user == 'bob'", "candidates": [{"pid": 12, "start_time": 1796000012.0}]},
            False,
        ),
    ]


def test_a_choice_of_nobody_reaches_the_module_as_such() -> None:
    host = Host()
    host.run({"select": "user == 'nobody'"})
    assert host.calls[-1][1]["candidates"] == []


def test_only_the_reclaim_itself_runs_asynchronously() -> None:
    host = Host()
    host.run({"select": "vllm"}, async_val=60)
    assert [wrapped for _name, _args, wrapped in host.calls] == [False, True]


@pytest.mark.parametrize("answer", [{"failed": True, "msg": "GPU '9' is not on this host."}, {"unreachable": True, "msg": "ssh"}])
def test_when_the_host_cannot_be_read_nothing_is_reclaimed(answer: Dict[str, Any]) -> None:
    host = Host(answer)
    assert host.run({"select": "vllm"})["msg"] == answer["msg"]
    assert len(host.calls) == 1


@pytest.mark.parametrize(
    ("expression", "pids"),
    [
        ("vllm", [10]),
        ("used_mib > `1000`", [10, 12]),
        ("used_mib < `1000`", [10]),
        ("gpu == `1`", [10, 12]),
        ("contains(cmdline, 'train') && user != 'bob'", [10, 11]),
        ("starts_with(name, 'python') && !vllm && gpu == `0`", [11]),
        ("`true`", [10, 11, 12]),
    ],
)
def test_expressions(expression: str, pids: List[int]) -> None:
    chosen = choose(compile_select(expression), GPUS)
    assert [each["pid"] for each in chosen] == pids
    assert all(each["start_time"] == 1796000000.0 + each["pid"] for each in chosen)


@pytest.mark.parametrize("expression", ["vllm &&", "used_mib > 1000", "[", "nosuch(name)", "", "  "])
def test_a_mistake_in_the_expression_is_said_before_anything_is_touched(expression: str) -> None:
    with pytest.raises(SelectError, match="`select`"):
        choose(compile_select(expression), GPUS)
    with pytest.raises(AnsibleActionFail, match="Nothing was touched. `select`"):
        Host().run({"select": expression})


def test_a_mistake_in_the_expression_is_said_before_the_host_is_asked() -> None:
    host = Host()
    with pytest.raises(AnsibleActionFail, match="no valid JMESPath expression"):
        host.run({"select": "vllm &&"})
    assert host.calls == []


@pytest.mark.parametrize("expression", ["usr != 'alice'", "no_such_field", "vllm && !protect", "name.first == 'x'", "[?usr]"])
def test_a_field_that_no_process_has_is_refused_before_the_host_is_asked(expression: str) -> None:
    """It would be null for each, and a comparison with it true for everybody."""
    host = Host()
    with pytest.raises(AnsibleActionFail, match=r"^Nothing was touched. .*which no process has. Its fields: cmdline, "):
        host.run({"select": expression})
    assert host.calls == []


def test_values_that_cannot_be_compared_are_said_with_the_way_to_write_numbers() -> None:
    for expression in ("used_mib > 'a'", "used_mib > 10240", "pid == 10"):
        host = Host()
        with pytest.raises(AnsibleActionFail, match="^Nothing was touched. `select`.*numbers stand in backticks"):
            host.run({"select": expression})
        assert [name for name, _args, _wrapped in host.calls] in ([], ["gpufleet.vllm.gpu_memory_facts"])


@pytest.mark.parametrize("expression", ["name", "used_mib", "[name]", "{a: name}", "'yes'"])
def test_an_expression_that_is_neither_true_nor_false_chooses_nobody(expression: str) -> None:
    with pytest.raises(SelectError, match="must be true or false"):
        choose(compile_select(expression), GPUS)


@pytest.mark.parametrize(
    ("args", "words"),
    [
        ({"select": "vllm", "candidates": []}, "give `select` itself"),
        ({"candidates": [{"pid": 5, "start_time": 7.0}]}, "give `select` itself"),
        ({"max_used_mib": True, "grace": False}, "max_used_mib, grace must be a number, not true or false"),
    ],
)
def test_what_only_the_tasks_own_words_show_is_refused(args: Dict[str, Any], words: str) -> None:
    host = Host()
    with pytest.raises(AnsibleActionFail, match="^Nothing was touched. .*" + words):
        host.run(args)
    assert host.calls == []


def test_a_missing_library_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def without(name: str, *args: Any, **kwargs: Any) -> Any:
        if name.split(".")[0] == "jmespath":
            raise ImportError(name)
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(SelectError, match="pip install jmespath"):
        compile_select("vllm")


def test_ansibles_tagged_values_are_read_like_plain_ones() -> None:
    tagged = trust_as_template("python3 train.py")
    assert native_type_name(tagged) == "str" and tagged.__class__ is not str
    gpus = [{"index": 0, "processes": [process(10, cmdline=tagged)]}]
    assert [each["pid"] for each in choose(compile_select("contains(cmdline, 'train')"), gpus)] == [10]
    host = Host()
    host.run({"select": trust_as_template("user == 'bob'")})
    assert [each["pid"] for each in host.calls[-1][1]["candidates"]] == [12]
