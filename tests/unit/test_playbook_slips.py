# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a command line says that no playbook would read ends the run in the first play, before any host is touched."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
MODEL = {"path": "/models/m", "gpus": [0], "port": "{{ port | default(8000) }}"}
INVENTORY = {"gpu_hosts": {"hosts": {"gpu01": {}}, "vars": {"ansible_connection": "local", "vllm_models": {"m": MODEL}}}}
NOT_READ = "was set on the command line, where nothing reads it"


@pytest.mark.parametrize(
    ("name", "words", "said"),
    [
        ("borrow_gpus", {"command": "true", "user": "nobody"}, "there is no variable user; did you mean gpu_borrow_user"),
        ("benchmark", {"tool": "builtin"}, "there is no variable tool; did you mean vllm_benchmark_tool"),
        ("gpu_cleanup", {"min_age": 5}, "there is no variable min_age; did you mean gpu_reclaim_min_age"),
        ("deploy", {"model": "m", "version": "0.33.0"}, "there is no variable version; did you mean vllm_install_version"),
        ("deploy", {"model": "m", "gpus": [1]}, f"`gpus` {NOT_READ}"),
        ("deploy", {"model": "m", "port": 8001}, ""),
        ("swap_model", {"model": "m", "targte": "gpu01"}, "there is no variable targte; did you mean target"),
        ("swap_model", {"model": "m", "replace": "none"}, "there is no variable replace here; set `vllm_swap_replace`"),
        ("swap_model", {"model": "m", "gpus": [1]}, f"`gpus` {NOT_READ}"),
        ("swap_model", {"model": "m", "vllm_swap_plan_only": "maybe"}, "`vllm_swap_plan_only` has to be true or false, not 'maybe'"),
        ("swap_model", {"model": "m", "port": 8001, "site": "x"}, ""),
        ("fleet_status", {"fail_on_drift": "maybe"}, "fail_on_drift is 'maybe'. Set it to true or false"),
        ("fleet_status", {"enabled": False}, "there is no variable enabled here; set `vllm_swap_enabled`"),
        ("fleet_status", {"fail_on_drift": "no"}, ""),
    ],
)  # fmt: skip
def test_the_first_play_refuses_it(tmp_path: Path, name: str, words: dict[str, object], said: str) -> None:
    path = tmp_path / "inventory.yml"
    path.write_text(json.dumps(INVENTORY), encoding="utf-8")
    first_alone = "borrow,benchmark,cleanup,deploy,swap,status"
    command = [str(Path(sys.executable).parent / "ansible-playbook"), "-i", str(path), f"playbooks/{name}.yml", "--skip-tags", first_alone]
    done = subprocess.run([*command, "-e", json.dumps(words)], capture_output=True, text=True, timeout=120, check=False, cwd=ROOT,
                          env={**os.environ, "ANSIBLE_NOCOLOR": "1"})  # fmt: skip
    told = " ".join((done.stdout + done.stderr).split())
    assert (done.returncode != 0) == bool(said) and said in told, told
