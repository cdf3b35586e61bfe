# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The commands of the pages: ones that the shell reads, with playbooks, options, variables and targets that there are."""

from __future__ import annotations

import re
import subprocess

import pytest
import yaml
from pages.blocks import ROOT, Block, code, examples, pages
from pages.commands import commands, problems
from pages.known import filters, modules, of_ours, playbooks, roles, variables

BLOCKS = examples("shell")


@pytest.mark.parametrize("block", BLOCKS, ids=lambda block: block.place)
def test_the_shell_can_read_it(block: Block) -> None:
    done = subprocess.run(["bash", "-n"], input=block.text, capture_output=True, text=True, timeout=20, check=False)
    assert done.returncode == 0, "%s: %s" % (block.place, done.stderr)


@pytest.mark.parametrize("block", BLOCKS, ids=lambda block: block.place)
def test_what_it_names_is_there(block: Block) -> None:
    seen = [problems(words) for words in commands(block.text) if words]
    assert seen, block.place
    assert [problem for each in seen for problem in each] == [], block.place


def test_models_that_commands_name_are_in_some_catalogue() -> None:
    shown = set((yaml.safe_load((ROOT / "inventories/example/group_vars/gpu_hosts.yml").read_text()))["vllm_models"])
    shown |= set((yaml.safe_load((ROOT / "inventories/lab/group_vars/gpu_hosts.yml").read_text()))["vllm_models"])
    for block in examples("yaml"):
        shown |= set(re.findall(r"^ +([\w.-]+):(?: +#.*)?\n +path:", block.text, re.M))
    named = {name for block in BLOCKS for name in re.findall(r"\bmodel=([\w.-]+)", block.text)}
    assert named - {"..."} - shown == set()


def test_variables_that_the_text_names_are_there() -> None:
    wrong = []
    for page in pages():
        for place, text in code(page):
            names = re.findall(r"-e ([a-z_]+)=", text) + ([text] if re.fullmatch(r"[a-z_]+[a-z]", text) and of_ours(text) else [])
            wrong += ["%s: %s" % (place, name) for name in names if name not in variables() and name not in modules()]
            wrong += ["%s: %s" % (place, text) for name in re.findall(r"gpufleet\.vllm\.([a-z_]+)\b", text) if not there(name)]
    assert wrong == []


def there(name: str) -> bool:
    return name in modules() or name in playbooks() or name in roles() or name in filters() or name in ("all", "attributes")


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("ansible-playbook gpufleet.vllm.swap -i inventory.yml", "the playbook gpufleet.vllm.swap"),
        ("ansible-playbook gpufleet.vllm.swap_model -i x -e modell=y", "the variable modell of swap_model"),
        ("ansible-playbook gpufleet.vllm.swap_model -i x -e '{\"gpu_reclaim_gpus\": [0]}'", "the variable gpu_reclaim_gpus of swap_model"),
        ("ansible-playbook gpufleet.vllm.swap_model --chekc", "an option of ansible-playbook"),
        ("ansible gpu_hosts -m gpufleet.vllm.gpu_reclaim -a 'scop=all'", "scop"),
        ("ansible gpu_hosts -m gpufleet.vllm.gpu_reclaim -a 'scope=al'", "value of scope must be one of: orphans, services, all, got: al"),
        ("ansible-playbook gpufleet.vllm.gpu_cleanup -e gpu_reclaim_reset=if_neded", "value of gpu_reclaim_reset must be one of"),
        ("make unti", "make unti"),
        (".venv/bin/python -m pytest tests/unti -q", "the tests tests/unti"),
        ("true && swapmodel", "the command true"),
        ("A=1 B_2=x=y swapmodel C=3", "the command swapmodel"),
    ],
)
def test_the_rules_find_what_is_wrong(line: str, problem: str) -> None:
    assert any(found.startswith(problem) for words in commands(line) for found in problems(words))


def test_the_command_at_the_head_of_each_playbook_is_read_as_well() -> None:
    heads = [block for block in BLOCKS if block.place.startswith("playbooks/")]
    assert {block.place for block in heads} == {"playbooks/%s.yml" % name for name in playbooks()}
    assert all("ansible-playbook gpufleet.vllm." in block.text for block in heads)
