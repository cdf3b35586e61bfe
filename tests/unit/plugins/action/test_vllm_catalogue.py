# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The check before anything is touched, on what hostvars say."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Callable, Dict

import pytest
from ansible import context
from ansible.errors import AnsibleError
from ansible.module_utils.common.collections import ImmutableDict
from ansible.template import trust_as_template

from ansible_collections.gpufleet.vllm.plugins.action import vllm_catalogue
from ansible_collections.gpufleet.vllm.plugins.action.vllm_catalogue import ActionModule

GOOD = {"m": {"path": "/models/m", "secrets": {"HF_TOKEN": "hunter2"}}}
RunAction = Callable[..., Dict[str, Any]]


def check(run_action: RunAction, hostvars: Dict[str, Any], model: str = "m", **more: Any) -> Dict[str, Any]:
    args = {"model": model, "hosts": list(hostvars), **more}
    return run_action(ActionModule, args, {"hostvars": hostvars})


def test_a_sound_catalogue_gives_each_hosts_deployment_without_secrets(run_action: RunAction) -> None:
    result = check(run_action, {"a": {"vllm_models": GOOD}, "b": {"vllm_models": {"m": {"repo": "x/y"}}}})
    assert not result.get("failed")
    assert result["changed"] is False
    assert result["deployments"]["a"] == {
        "name": "m", "model": "/models/m", "served_name": "m", "secret_names": ["HF_TOKEN"],
    }  # fmt: skip
    assert result["deployments"]["b"]["model"] == "/models/y"
    assert "hunter2" not in repr(result)


def test_the_same_problem_of_all_hosts_is_said_once(run_action: RunAction) -> None:
    result = check(run_action, {"a": {"vllm_models": GOOD}, "b": {"vllm_models": GOOD}}, model="n")
    assert result["failed"]
    assert result["msg"] == "Nothing was touched by this playbook. The model 'n' is not in the catalogue. The catalogue has: m."


def test_problems_of_some_hosts_name_them(run_action: RunAction) -> None:
    bad = {"vllm_models": {"m": {"path": "/models/m", "port": "x"}}}
    result = check(run_action, {"a": {"vllm_models": GOOD}, "b": bad, "c": bad, "d": {}})
    assert "Nothing was touched by this playbook. 2 problems:" in result["msg"]
    assert "- b, c: vllm_models['m'].port has to be a whole number" in result["msg"]
    assert "- d: the model catalogue `vllm_models` is missing" in result["msg"]


def test_a_template_of_another_entry_that_means_nothing_here_stops_nobody(run_action: RunAction) -> None:
    other = {"path": "/models/o", "env": {"X": trust_as_template("{{ nobody_knows }}")}}
    result = check(run_action, {"a": {"vllm_models": {**GOOD, "other": other}}})
    assert not result.get("failed") and result["deployments"]["a"]["model"] == "/models/m"
    result = check(run_action, {"a": {"vllm_models": {**GOOD, "other": other}}}, model="other")
    assert result["failed"] and "'nobody_knows' is undefined" in result["msg"]


def test_a_problem_that_begins_with_a_name_keeps_it(run_action: RunAction) -> None:
    """A variable Vllm_models there is not."""
    bad = {"vllm_models": {"m": {"path": "/models/m", "port": "x"}}}
    assert "Nothing was touched by this playbook. vllm_models['m'].port has to be" in check(run_action, {"a": bad, "b": bad})["msg"]


def test_many_hosts_are_counted_not_listed(run_action: RunAction) -> None:
    hostvars: Dict[str, Any] = {"h%d" % number: {} for number in range(7)}
    hostvars["good"] = {"vllm_models": GOOD}
    assert "h0, h1, h2 and 4 more: " in check(run_action, hostvars)["msg"]


@pytest.mark.parametrize(("target", "said"), [("web", "the target 'web'"), (None, "No host matches the target.")])
def test_no_host_is_a_problem(run_action: RunAction, target: Any, said: str) -> None:
    result = check(run_action, {}, target=target)
    assert result["failed"]
    assert said in result["msg"]


def test_no_model_is_a_problem(run_action: RunAction) -> None:
    assert "no model was given" in check(run_action, {"a": {"vllm_models": GOOD}}, model="")["msg"]


def test_a_catalogue_that_cannot_be_templated_names_its_host(run_action: RunAction) -> None:
    result = check(run_action, {"a": {"vllm_models": GOOD}, "b": {"vllm_models": {"m": {"path": trust_as_template("{{ model_root }}/m")}}}})
    assert "b: `vllm_models` cannot be read: 'model_root' is undefined" in result["msg"]


def test_a_host_that_is_not_in_the_inventory_is_a_problem(run_action: RunAction) -> None:
    result = run_action(ActionModule, {"model": "m", "hosts": ["x"]}, {"hostvars": {}})
    assert "x: is not in the inventory." in result["msg"]


def test_an_unknown_parameter_is_refused(run_action: RunAction) -> None:
    with pytest.raises(AnsibleError, match="modle"):
        check(run_action, {"a": {"vllm_models": GOOD}}, modle="m")


def test_what_is_said_of_one_model_is_refused_of_all(run_action: RunAction) -> None:
    """The files of one model would be fetched under the name of every other."""
    asked = {"vllm_model_source": "source", "vllm_model_repo": "repo"}
    hosts: Dict[str, Any] = {name: {"vllm_models": GOOD} for name in ("a", "b")}
    hosts["b"]["vllm_model_source"] = "/media/disk"
    result = check(run_action, hosts, of_one_model=asked)
    assert result["failed"] and "b: `vllm_model_source` would be said of every model" in result["msg"]
    assert "put `source` in the model's entry" in result["msg"] and "vllm_model_repo" not in result["msg"]
    assert not check(run_action, hosts).get("failed"), "a swap fetches nothing"
    hosts["b"]["vllm_model_source"] = ""
    assert not check(run_action, hosts, of_one_model=asked).get("failed")


def test_variables_that_a_swap_would_pass_over_are_told_once(run_action: RunAction) -> None:
    host = {"vllm_models": GOOD, "vllm_service_drain_timeout": 60}
    result = check(run_action, {"a": host, "b": host})
    assert not result.get("failed")
    assert result["warnings"] == [
        "`vllm_service_drain_timeout` is a variable of the role vllm_service and not read by this playbook: put `drain_timeout` in the "
        "model's entry of the catalogue."
    ]
    assert "warnings" not in check(run_action, {"a": {"vllm_models": GOOD}})


def test_a_variable_that_no_swap_has_is_a_problem(run_action: RunAction) -> None:
    result = check(run_action, {"a": {"vllm_models": GOOD, "vllm_swap_replaces": "none"}, "b": {"vllm_models": GOOD}})
    assert result["failed"]
    assert result["msg"] == (
        "Nothing was touched by this playbook. a: no swap has a variable `vllm_swap_replaces` (did you mean 'vllm_swap_replace'?)."
    )


class Written(Dict[str, Any]):
    """Hostvars as Ansible has them: each variable with its value, and as it is written."""

    def raw_get(self, host: str) -> Any:
        """The variables of a host with their templates."""
        return {"vllm_models": {"m": {"path": "/models/m", "port": "{{ port }}"}}}


def test_a_key_of_an_entry_on_the_command_line_is_told_unless_the_inventory_uses_it(
    run_action: RunAction, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(context, "CLIARGS", ImmutableDict(args=("gpufleet.vllm.swap_model",)))
    monkeypatch.setattr(vllm_catalogue, "extra_names", lambda: ["gpus", "model", "port"])
    found = check(run_action, {"a": {"vllm_models": GOOD}, "b": {"vllm_models": GOOD}})["msg"]
    assert "- `gpus` was set on the command line" in found and "- `port` was set" in found
    assert "`port` was set" not in check(run_action, Written(a={"vllm_models": GOOD}))["msg"]


@pytest.mark.parametrize("name", ["vllm_swap_plan_only", "vllm_swap_enabled"])
@pytest.mark.parametrize(("value", "fine"), [("maybe", False), ("false", True), (True, True)])
def test_whether_to_do_it_is_never_guessed(run_action: RunAction, name: str, value: Any, fine: bool) -> None:
    result = check(run_action, {"a": {"vllm_models": GOOD, name: value}})
    assert bool(result.get("failed")) != fine
    assert fine or f"`{name}` has to be true or false, not 'maybe'." in result["msg"]


def by_play(run_action: RunAction, hosts: Dict[str, Any], everybody: Dict[str, Any] | None = None, **play: Any) -> Dict[str, Any]:
    """The first play runs on localhost, which has what is said of all hosts, and what the play sets."""
    hostvars = {**{host: {**(everybody or {}), **own} for host, own in hosts.items()}, "localhost": everybody or {}}
    own = {"hostvars": hostvars, "inventory_hostname": "localhost", **(everybody or {}), **play}
    return run_action(ActionModule, {"model": "m", "hosts": list(hosts)}, own)


def test_hosts_with_hooks_are_told_by_what_the_plays_will_have(run_action: RunAction, tmp_path: Path) -> None:
    hook = tmp_path / "hook.yml"
    hook.write_text("- block: []\n", encoding="utf-8")
    good: Dict[str, Any] = {"vllm_models": GOOD}
    found = check(run_action, {"a": {**good, "after_host": str(hook)}, "b": {**good, "before_host": ""}})
    assert (found["hooked"], found["asked"]) == (["a"], {"a": {"after_host": str(hook)}, "b": {}})
    # What the play sets comes before what a host has of its own, as it does when it is run.
    own = {**good, "after_host": "/missing.yml"}
    assert by_play(run_action, {"a": own, "b": good}, after_host=str(hook))["hooked"] == ["a", "b"]
    assert by_play(run_action, {"a": own}, after_host="")["hooked"] == []
    found = by_play(run_action, {"a": {**good, "after_host": str(hook)}}, after_host="/missing.yml")
    assert "there is no file /missing.yml" in found["msg"]
    # What is said of all hosts is no word of the play.
    found = by_play(run_action, {"a": {**good, "after_host": ""}, "b": good}, {"after_host": str(hook)})
    assert found["hooked"] == ["b"]
    # Each host has it in its own terms, which the host that the check runs on need not have.
    written = trust_as_template("%s/{{ balancer }}.yml" % tmp_path)
    hosts = {"a": {**good, "balancer": "hook"}, "b": {**good, "balancer": "other"}}
    told = by_play(run_action, hosts, after_host=written)["msg"]
    assert told.startswith("Nothing was touched by this playbook. b: `after_host`: there is no file %s/other.yml" % tmp_path)
    told = by_play(run_action, {"a": good, "b": hosts["a"]}, after_host=written)["msg"]
    assert "a: `after_host` cannot be read: 'balancer' is undefined" in told


def test_what_the_play_sets_is_judged_as_what_the_inventory_says(run_action: RunAction) -> None:
    good: Dict[str, Any] = {"vllm_models": GOOD}
    told = by_play(run_action, {"a": good}, vllm_swap_plan_only="ture")["msg"]
    assert "`vllm_swap_plan_only` has to be true or false, not 'ture'" in told
    assert "no swap has a variable `vllm_swap_replac`" in by_play(run_action, {"a": good}, vllm_swap_replac="none")["msg"]
    assert by_play(run_action, {"a": {}}, vllm_models=GOOD)["deployments"]["a"]["model"] == "/models/m"
    found = by_play(run_action, {"a": good, "b": {**good, "vllm_swap_plan_only": True}})
    assert found["asked"] == {"a": {}, "b": {"vllm_swap_plan_only": True}}


def test_a_catalogue_that_the_playbook_would_not_read_is_a_problem(run_action: RunAction) -> None:
    assert "the catalogue is `vllm_models`" in check(run_action, {"a": {"vllm_models": GOOD, "vllm_swap_models": {}}})["msg"]
