# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A deprecation that Ansible warns of fails the test, though the test itself looks at nothing of it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
MODULE = """#!/usr/bin/python
from ansible.module_utils.basic import AnsibleModule

module = AnsibleModule({})
module.deprecate("spoons go away", version="99.0.0", collection_name="gpufleet.vllm")
module.exit_json()
"""
# Where a fixture of the whole module runs it, and where the test does; the output is thrown away.
TEST = """
import os, subprocess
import pytest

def run():
    subprocess.run([%r, "localhost", "-m", "planted"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=True)

@pytest.fixture(scope="module")
def ran():
    %s

def test_planted(ran):
    %s
    assert os.environ["ANSIBLE_INJECT_FACT_VARS"] == "false"
"""


@pytest.mark.parametrize(
    ("in_fixture", "in_test", "verdict"),
    [("pass", "run()", "1 failed"), ("run()", "pass", "1 error")],
    ids=["in the test", "in a fixture"],
)
def test_a_deprecation_fails_the_step_in_which_it_was_warned_of(
    tmp_path: Path, in_fixture: str, in_test: str, verdict: str
) -> None:
    (tmp_path / "planted.py").write_text(MODULE, encoding="utf-8")
    program = str(Path(sys.executable).parent / "ansible")
    (tmp_path / "test_planted.py").write_text(TEST % (program, in_fixture, in_test), encoding="utf-8")
    (tmp_path / "pytest.ini").write_text("[pytest]\n", encoding="utf-8")
    env = {key: value for key, value in os.environ.items() if not key.startswith(("ANSIBLE_", "PYTEST_"))}
    env.update(PYTHONPATH=str(ROOT / "tests"), ANSIBLE_LIBRARY=str(tmp_path), ANSIBLE_HOME=str(tmp_path / "home"))
    words = ["-p", "strict_ansible", "-p", "no:cacheprovider", "-c", str(tmp_path / "pytest.ini"), str(tmp_path)]
    done = subprocess.run([sys.executable, "-m", "pytest", *words], env=env, capture_output=True, text=True, timeout=240, check=False)
    assert verdict in done.stdout.splitlines()[-1], done.stdout + done.stderr
    assert "Ansible warned of a deprecation:\nspoons go away." in done.stdout, done.stdout
