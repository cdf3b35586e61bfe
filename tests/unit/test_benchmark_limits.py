# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The role's own limit on a benchmark is a little more than what all its levels may take together."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any, Dict, List, Sequence, Tuple

import yaml

from ansible_collections.gpufleet.vllm.plugins.module_utils._benchmark.profile import DEFAULT_CONCURRENCY

ROOT = Path(__file__).resolve().parents[2]

CASES: List[Tuple[Dict[str, Any], int, int]] = [
    ({}, 8 * 3600, 8 * 3700 + 900),
    ({"vllm_benchmark_profile": {}}, 8 * 3600, 8 * 3700 + 900),
    ({"vllm_benchmark_profile": "{{ omit }}", "vllm_benchmark_timeout": "{{ omit }}"}, 8 * 3600, 10 * 3700 + 900),
    ({"vllm_benchmark_profile": {"input_tokens": 64}, "vllm_benchmark_timeout": 60}, 8 * 60, 8 * 160 + 900),
    ({"vllm_benchmark_profile": {"concurrency": [1, 4]}, "vllm_benchmark_timeout": "600"}, 2 * 600, 2 * 700 + 900),
    ({"vllm_benchmark_profile": {"concurrency": 16}, "vllm_benchmark_timeout": 0.5}, 1, 100 + 900),
    ({"vllm_benchmark_profile": {"concurrency": "1,2,4"}, "vllm_benchmark_timeout": 100}, 3 * 100, 3 * 200 + 900),
    ({"vllm_benchmark_profile": "concurrency=1,2,3,4,5,6,7,8,9,10,11", "vllm_benchmark_timeout": 100}, 11 * 100, 20 * 200 + 900),
    ({"vllm_benchmark_profile": {"concurrency": [1]}, "vllm_benchmark_timeout": 86400}, 86400, 86400 + 1000),
]


def test_all_levels_of_a_benchmark_fit_into_the_tasks_time_and_not_much_more(tmp_path: Path) -> None:
    (task,) = yaml.safe_load((ROOT / "roles" / "vllm_benchmark" / "tasks" / "main.yml").read_text(encoding="utf-8"))
    given = [{"vllm_benchmark_plan_only": False, **task["vars"], **variables} for variables, _least, _most in CASES]
    for found, (variables, least, most) in zip(shown(tmp_path, str(task["async"]), given), CASES, strict=True):
        assert least + 300 < found <= most, variables
    assert task["vars"]["vllm_benchmark_usual"] == list(DEFAULT_CONCURRENCY)


def shown(tmp_path: Path, text: str, given: Sequence[Dict[str, Any]]) -> List[int]:
    """What a task's setting comes to under each of these sets of variables."""
    play = [{
        "hosts": "localhost", "gather_facts": False,
        "tasks": [{"ansible.builtin.debug": {"msg": "limit=%s" % text}, "vars": variables} for variables in given],
    }]
    path = tmp_path / "play.yml"
    path.write_text(json.dumps(play), encoding="utf-8")
    command = [str(Path(sys.executable).parent / "ansible-playbook"), "-i", "localhost,", "-c", "local", str(path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, env={**os.environ, "ANSIBLE_NOCOLOR": "1"})
    found = re.findall(r"limit=(\d+)", done.stdout)
    assert len(found) == len(given), done.stdout + done.stderr
    return [int(each) for each in found]
