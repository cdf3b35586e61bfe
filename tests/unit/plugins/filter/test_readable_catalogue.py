# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The filter, through Ansible's own template engine: what an entry stands for is read only when it is asked for."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any, Dict

import pytest

ROOT = Path(__file__).resolve().parents[4]
# In a process of its own: Ansible's finder of collections is not to be put into this one.
READ = """
import json, sys
from ansible.plugins.loader import init_plugin_loader
init_plugin_loader([sys.argv[1]])
from ansible.parsing.dataloader import DataLoader
from ansible.template import Templar, trust_as_template

def trusted(value):
    if isinstance(value, dict):
        return {key: trusted(each) for key, each in value.items()}
    if isinstance(value, list):
        return [trusted(each) for each in value]
    return trust_as_template(value) if isinstance(value, str) else value

template = trust_as_template("{{ vllm_models | gpufleet.vllm.readable_catalogue }}")
read = lambda models: Templar(DataLoader(), variables={"vllm_models": trusted(models), "root": "/models"}).template(template)
print(json.dumps({name: read(models) for name, models in json.load(sys.stdin).items()}))
"""
REASONS = {
    "{{ x y": "Syntax error in template",
    "{{ 1 / 0 }}": "division by zero",
    "{{ 1 | no_such_filter }}": "no_such_filter",
    "{{ lookup('file', '/no/such/file') }}": "lookup",
}
STRANGE: Dict[str, Any] = {"list": [1], "text": "text", "none": None}
CATALOGUES: Dict[str, Any] = {
    "mixed": {
        "here": {"path": "{{ root }}/m", "args": {"stop": [1, "{{ 2 }}"]}},
        "there": {"env": {"X": ["{{ nvme }}"]}},
    },
    **{template: {"here": {"path": "/m"}, "there": {"path": template}} for template in REASONS},
    **STRANGE,
}


@pytest.fixture(scope="module")
def found() -> Dict[str, Any]:
    """What the filter makes of each of the catalogues."""
    command = [sys.executable, "-c", READ, str(ROOT / "collections")]
    done = subprocess.run(command, input=json.dumps(CATALOGUES), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    read: Dict[str, Any] = json.loads(done.stdout)
    return read


def test_each_entry_is_read_by_itself(found: Dict[str, Any]) -> None:
    assert found["mixed"]["models"] == {"here": {"path": "/models/m", "args": {"stop": [1, 2]}}}
    assert found["mixed"]["faults"] == {
        "there": "vllm_models['there'] cannot be read on this host: 'nvme' is undefined. Define what it needs for this host, or correct "
        "the entry."
    }


@pytest.mark.parametrize("template", REASONS)
def test_whatever_keeps_a_template_from_being_read(found: Dict[str, Any], template: str) -> None:
    told = found[template]["faults"]["there"]
    assert found[template]["models"] == {"here": {"path": "/m"}} and REASONS[template] in told
    assert "marker" not in told, "that is a word of Ansible's own works"


@pytest.mark.parametrize("name", STRANGE)
def test_what_is_no_catalogue_is_left_to_whoever_takes_it(found: Dict[str, Any], name: str) -> None:
    assert found[name] == {"models": STRANGE[name], "faults": {}}
