# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What swap_model takes for ``batch``, and what Ansible is given of it; by the playbook's own expressions, in Ansible itself."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[2]
# As YAML or JSON makes them of what is typed after -e; what serial gets, None for what is refused.
GIVEN: list[tuple[Any, list[str] | None]] = [
    (1, ["1"]), ("4", ["4"]), ("25%", ["25%"]), ([1, 4, "25%"], ["1", "4", "25%"]), ("[1,2]", ["1", "2"]), ("[1, '50%']", ["1", "50%"]),
    ('[ "1" , 20 ]', ["1", "20"]), ([3], ["3"]),
    (0, None), ("0", None), ([0], None), ([2, 0], None), ("[1, 0%]", None), ("[,]", None), ("[1,]", None), ("[]", None), ([], None),
    ("", None), (True, None), ("all", None), ("1,2", None), (-1, None), (1.5, None), ("25%%", None), ([[1]], None), ({"a": 1}, None),
]  # fmt: skip


def test_each_value_is_taken_or_refused_before_any_host_is_asked(tmp_path: Path) -> None:
    plays = yaml.safe_load((ROOT / "playbooks" / "swap_model.yml").read_text(encoding="utf-8"))
    (check,) = [task["gpufleet.vllm.fleet_report"] for task in plays[0]["tasks"] if "gpufleet.vllm.fleet_report" in task]
    (serial,) = {play["serial"] for play in plays if "serial" in play}
    tasks: list[dict[str, Any]] = []
    for number, (value, _wanted) in enumerate(GIVEN):
        more = {"vars": {"batch": value}, "register": "done_%d" % number, "ignore_errors": True}
        tasks.append({"gpufleet.vllm.fleet_report": {"prove": check["prove"], "batch": check["batch"]}, **more})
        tasks.append({"ansible.builtin.debug": {"msg": "%d:{{ (%s) | to_json }}" % (number, serial.strip("{} "))}, "vars": {"batch": value},
                      "when": "done_%d is success" % number})  # fmt: skip
    path = tmp_path / "play.yml"
    path.write_text(json.dumps([{"hosts": "localhost", "gather_facts": False, "tasks": tasks}]), encoding="utf-8")
    command = [str(Path(sys.executable).parent / "ansible-playbook"), "-i", "localhost,", "-c", "local", str(path)]
    env = {**os.environ, "ANSIBLE_NOCOLOR": "1", "ANSIBLE_CALLBACK_RESULT_FORMAT": "json"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, env=env, cwd=ROOT)
    found = {int(number): json.loads(json.loads('"%s"' % text)) for number, text in re.findall(r'"msg": "(\d+):(\[.*\])"', done.stdout)}
    assert found == {number: wanted for number, (_value, wanted) in enumerate(GIVEN) if wanted is not None}, done.stdout + done.stderr
