# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a command line says that no playbook would read ends the run in the first play, before any host is touched."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
MODEL = {"path": "/models/m", "gpus": [0], "port": "{{ port | default(8000) }}"}
INVENTORY: dict[str, Any] = {"gpu_hosts": {"hosts": {"gpu01": {}}, "vars": {"ansible_connection": "local", "vllm_models": {"m": MODEL}}}}
NOT_READ = "was set on the command line, where this playbook does not read it"


@pytest.mark.parametrize(
    ("name", "words", "said"),
    [
        ("borrow_gpus", {"command": "true", "user": "nobody"}, "there is no variable user; did you mean gpu_borrow_user"),
        ("benchmark", {"tool": "builtin"}, "there is no variable tool; did you mean vllm_benchmark_tool"),
        ("benchmark", {"profile": "foo"}, "profile takes a dictionary with whole numbers, of concurrency"),
        ("benchmark", {"vllm_benchmark_max_regression": -1}, "vllm_benchmark_max_regression: -1 is no percentage"),
        ("gpu_cleanup", {"min_age": 5}, "there is no variable min_age; did you mean gpu_reclaim_min_age"),
        ("deploy", {"model": "m", "version": "0.33.0"}, "there is no variable version; did you mean vllm_install_version"),
        ("deploy", {"model": "m", "gpus": [1]}, f"`gpus` {NOT_READ}"),
        ("deploy", {"model": "m", "port": 8001}, ""),
        ("swap_model", {"model": "m", "targte": "gpu01"}, "there is no variable targte; did you mean target"),
        ("swap_model", {"model": "m", "replace": "none"}, "there is no variable replace here; set `vllm_swap_replace`"),
        ("swap_model", {"model": "m", "gpus": [1]}, f"`gpus` {NOT_READ}"),
        ("swap_model", {"model": "m", "vllm_swap_plan_only": "maybe"}, "`vllm_swap_plan_only` has to be true or false, not 'maybe'"),
        ("swap_model", {"model": "m", "vllm_swap_enabled": "maybe"}, "`vllm_swap_enabled` has to be true or false, not 'maybe'"),
        ("swap_model", {"model": "m", "port": 8001, "site": "x"}, ""),
        ("fleet_status", {"fail_on_drift": "maybe"}, "fail_on_drift is 'maybe'. Set it to true or false"),
        ("fleet_status", {"enabled": False}, "there is no variable enabled here; set `vllm_swap_enabled`"),
        ("fleet_status", {"fail_on_drift": "no"}, ""),
        ("borrow_gpus", {"command": "true", "user": "nobody", "gpufleet_other_names": "user"}, ""),
        ("benchmark", {"model": "m"}, "add -e gpufleet_other_names=model"),
    ],
)  # fmt: skip
def test_the_first_play_refuses_it(tmp_path: Path, name: str, words: dict[str, object], said: str) -> None:
    _expect(tmp_path, f"playbooks/{name}.yml", words, {}, said)


@pytest.mark.parametrize(
    ("imported", "words", "said"),
    [
        # The first of them ends the run, whether it refuses or finds that nothing is to be done.
        (["benchmark", "swap_model"], {"model": "m"}, ""),
        (["borrow_gpus", "swap_model"], {"command": "true", "gpus": [5], "model": "m"}, ""),
        (["swap_model", "borrow_gpus"], {"command": "true", "gpus": [5], "model": "m"}, ""),
        (["benchmark", "swap_model"], {"model": "m", "tool": "builtin"}, "add -e gpufleet_other_names=tool"),
        (["benchmark"], {"model": "m"}, "there is no variable model"),
        (["borrow_gpus"], {"command": "true", "user": "nobody"}, "there is no variable user; did you mean gpu_borrow_user"),
    ],
)
def test_what_another_playbook_of_the_run_takes_is_no_slip(
    tmp_path: Path, imported: list[str], words: dict[str, object], said: str
) -> None:
    _expect(tmp_path, _site(tmp_path, [{"import_playbook": f"gpufleet.vllm.{name}"} for name in imported]), words, {}, said)


def test_what_a_play_of_ones_own_reads_is_no_slip(tmp_path: Path) -> None:
    names = ("path", "repo", "port", "enabled")
    tasks = [{"ansible.builtin.debug": {"msg": "{{ %s }}" % name}} for name in names]
    play = {"hosts": "localhost", "gather_facts": False, "tasks": tasks}
    site = _site(tmp_path, [play, {"import_playbook": "gpufleet.vllm.swap_model"}])
    words = {"model": "m", **dict.fromkeys(names, "x")}
    _expect(tmp_path, site, words, {"vllm_models": {"m": {"path": "/models/m"}}}, "")
    _expect(tmp_path, site, {**words, "gpus": [5]}, {}, f"`gpus` {NOT_READ}")


@pytest.mark.parametrize(
    ("name", "variables", "words"),
    [
        ("deploy", {"vllm_install_version": "{{ version }}"}, {"model": "m", "version": "0.33.0"}),
        ("borrow_gpus", {"gpu_borrow_env": {"STAGE": "{{ env }}"}, "gpu_borrow_user": "{{ user }}"},
         {"command": "true", "env": "test", "user": "nobody"}),
        ("benchmark", {"vllm_benchmark_timeout": "{{ timeout }}"}, {"timeout": 300}),
        ("gpu_cleanup", {"gpu_reclaim_min_age": "{{ min_age }}"}, {"min_age": 5}),
        ("fleet_status", {"vllm_swap_enabled": "{{ enabled }}"}, {"enabled": False}),
    ],
)  # fmt: skip
def test_what_the_inventory_is_written_in_terms_of_is_no_slip(
    tmp_path: Path, name: str, variables: dict[str, object], words: dict[str, object]
) -> None:
    _expect(tmp_path, f"playbooks/{name}.yml", words, variables, "")


def test_what_a_hook_of_the_inventory_reads_is_no_slip(tmp_path: Path) -> None:
    hook = tmp_path / "hook.yml"
    hook.write_text(json.dumps([{"ansible.builtin.debug": {"msg": "{{ port }}"}}]), encoding="utf-8")
    variables = {"vllm_models": {"m": {"path": "/models/m"}}, "before_host": str(hook)}
    _expect(tmp_path, "playbooks/swap_model.yml", {"model": "m", "port": 8443}, variables, "")
    _expect(tmp_path, "playbooks/swap_model.yml", {"model": "m", "gpus": [5]}, variables, f"`gpus` {NOT_READ}")


def _site(directory: Path, plays: list[dict[str, object]]) -> str:
    path = directory / "site.yml"
    path.write_text(json.dumps(plays), encoding="utf-8")
    return str(path)


def _expect(directory: Path, playbook: str, words: Mapping[str, object], variables: Mapping[str, object], said: str) -> None:
    """Runs the first play of each playbook alone: it has to refuse in these words, or to let it pass where there are none."""
    hosts = INVENTORY["gpu_hosts"]
    path = directory / "inventory.yml"
    path.write_text(json.dumps({"gpu_hosts": {**hosts, "vars": {**hosts["vars"], **variables}}}), encoding="utf-8")
    first_alone = "borrow,benchmark,cleanup,deploy,swap,status"
    command = [str(Path(sys.executable).parent / "ansible-playbook"), "-i", str(path), playbook, "--skip-tags", first_alone]
    done = subprocess.run([*command, "-e", json.dumps(words)], capture_output=True, text=True, timeout=120, check=False, cwd=ROOT,
                          env={**os.environ, "ANSIBLE_COLLECTIONS_PATH": str(ROOT / "collections"), "ANSIBLE_NOCOLOR": "1"})  # fmt: skip
    told = " ".join((done.stdout + done.stderr).split())
    # The last task of the first play finds that there is nothing to be done; a swap is planned whatever its tags.
    passed = "The tags of this run leave out all" in told or "PLAY [Plan the swap on every host]" in told
    assert done.returncode == 2 and passed is (said == "") and said in told, told
