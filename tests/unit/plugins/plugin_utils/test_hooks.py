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
- import_role:
    name: a.b.c
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
    (tmp_path / "good.yml").write_text(GOOD)
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
