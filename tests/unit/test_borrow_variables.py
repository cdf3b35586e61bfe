# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the inventory says of a borrowing holds where the run does not say it, and is checked before any host is touched."""

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

ROOT = Path(__file__).resolve().parents[2]
PLAYBOOK = ROOT / "playbooks" / "borrow_gpus.yml"
GPUS = {"gpu_hosts": {"hosts": {"gpu01": {"gpu_borrow_gpus": [2, 3], "gpu_borrow_command": "theirs"}, "gpu02": {}},
                      "vars": {"ansible_connection": "local"}}}  # fmt: skip


def ran(playbook: Path, tmp_path: Path, inventory: dict[str, Any], *words: str) -> "subprocess.CompletedProcess[str]":
    path = tmp_path / "inventory.yml"
    path.write_text(json.dumps(inventory), encoding="utf-8")
    command = [str(Path(sys.executable).parent / "ansible-playbook"), "-i", str(path), str(playbook), *words]
    env = {**os.environ, "ANSIBLE_NOCOLOR": "1"}
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, env=env, cwd=ROOT)


@pytest.mark.parametrize(
    ("more", "expected"),
    [({"command": "mine"}, {"gpu01": ("mine", ["2", "3"]), "gpu02": ("mine", ["all"])}),
     ({"command": "mine", "gpus": [0]}, {"gpu01": ("mine", ["0"]), "gpu02": ("mine", ["0"])})],
)
def test_the_run_counts_more_than_the_inventory_and_all_gpus_least(tmp_path: Path, more: dict[str, Any], expected: dict[str, Any]) -> None:
    """The variables that the playbook hands to the role, shown in its place."""
    (play,) = [play for play in yaml.safe_load(PLAYBOOK.read_text(encoding="utf-8")) if play["name"] == "Borrow"]
    variables = play["tasks"][-1]["vars"]
    given = "[inventory_hostname, gpu_borrow_command, gpu_borrow_gpus | map('string')]"
    shown = {"ansible.builtin.debug": {"msg": "GIVES {{ %s | to_json }}" % given}}
    path = tmp_path / "play.yml"
    path.write_text(json.dumps([{"hosts": "gpu_hosts", "gather_facts": False, "tasks": [{**shown, "vars": variables}]}]), encoding="utf-8")
    done = ran(path, tmp_path, GPUS, "-e", json.dumps(more))
    lines = re.findall(r"GIVES (\[.*\])", done.stdout.replace('\\"', '"'))
    said = {host: (command, gpus) for host, command, gpus in map(json.loads, lines)}
    assert said == expected, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("of_host", "words", "said"),
    [
        ({"gpu_borrow_timeout": "abc"}, [], "`gpu_borrow_timeout` is 'abc'. It is a whole number (gpu02)"),
        ({}, ["-e", "gpu_borrow_timeout=0"], "`gpu_borrow_timeout` is 0."),
        ({"gpu_borrow_gpus": ["x9"]}, [], "'x9' in gpus is no GPU"),
        ({"gpu_borrow_grace": 5}, [], ""),
    ],
)
def test_values_of_every_host_are_checked_in_the_first_play(tmp_path: Path, of_host: Any, words: list[str], said: str) -> None:
    inventory = json.loads(json.dumps(GPUS))
    inventory["gpu_hosts"]["hosts"]["gpu02"] = of_host
    done = ran(PLAYBOOK, tmp_path, inventory, "-e", '{"command": "true"}', *words, "--skip-tags", "borrow")
    told = " ".join((done.stdout + done.stderr).split())
    # The last task of the first play finds that there is nothing to be done.
    assert done.returncode == 2 and ("The tags of this run leave out all" in told) is (said == "") and said in told, told
