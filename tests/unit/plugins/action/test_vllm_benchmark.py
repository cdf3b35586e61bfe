# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The action of vllm_benchmark: which baseline a host gets."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Callable, Dict, List

import pytest
from ansible.errors import AnsibleActionFail

from ansible_collections.gpufleet.vllm.plugins.action import vllm_benchmark
from ansible_collections.gpufleet.vllm.plugins.plugin_utils._baseline import BaselineError, choose, results_of

RunAction = Callable[..., Dict[str, Any]]


def result(peak: float, service: str = "m", deployment: str = "d") -> Dict[str, Any]:
    return {"levels": [], "service": service, "deployment": deployment, "peak": {"output_throughput": peak}}


def report(**hosts: Any) -> Dict[str, Any]:
    return {"schema_version": 1, "hosts": {host: {"result": found} for host, found in hosts.items()}}


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> Dict[str, Any]:
    """What the module is given."""
    given: Dict[str, Any] = {}

    def execute(self: Any, module_args: Dict[str, Any], **more: Any) -> Dict[str, Any]:
        given.clear()
        given.update(module_args)
        return {"changed": False}

    monkeypatch.setattr(vllm_benchmark.ActionModule, "_execute_module", execute)
    return given


def test_a_file_on_the_controller_is_read(run_action: RunAction, sent: Dict[str, Any], tmp_path: Path) -> None:
    path = tmp_path / "baseline.json"
    path.write_text(json.dumps(report(gpu01=result(1.0), gpu02=result(2.0))))
    run_action(vllm_benchmark.ActionModule, {"baseline": str(path)}, {"inventory_hostname": "gpu02"})
    assert sent["baseline"] == result(2.0)


def test_a_result_is_taken_as_it_is_and_nothing_is_nothing(run_action: RunAction, sent: Dict[str, Any]) -> None:
    run_action(vllm_benchmark.ActionModule, {"baseline": result(3.0), "force": True}, {})
    assert sent == {"baseline": result(3.0), "force": True}
    run_action(vllm_benchmark.ActionModule, {"baseline": ""}, {})
    assert sent == {}


def test_a_file_that_cannot_be_read_is_told(run_action: RunAction, sent: Dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(AnsibleActionFail, match="cannot be read on the controller"):
        run_action(vllm_benchmark.ActionModule, {"baseline": str(tmp_path / "no.json")}, {})
    (tmp_path / "bad.json").write_text("{")
    with pytest.raises(AnsibleActionFail, match="is no JSON"):
        run_action(vllm_benchmark.ActionModule, {"baseline": str(tmp_path / "bad.json")}, {})
    assert sent == {}


class Host:
    """One that runs the module as a job, and tells of it."""

    def __init__(self, *answers: str) -> None:
        self.answers = list(answers)
        self.modules: List[Dict[str, Any]] = []

    def execute(self, module_name: str, module_args: Dict[str, Any], **more: Any) -> Dict[str, Any]:
        self.modules.append({"name": module_name, **module_args})
        return {"ansible_job_id": "j7.1", "started": True, "finished": False, "results_file": "/root/.ansible_async/j7.1"}

    def command(self, text: str) -> Dict[str, Any]:
        return {"rc": 0, "stdout": self.answers.pop(0)}


def on(host: Host, monkeypatch: pytest.MonkeyPatch) -> Host:
    monkeypatch.setattr(vllm_benchmark.ActionModule, "_execute_module", lambda self, **given: host.execute(**given))
    monkeypatch.setattr(vllm_benchmark.ActionModule, "_low_level_execute_command", lambda self, text: host.command(text))
    monkeypatch.setattr("time.sleep", lambda seconds: None)
    return host


def test_it_waits_as_long_as_somebody_works(run_action: RunAction, monkeypatch: pytest.MonkeyPatch) -> None:
    host = on(Host('0 /proc/7/cmdline\n{"started": 1}', '0 /proc/7/cmdline\n{"changed": true}'), monkeypatch)
    done = run_action(vllm_benchmark.ActionModule, {}, limit=100)
    assert done["ansible_job_id"] == "j7.1" and not done.get("failed") and host.answers == [], "Ansible fetches the result"


def test_a_job_that_was_killed_is_a_failure_and_its_file_is_removed(run_action: RunAction, monkeypatch: pytest.MonkeyPatch) -> None:
    host = on(Host('0 /proc/7/cmdline\n{"started": 1}', '1 \n{"started": 1}', ""), monkeypatch)
    done = run_action(vllm_benchmark.ActionModule, {}, limit=100)
    assert done["failed"] and "nobody works on it any more" in done["msg"] and "ansible_job_id" not in done
    assert host.modules[1:] == [
        {"name": "ansible.legacy.async_status", "jid": "j7.1", "mode": "cleanup", "_async_dir": "/root/.ansible_async"}]


def test_a_host_that_is_not_in_the_report_gets_the_median_of_its_like() -> None:
    document = report(a=result(1.0), b=result(3.0), c=result(2.0), d=result(9.0, service="other", deployment="e"))
    assert choose(document, "z", "m") == result(2.0)
    with pytest.raises(BaselineError, match="2 deployments"):
        choose(document, "z", None)
    with pytest.raises(BaselineError, match="no other host's is of x"):
        choose(document, "z", "x")


@pytest.mark.parametrize("document", [{}, [], {"hosts": {"a": {"result": None}}}, {"hosts": []}, "text"])
def test_what_holds_no_result_is_told(document: Any) -> None:
    assert results_of(document) == {}
    with pytest.raises(BaselineError, match="no result of a benchmark"):
        choose(document, "a", None)
