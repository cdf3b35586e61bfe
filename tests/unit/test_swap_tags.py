# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A part of swap_model that is run alone tells nothing of a part that was not."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FLEET = {"gpu_hosts": {"hosts": {"gpu01": {"ansible_host": "127.0.0.1", "ansible_port": 1}},
                       "vars": {"vllm_models": {"m": {"path": "/models/m", "gpus": [0]}}}}}  # fmt: skip


@pytest.mark.parametrize(("arguments", "told"), [(["--tags", "report"], False), (["--tags", "swap,report"], True), ([], True)])
def test_what_was_done_is_told_only_where_something_could_be_done(tmp_path: Path, arguments: list[str], told: bool) -> None:
    inventory = tmp_path / "inventory.yml"
    inventory.write_text(json.dumps(FLEET), encoding="utf-8")
    command = [str(Path(sys.executable).parent / "ansible-playbook"), "playbooks/swap_model.yml", "-i", str(inventory), "-e", "model=m"]
    env = {**os.environ, "ANSIBLE_NOCOLOR": "1"}
    done = subprocess.run([*command, *arguments], cwd=ROOT, env=env, capture_output=True, text=True, timeout=120, check=False)
    assert "Plan: m on 1 host" in done.stdout, done.stdout + done.stderr
    assert ("Done: m" in done.stdout) is told, done.stdout + done.stderr
