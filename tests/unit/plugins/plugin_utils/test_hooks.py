# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What Ansible could not load when a host's turn has come is found before any host is touched; all that it can load passes."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[4]
# In a process of its own: how Ansible finds plugins is set once in a process.
ASK = """
import json, sys
from ansible.plugins.loader import init_plugin_loader
init_plugin_loader([sys.argv[1]])
from ansible.parsing.dataloader import DataLoader
from ansible_collections.gpufleet.vllm.plugins.plugin_utils._hooks import hook_faults
print(json.dumps(hook_faults(json.loads(sys.argv[2]), DataLoader(), ["gpufleet.vllm"])))
"""
GOOD = """
- ansible.builtin.command: "true"
  delegate_to: lb1
  with_items: [a]
  register: x
- name: Several
  when: true
  block:
    - local_action: ansible.builtin.command true
    - action: ansible.builtin.debug msg=x
  rescue:
    - debug: msg=x
  always:
    - meta: noop
- vllm_service:
    name: x
- include_tasks: other.yml
- import_tasks: other.yml
- include_role:
    name: "{{ nobody_knows }}"
- include_role:
    name: "@ROLE@"
- include_tasks: "{{ inventory_hostname }}.yml"
- include_tasks: maybe.yml
  when: false
- include_tasks: gone.yml
  loop: []
- import_role:
    name: "@ROLE@"
- debug: {msg: a}
  changed_when: true
  notify: [Have it read again, "{{ nobody_knows }}"]
- ansible.builtin.uri:
  args:
    url: http://lb.example.com/
  retries: 3
  until: true
  no_log: true
"""


def faults(path: object, hook: str = "before_host", where: Path = ROOT) -> list[str]:
    command = [sys.executable, "-c", ASK, str(ROOT / "collections"), json.dumps({hook: path})]
    told: list[str] = json.loads(subprocess.run(command, check=True, capture_output=True, text=True, cwd=where).stdout)
    return told


@pytest.mark.parametrize("hook", ["before_host", "after_host"])
def test_what_ansible_loads_is_taken(tmp_path: Path, hook: str) -> None:
    role = tmp_path / "role"
    for part, text in (("tasks", "- debug: {msg: a}\n"), ("handlers", "- name: Have it read again\n  debug: {msg: b}\n")):
        (role / part).mkdir(parents=True)
        (role / part / "main.yml").write_text(text)
    (tmp_path / "other.yml").write_text("- include_tasks: other.yml\n- include_tasks: good.yml\n")  # a circle, which some condition ends
    (tmp_path / "good.yml").write_text(GOOD.replace("@ROLE@", str(role)))
    assert faults(str(tmp_path / "good.yml"), hook) == []


def test_no_hook_is_no_fault() -> None:
    assert faults("") == [] and faults(None) == []


@pytest.mark.parametrize(("text", "said"), [
    ("- name: Ask\n  ansible.builtin.urii:\n    url: x\n", "task 'Ask': couldn't resolve module/action 'ansible.builtin.urii'"),
    ("- ansible.builtin.debug:\n    msg: a\n  wen: true\n", "task 1: `wen` is no keyword of a task."),
    ("- block:\n    - name: Inner\n      no_such_module:\n", "task 'Inner': couldn't resolve module/action 'no_such_module'"),
    ("- name: Nothing\n", "task 'Nothing': no module/action detected in task"),
    ("- word\n", "entry 1 is no task."),
    ("a: b\n", "holds no list of tasks."),
    ("- a: [\n", "cannot be read: "),
])
def test_what_it_cannot_load_is_told_with_its_place(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "bad.yml"
    path.write_text(text)
    found = faults(str(path))
    assert len(found) == 1 and found[0].startswith("`before_host`: %s" % path) and said in found[0], found


def test_a_file_that_is_not_there_is_told_with_where_it_was_looked_for(tmp_path: Path) -> None:
    found = faults("hooks/out.yml", where=tmp_path)
    assert len(found) == 1 and "there is no file %s" % (tmp_path / "hooks/out.yml") in found[0] and "relative to" in found[0]


@pytest.mark.parametrize(("text", "said"), [
    ("- name: x\n  import_tasks: nowhere.yml\n", "Ansible can't load its tasks: Unable to retrieve file contents."),
    ("- import_tasks: '{{ nobody_knows }}.yml'\n", "Ansible can't load its tasks: Error when evaluating variable in import path"),
    ("- block:\n    - import_tasks: word.yml\n", "Ansible can't load its tasks: "),
    ("- import_tasks: unknown.yml\n", "couldn't resolve module/action 'no_such_module'"),
    ("- include_tasks: unknown.yml\n", "unknown.yml: Ansible can't load its tasks: couldn't resolve module/action 'no_such_module'"),
    ("- name: In\n  include_tasks: nowhere.yml\n", "task 'In': there is no file nowhere.yml to include, neither there nor beside"),
    ("- include_tasks: {file: nowhere.yml}\n", "there is no file nowhere.yml to include"),
    ("- import_role: {name: nobody.has.it}\n", "role 'nobody.has.it' was not found"),
    ("- name: R\n  include_role: {name: nobody.has.it}\n", "task 'R': its role can't be loaded: "),
    ("- debug: {msg: a}\n  loop: [1]\n  loop_control: foo\n", "Ansible can't load its tasks: "),
    ("- name: N\n  debug: {msg: a}\n  notify: nobody\n", "task 'N': it notifies 'nobody', and no handler has that name"),
])
def test_what_it_would_find_only_in_the_middle_of_a_fleet_is_told_before(tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / "unknown.yml").write_text("- no_such_module:\n")
    (tmp_path / "word.yml").write_text("a: b\n")
    path = tmp_path / "bad.yml"
    path.write_text(text)
    told = faults(str(path))
    assert len(told) == 1 and told[0].startswith("`before_host`: %s" % tmp_path) and said in told[0], told
