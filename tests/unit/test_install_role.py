# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the role vllm_install refuses before it changes a host, and what it says where packages can't be installed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from ansible_collections.gpufleet.vllm.plugins.module_utils._environment import request

ROOT = Path(__file__).resolve().parents[2]
ROLE = ROOT / "roles" / "vllm_install"


def read(*path: str) -> Any:
    return yaml.safe_load(ROLE.joinpath(*path).read_text(encoding="utf-8"))


def ran(tmp_path: Path, play: dict[str, Any]) -> tuple[int, str]:
    path = tmp_path / "play.yml"
    path.write_text(json.dumps([{"hosts": "localhost", "gather_facts": False, **play}]), encoding="utf-8")
    command = [str(Path(sys.executable).parent / "ansible-playbook"), "-i", "localhost,", "-c", "local", str(path)]
    env = {**os.environ, "ANSIBLE_NOCOLOR": "1", "ANSIBLE_COLLECTIONS_PATH": str(ROOT / "collections")}
    done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=120, check=False)
    return done.returncode, " ".join((done.stdout + done.stderr).split())


def test_it_takes_the_versions_that_the_module_takes() -> None:
    assert read("vars", "main.yml")["vllm_install_exact"] == request._VERSION.pattern


@pytest.mark.parametrize(
    ("version", "taken"), [("0.33.0", True), (0.33, True), (" 0.33.0+cu130 ", True), ("0.33.0rc1", True), (">=0.33", False)]
)
def test_its_first_task_looks_at_the_version(tmp_path: Path, version: object, taken: bool) -> None:
    first = read("tasks", "main.yml")[0]
    status, said = ran(tmp_path, {"vars": {**read("vars", "main.yml"), "vllm_install_version": version}, "tasks": [first]})
    assert (status == 0) is taken and ("one exact version such as 0.33.0" in said) is not taken, said


def test_no_host_is_changed_for_a_version_that_is_none(tmp_path: Path) -> None:
    role = {"role": "gpufleet.vllm.vllm_install", "vllm_install_version": "latest", "vllm_install_manage_packages": False}
    # In check mode, so that this machine stays as it is whatever the role does.
    status, said = ran(tmp_path, {"check_mode": True, "roles": [role]})
    assert status == 2 and "Nothing was touched. vllm_install_version has to be one exact version" in said and "not 'latest'" in said, said
    assert "Make the group" not in said, said


@pytest.mark.parametrize("manager", ["apt", "dnf"])
def test_packages_that_cannot_be_installed_come_with_the_ways_out(tmp_path: Path, manager: str) -> None:
    (tasks,) = (task for task in read("tasks", "main.yml") if task["name"] == "Install what compiles")
    for task in (tasks["block"][0], *tasks["rescue"][-1]["block"]):
        for module in {"ansible.builtin.package", "ansible.builtin.apt"} & {*task}:
            del task[module]
            task["ansible.builtin.fail"] = {"msg": "No package matches gcc."}
    variables = {"vllm_install_manage_packages": True, "vllm_install_packages": ["gcc", "g++"], "ansible_facts": {"pkg_mgr": manager}}
    status, said = ran(tmp_path, {"vars": variables, "tasks": [tasks]})
    assert status == 2 and "gcc, g++ can't be installed: No package matches gcc" in said, said
    assert "what the package manager says" in said and "vllm_install_manage_packages: false" in said, said
