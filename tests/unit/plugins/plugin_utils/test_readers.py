# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a run is made of, and who in it reads a variable."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Dict, List

import pytest
from ansible import context
from ansible.module_utils.common.collections import ImmutableDict
from ansible.utils.vars import load_extra_vars

from ansible_collections.gpufleet.vllm.plugins.plugin_utils._playbooks import OWN, hook_reads, read_run
from ansible_collections.gpufleet.vllm.plugins.plugin_utils._readers import Readers, readers_of

PLAYBOOKS = Path(__file__).parents[4] / "playbooks"
EVERY = {name for names in OWN.values() for name in names}


def _write(path: Path, text: str) -> str:
    path.parent.mkdir(exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return str(path)


def test_the_table_has_the_variables_in_the_head_of_each_playbook() -> None:
    heads = {path.stem: path.read_text(encoding="utf-8").split("\n- name:")[0] for path in PLAYBOOKS.glob("*.yml")}
    found = {name: re.findall(r"^# (before_host|slow_percent|[a-z_]+(?=  ))", head, re.MULTILINE) for name, head in heads.items()}
    assert {name: list(own) for name, own in OWN.items()} == found


@pytest.mark.parametrize("word", ["gpufleet.vllm.benchmark", str(PLAYBOOKS / "benchmark.yml"), "gpufleet.vllm.benchmark.yml"])
def test_a_playbook_of_this_collection_is_known_by_each_of_its_names(word: str) -> None:
    assert read_run((word,)) == (frozenset(OWN["benchmark"]), ())


def test_the_playbooks_that_a_run_imports_are_read(tmp_path: Path) -> None:
    _write(tmp_path / "more" / "tasks.yml", "- debug: {msg: '{{ port }}'}")
    _write(tmp_path / "more" / "own.yml", "- hosts: all\n  tasks:\n    - import_tasks: tasks.yml\n    - when: enabled\n      ping:\n")
    imports = ["gpufleet.vllm.swap_model", "more/own.yml", "gpufleet.vllm.benchmark", "site.yml"]
    site = _write(tmp_path / "site.yml", "".join(f"- ansible.builtin.import_playbook: {each}\n" for each in imports))
    run = read_run([site])
    assert run.documented == {*OWN["swap_model"], *OWN["benchmark"]} and sorted(run.expressions) == ["enabled", "{{ port }}"]


@pytest.mark.parametrize("imported", ["other.fleet.site", "'{{ which }}.yml'"])
def test_a_playbook_that_cannot_be_looked_into_may_import_any(tmp_path: Path, imported: str) -> None:
    assert read_run((_write(tmp_path / "site.yml", f"- import_playbook: {imported}\n"),)).documented == EVERY
    assert read_run(None).documented == read_run(()).documented == EVERY


@pytest.mark.parametrize(
    ("text", "reads"),
    [
        ("- debug: {msg: '{{ port }}'}", True),
        ("- when: port is defined\n  ping:\n", True),
        ("- ansible.builtin.include_role: {name: balancer}", True),
        ("- ansible.builtin.template: {src: a.j2, dest: /b}", True),
        ("- debug: {msg: '{{ inventory_hostname }}'}", False),
    ],
)
def test_a_hook_reads_what_it_names_or_may_bring_in(tmp_path: Path, text: str, reads: bool) -> None:
    assert hook_reads("port", _write(tmp_path / "hook.yml", text)) == reads


@pytest.mark.parametrize("hook", ["{{ hooks }}/out.yml", "nowhere.yml", ["a"]])
def test_a_hook_that_cannot_be_looked_into_may_read_anything(hook: Any) -> None:
    assert hook_reads("port", hook)


def _run(monkeypatch: pytest.MonkeyPatch, *extra: str) -> None:
    monkeypatch.setattr(load_extra_vars, "extra_vars", None, raising=False)
    monkeypatch.setattr(context, "CLIARGS", ImmutableDict(extra_vars=extra, args=("gpufleet.vllm.borrow_gpus",)))


@pytest.mark.parametrize(
    ("hosts", "reads"),
    [
        ([{"gpu_borrow_user": "{{ user }}"}], True),
        ([{"gpu_borrow_env": {"STAGE": "{{ user }}"}}] * 2, True),
        # The second host's command would run as root.
        ([{"gpu_borrow_user": "{{ user }}"}, {}], False),
        ([{"gpu_borrow_user": "nobody"}], False),
        ([], False),
    ],
)  # fmt: skip
def test_a_name_is_read_where_each_hosts_variables_are_written_in_terms_of_it(
    monkeypatch: pytest.MonkeyPatch, hosts: List[Dict[str, Any]], reads: bool
) -> None:
    _run(monkeypatch, "user=nobody")
    by_host = {str(number): variables for number, variables in enumerate(hosts)}
    assert readers_of(by_host, list(by_host)).read("user") == reads


@pytest.mark.parametrize("said", ["=user,port", "=' port, user '"])
def test_what_the_command_line_says_is_read_is(monkeypatch: pytest.MonkeyPatch, said: str) -> None:
    _run(monkeypatch, "user=x", "gpufleet_other_names" + said)
    assert Readers().read("user") and Readers().read("gpus") and not Readers().read("grace")


def test_a_variable_of_this_collection_is_nobody_elses(monkeypatch: pytest.MonkeyPatch) -> None:
    _run(monkeypatch, "gpu_reclaim_accept=all", "gpufleet_other_names=gpu_reclaim_accept")
    assert not readers_of({"a": {"x": "{{ gpu_reclaim_accept }}"}}, ["a"]).read("gpu_reclaim_accept")
