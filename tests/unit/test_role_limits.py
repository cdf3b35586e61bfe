# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The role's own limit on its task is never shorter than what the module may take."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
MODULES_DEFAULT_S = 1800


@pytest.mark.parametrize(("ready_timeout", "least"), [
    (None, 2 * MODULES_DEFAULT_S), ("{{ omit }}", 2 * MODULES_DEFAULT_S), (60, 2 * 60), ("7200", 2 * 7200),
])
def test_a_long_load_and_its_undoing_fit_into_the_tasks_time(tmp_path: Path, ready_timeout: object, least: int) -> None:
    task = yaml.safe_load((ROOT / "roles" / "vllm_service" / "tasks" / "main.yml").read_text(encoding="utf-8"))[0]
    variables = {"vllm_service_plan_only": False}
    if ready_timeout is not None:
        variables["vllm_service_ready_timeout"] = ready_timeout  # type: ignore[assignment]
    play = [{
        "hosts": "localhost", "gather_facts": False,
        "tasks": [{"ansible.builtin.debug": {"msg": "limit=%s" % task["timeout"]}, "vars": variables}],
    }]
    path = tmp_path / "play.yml"
    path.write_text(json.dumps(play), encoding="utf-8")
    command = [str(Path(sys.executable).parent / "ansible-playbook"), "-i", "localhost,", "-c", "local", str(path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, env={**os.environ, "ANSIBLE_NOCOLOR": "1"})
    found = re.search(r"limit=(\d+)", done.stdout)
    assert found is not None, done.stdout + done.stderr
    assert int(found.group(1)) > least
