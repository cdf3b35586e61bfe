# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The YAML of the pages: plays that Ansible accepts, options, variables and catalogue entries that there are."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible.playbook.task import Task
from pages.blocks import ROOT, Block, examples
from pages.known import NAMESPACE, modules, of_ours, options_of_modules, options_of_roles, roles, variables
from pages.values import wrong_values

from ansible_collections.gpufleet.vllm.plugins.module_utils._catalogue.resolve import examine

BLOCKS = examples("yaml")
GROUP = {"hosts", "vars", "children"}
# In a task; whatever else stands there is its action.
KEYWORDS = set(Task.fattributes) | {"block", "rescue", "always", "action"} | {key for key in Task.fattributes if key.startswith("with_")}
# What Ansible puts in by itself, and what the pages' own hooks are given.
ANSIBLES = {"item", "groups", "hostvars", "inventory_hostname", "swap_hook", "balancer", "omit"}


def load(block: Block) -> Any:
    return yaml.safe_load(block.text)


def is_play(item: Any) -> bool:
    return isinstance(item, dict) and ("hosts" in item or any("import_playbook" in key for key in item))


def plays_of(block: Block) -> list[Any]:
    """The example as plays: tasks get one around them, data is none."""
    content = load(block)
    if not isinstance(content, list):
        return []
    return content if all(is_play(item) for item in content) else [{"hosts": "gpu_hosts", "gather_facts": False, "tasks": content}]


def tasks_of(node: Any) -> Iterator[dict[str, Any]]:
    for item in node or []:
        inner = [key for key in ("tasks", "pre_tasks", "post_tasks", "handlers", "block", "rescue", "always") if key in item]
        for key in inner:
            yield from tasks_of(item[key])
        if not inner:
            yield item


def mappings_of(node: Any) -> Iterator[dict[str, Any]]:
    """Every mapping of variables in an inventory or a file of variables."""
    if isinstance(node, dict) and node and all(isinstance(value, dict) and set(value) <= GROUP and value for value in node.values()):
        for group in node.values():
            yield group.get("vars") or {}
            yield from (host for host in (group.get("hosts") or {}).values() if host)
            yield from mappings_of(group.get("children") or {})
    elif isinstance(node, dict):
        yield node


def data() -> list[Block]:
    return [block for block in BLOCKS if isinstance(load(block), dict)]


def used_in(text: str) -> set[str]:
    return {name for template in re.findall(r"\{\{(.*?)\}\}", text) for name in re.findall(r"[A-Za-z_]\w*", template)}


def test_there_are_examples_of_each_kind() -> None:
    assert len(BLOCKS) > 30
    assert len([block for block in BLOCKS if plays_of(block)]) > 10
    assert len([block for block in data() if "vllm_models" in block.text]) > 10


def test_every_play_and_task_is_one_that_ansible_accepts(tmp_path: Path) -> None:
    paths = {}
    for number, block in enumerate(BLOCKS):
        if plays := plays_of(block):
            path = tmp_path / ("%03d.yml" % number)
            path.write_text(yaml.safe_dump(plays, sort_keys=False), encoding="utf-8")
            paths[path] = block.place
    for name in re.findall(r"[\w-]+\.yml", "".join(block.text for block in BLOCKS)):
        if not (tmp_path / name).exists():
            (tmp_path / name).write_text("[]", encoding="utf-8")
    command = [str(Path(sys.executable).parent / "ansible-playbook"), "--syntax-check", "-i", "localhost,", *map(str, paths)]
    env = {**os.environ, "ANSIBLE_CONFIG": str(ROOT / "ansible.cfg"), "ANSIBLE_NOCOLOR": "1", "ANSIBLE_HOME": str(tmp_path / "home")}
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=240, check=False)
    places = re.sub(r"\S*/(\d{3}\.yml)", lambda found: paths.get(tmp_path / found[1], found[0]), done.stdout + done.stderr)
    assert done.returncode == 0, places
    assert "[DEPRECATION" not in places, places


@pytest.mark.parametrize("block", [block for block in BLOCKS if plays_of(block)], ids=lambda block: block.place)
def test_what_tasks_name_is_there(block: Block) -> None:
    for play in plays_of(block):
        assert stray(play.get("vars") or {}, block) == []
        for task in tasks_of([play]):
            assert stray(task.get("vars") or {}, block) == []
            for action, options in task.items():
                if action in KEYWORDS or not action.startswith(NAMESPACE):
                    assert action in KEYWORDS or action.count(".") == 2, "%s: %s is no full name" % (block.place, action)
                else:
                    known = modules()[action.removeprefix(NAMESPACE)]
                    assert sorted(set(options or {}) - known) == [], block.place
                    assert wrong_values(options or {}, options_of_modules()[action.removeprefix(NAMESPACE)]) == [], block.place
            assert wrong_values(task.get("vars") or {}, options_of_roles()) == [], block.place
            role = (task.get("ansible.builtin.include_role") or task.get("ansible.builtin.import_role") or {}).get("name", "")
            if role:
                given = {name for name in task.get("vars") or {} if of_ours(name)}
                assert sorted(given - roles()[role.removeprefix(NAMESPACE)]) == [], block.place


def stray(mapping: dict[str, Any], block: Block) -> list[str]:
    """Variables that nobody knows: neither the collection, nor Ansible, nor the example itself."""
    own = used_in(block.text) | ANSIBLES
    unknown = [name for name in mapping if name not in variables() and not name.startswith("ansible_")]
    return sorted(name for name in unknown if of_ours(name) or name not in own)


@pytest.mark.parametrize("block", data(), ids=lambda block: block.place)
def test_every_variable_is_one_that_somebody_reads(block: Block) -> None:
    for mapping in mappings_of(load(block)):
        assert stray(mapping, block) == [], block.place
        assert wrong_values(mapping, options_of_roles()) == [], block.place


@pytest.mark.parametrize("block", [block for block in data() if "vllm_models" in block.text], ids=lambda block: block.place)
def test_every_entry_of_a_catalogue_is_sound(block: Block) -> None:
    # A template has no value here. One for GPUs stands for one of them, one for a source for a directory, one for text for a word.
    text = re.sub(r"gpus: (\[?)\"\{\{.*?\}\}\"\]?", "gpus: [0]", block.text)
    text = re.sub(r"\{\{ ?model_root ?\}\}", "/models", text)
    text = re.sub(r"(source: \"?)\{\{.*?\}\}", r"\1/word", text)
    text = re.sub(r"\{\{.*?\}\}", "word", text)
    seen = 0
    for mapping in mappings_of(yaml.safe_load(text)):
        models = mapping.get("vllm_models") or {}
        for name in models:
            problems, _parameters = examine(models, name)
            assert problems == [], block.place
            seen += 1
    assert seen, "%s holds a catalogue that was not looked at" % block.place


def test_the_rules_find_what_is_wrong() -> None:
    wrong = Block("x.md:1", "yaml", "gpu_reclaim_scop: all\n")
    assert stray(load(wrong), wrong) == ["gpu_reclaim_scop"]
    unread = Block("x.md:1", "yaml", "model_rot: /models\nvllm_models: {x: {path: '{{ model_root }}/x'}}\n")
    assert stray(load(unread), unread) == ["model_rot"]
    assert examine({"x": {"path": "/x", "tensor_parallel_size": 2}}, "x")[0]


@pytest.mark.parametrize(
    ("given", "wrong"),
    [
        ({"vllm_install_manage_packages": "sometimes"}, "vllm_install_manage_packages"),
        ({"vllm_service_port": "eight"}, "vllm_service_port"),
        ({"vllm_service_guard": {"timeuot": 3}}, "timeuot"),
        ({"vllm_service_guard": {"timeout": "{{ seconds }}"}, "vllm_service_state": "{{ any }}", "site": 1}, None),
    ],
)
def test_a_value_that_an_option_does_not_take_is_found(given: dict[str, Any], wrong: str | None) -> None:
    found = wrong_values(given, options_of_roles())
    assert (found == []) if wrong is None else (len(found) == 1 and wrong in found[0]), found


@pytest.mark.parametrize("begin", ["plugins/modules/gpu_reclaim.py", "plugins/filter/deployment.yml"])
def test_what_pages_are_made_from_is_read_as_well(begin: str) -> None:
    assert any(block.place.startswith(begin) and plays_of(block) for block in BLOCKS)
