# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the table of a deployment says of each host: of those after its first batch too, when it ends there, and of one that failed late."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from report_schemas import faults

ROOT = Path(__file__).resolve().parents[2]
# Nobody listens there: the hosts can't be reached, and nothing is done.
NOWHERE = {"ansible_connection": "ssh", "ansible_host": "127.0.0.1", "ansible_port": 9}


def test_nothing_is_stopped_for_a_deployment_whatever_a_swap_may() -> None:
    """It goes to all hosts at once: what makes room is a swap's, host by host."""
    plays = yaml.safe_load((ROOT / "playbooks" / "deploy.yml").read_text(encoding="utf-8"))
    blocks = [task for play in plays for task in play["tasks"] if "block" in task]
    (service,) = [task for each in blocks for task in each["block"] if "gpufleet.vllm.vllm_service" in task]
    assert service["gpufleet.vllm.vllm_service"]["replace"] == "none"
    (fetch,) = [task for each in blocks for task in each["block"] if task["name"] == "Fetch the model"]
    assert fetch["vars"]["vllm_model_source"] == "{{ deploy_entry.source | default(none) }}", "that of all models would be every model's"


def test_hosts_whose_turn_did_not_come_are_in_the_table_and_in_the_report(tmp_path: Path) -> None:
    variables = {**NOWHERE, "vllm_models": {"m": {"path": "/models/m", "gpus": [0]}}}
    inventory = tmp_path / "inventory.yml"
    inventory.write_text(json.dumps({"gpu_hosts": {"hosts": {"gpu01": {}, "gpu02": {}, "gpu03": {}}, "vars": variables}}), encoding="utf-8")
    command = [str(Path(sys.executable).parent / "ansible-playbook"), "-i", str(inventory), "playbooks/deploy.yml", "-e", "model=m"]
    command += ["-e", "batch=1", "-e", f"report_dir={tmp_path / 'reports'}"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, cwd=ROOT,
                          env={**os.environ, "ANSIBLE_NOCOLOR": "1"})  # fmt: skip
    assert done.returncode != 0, done.stdout
    (path,) = (tmp_path / "reports").glob("*.json")
    report = json.loads(path.read_text(encoding="utf-8"))
    assert faults(report) == []
    assert [(row["host"], row["result"]) for row in report["rows"]] == [
        ("gpu01", "unreachable"), ("gpu02", "not begun"), ("gpu03", "not begun"),
    ]  # fmt: skip
    assert done.stdout.count("not begun") >= 2, done.stdout


@pytest.mark.parametrize(
    ("variables", "detail"),
    [
        ({"deploy_failure": "Port 8000 is in use. Nothing was touched."}, "Port 8000 is in use. Nothing was touched."),
        ({"deploy_failure": "Port 8000 is in use. Nothing was touched.", "vllm_model_result": {"actions": ["fetch 3 files"]}},
         "Port 8000 is in use."),
        ({"deploy_failure": {}, "vllm_model_result": {"actions": ["fetch 3 files"]},
          "deploy_service": {"actions": [{"action": "start", "target": "vllm-m.service"}]}}, "fetch 3 files; start vllm-m.service"),
    ],
)  # fmt: skip
def test_a_host_on_which_something_was_fetched_is_not_said_to_be_untouched(
    tmp_path: Path, variables: dict[str, object], detail: str
) -> None:
    plays = yaml.safe_load((ROOT / "playbooks" / "deploy.yml").read_text(encoding="utf-8"))
    (note,) = (task for play in plays for task in play["tasks"] if task["name"] == "Note what was done")
    check = {"ansible.builtin.assert": {"that": "deploy_row.detail == detail"}}
    given = {"vllm_install_result": {"actions": []}, "vllm_model_result": {"actions": []}, "deploy_service": {"changed": False}}
    play = {"hosts": "localhost", "gather_facts": False, "vars": {**given, **variables, "detail": detail}, "tasks": [note, check]}
    (tmp_path / "note.yml").write_text(json.dumps([play]), encoding="utf-8")
    command = [str(Path(sys.executable).parent / "ansible-playbook"), "-i", "localhost,", "-c", "local", str(tmp_path / "note.yml")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, cwd=ROOT)
    assert done.returncode == 0, done.stdout + done.stderr
