# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A task's own limit is never shorter than what the module may take: it is made of the module's numbers, in each place that has one."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from ansible_collections.gpufleet.vllm.plugins.module_utils._unit.change_limits import longest_s

ROOT = Path(__file__).resolve().parents[2]


def limit_of(tmp_path: Path, timeout: str, variables: dict[str, Any]) -> int:
    """What a task's ``timeout`` comes to."""
    tasks = [{"ansible.builtin.debug": {"msg": "limit=%s" % timeout}, "vars": variables}]
    path = tmp_path / "play.yml"
    path.write_text(json.dumps([{"hosts": "localhost", "gather_facts": False, "tasks": tasks}]), encoding="utf-8")
    command = [str(Path(sys.executable).parent / "ansible-playbook"), "-i", "localhost,", "-c", "local", str(path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, env={**os.environ, "ANSIBLE_NOCOLOR": "1"})
    found = re.search(r"limit=(\d+)", done.stdout)
    assert found is not None, done.stdout + done.stderr
    return int(found.group(1))


def read(*path: str) -> Any:
    return yaml.safe_load(ROOT.joinpath(*path).read_text(encoding="utf-8"))


@pytest.mark.parametrize(("asked", "least"), [
    ({}, longest_s()),
    ({"ready_timeout": "{{ omit }}"}, longest_s()),
    ({"ready_timeout": 60, "stop_timeout": 90}, longest_s(60, stop=90)),
    ({"ready_timeout": "7200", "drain_timeout": 300, "reconnect_timeout": 30}, longest_s(7200, 300, reconnect=30)),
])  # fmt: skip
def test_the_role_vllm_service_waits_for_all_that_its_module_may_take(tmp_path: Path, asked: dict[str, Any], least: int) -> None:
    task = read("roles", "vllm_service", "tasks", "main.yml")[0]
    variables = {"vllm_service_plan_only": False, **task["vars"], **{"vllm_service_%s" % name: value for name, value in asked.items()}}
    assert limit_of(tmp_path, task["timeout"], variables) == least


@pytest.mark.parametrize(("asked", "least"), [
    ({}, longest_s(reconnect=20)), ({"ready_timeout": 7200, "drain_timeout": 300, "stop_timeout": 400}, longest_s(7200, 300, 400, 20)),
])  # fmt: skip
def test_a_swap_waits_for_all_that_its_module_may_take(tmp_path: Path, asked: dict[str, Any], least: int) -> None:
    task = read("roles", "vllm_swap", "tasks", "main.yml")[0]
    models = {"new": {"path": "/models/new", "gpus": "all", "port": 8000, **asked}}
    variables = {
        "vllm_swap_plan_only": False, "vllm_swap_models": models, "vllm_swap_model": "new", "vllm_swap_reconnect_timeout": 20,
    }  # fmt: skip
    assert limit_of(tmp_path, task["timeout"], variables) == least


def test_deploying_waits_for_all_that_its_module_may_take(tmp_path: Path) -> None:
    text = ROOT.joinpath("playbooks", "deploy.yml").read_text(encoding="utf-8")
    (timeout,) = re.findall(r'^ *timeout: "(.*deploy_parameters.*)"$', text, re.M)
    assert limit_of(tmp_path, timeout, {"deploy_parameters": {"ready_timeout": 7200}}) == longest_s(7200)
