# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Slips in the names of variables on the command line."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Dict, List

import pytest
import yaml
from ansible import context
from ansible.errors import AnsibleFilterError
from ansible.module_utils.common.collections import ImmutableDict
from ansible.utils.vars import load_extra_vars

from ansible_collections.gpufleet.vllm.plugins.filter.benchmark_faults import benchmark_faults
from ansible_collections.gpufleet.vllm.plugins.filter.borrow_faults import borrow_faults
from ansible_collections.gpufleet.vllm.plugins.filter.misspelt import misspelt
from ansible_collections.gpufleet.vllm.plugins.plugin_utils._names import extra_names, slips

PLAYBOOK = Path(__file__).parents[4] / "playbooks" / "fleet_status.yml"


@pytest.fixture
def given(monkeypatch: pytest.MonkeyPatch) -> None:
    """A command line with two slips, a known variable and one of somebody else."""
    texts = ("fail_on_drfit=true -e x=1", '{"modle": "x", "model": "kimi", "vllm_models": {}}')
    _command_line(monkeypatch, *texts)


def _command_line(monkeypatch: pytest.MonkeyPatch, *texts: str) -> None:
    """Ansible reads it once in the life of a process."""
    monkeypatch.setattr(load_extra_vars, "extra_vars", None, raising=False)
    monkeypatch.setattr(context, "CLIARGS", ImmutableDict(extra_vars=texts))


def test_a_name_that_is_near_to_a_known_one_is_a_slip() -> None:
    said = slips(["modle", "model", "vllm_models", "ansible_user"], ["target", "model"])
    assert said == ["there is no variable modle; did you mean model"]
    assert slips(["gpu_borrow_timout", "gpu_borrow_env", "env"], ["gpus"], "gpu_borrow_", ["timeout", "env"]) == [
        "there is no variable gpu_borrow_timout; did you mean gpu_borrow_timeout"
    ]
    assert slips(["gpu_borrow_gpus"], ["gpus"], "gpu_borrow_", ["grace"]) == ["there is no variable gpu_borrow_gpus; did you mean gpus"]
    assert slips(["p_zzzzzzzz"], ["gpus"], "p_", ["env"]) == ["there is no variable p_zzzzzzzz (known: gpus, p_env)"]


@pytest.mark.usefixtures("given")
def test_the_command_line_is_asked() -> None:
    assert {"fail_on_drfit", "modle", "model", "vllm_models"} <= set(extra_names())
    assert misspelt(["model", "fail_on_drift"]) == [
        "there is no variable fail_on_drfit; did you mean fail_on_drift", "there is no variable modle; did you mean model",
    ]  # fmt: skip
    with pytest.raises(AnsibleFilterError):
        misspelt("model")


@pytest.mark.parametrize(
    ("faults", "asked", "given", "said"),
    [
        (benchmark_faults, {}, "srevice=x -e other=1", ["there is no variable srevice; did you mean service"]),
        (benchmark_faults, {}, "vllm_benchmark_tol=x -e vllm_benchmark_plan_only=true",
         ["there is no variable vllm_benchmark_tol; did you mean vllm_benchmark_tool"]),
        (borrow_faults, {"command": "x"}, "gpu=4 -e gpu_borrow_result=x", ["there is no variable gpu; did you mean gpus"]),
        (borrow_faults, {"command": "x"}, "gpu_borrow_gpus=4 -e gpu_borrow_secrets=x",
         ["there is no variable gpu_borrow_gpus; did you mean gpus"]),
    ],
)  # fmt: skip
def test_every_playbook_tells_a_slip_in_the_same_words(
    monkeypatch: pytest.MonkeyPatch, faults: Any, asked: Dict[str, Any], given: str, said: List[str]
) -> None:
    _command_line(monkeypatch, *given.split(" -e "))
    assert faults(asked) == said


def test_fleet_status_knows_each_variable_that_its_head_names() -> None:
    text = PLAYBOOK.read_text(encoding="utf-8")
    head = re.findall(r"^# ([a-z_]+)  ", text, re.MULTILINE)
    (task,) = [task for task in yaml.safe_load(text)[0]["tasks"] if "misspelt" in str(task)]
    known = re.search(r"\[(.*)\] \| gpufleet\.vllm\.misspelt", str(task))
    assert known is not None and re.findall(r"[a-z_]+", known.group(1)) == head and "fail_on_drift" in head
