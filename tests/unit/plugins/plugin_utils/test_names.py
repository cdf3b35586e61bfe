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
from ansible_collections.gpufleet.vllm.plugins.filter.cleanup_faults import cleanup_faults
from ansible_collections.gpufleet.vllm.plugins.filter.misspelt import misspelt
from ansible_collections.gpufleet.vllm.plugins.plugin_utils._names import (
    extra_names,
    options_of_role,
    slips,
    slips_of_roles,
)

OTHERS = "if something else reads it, add -e gpufleet_other_names="
PLAYBOOKS = Path(__file__).parents[4] / "playbooks"


@pytest.fixture
def given(monkeypatch: pytest.MonkeyPatch) -> None:
    """A command line with two slips, a known variable and one of somebody else."""
    texts = ("fail_on_drfit=true -e x=1", '{"modle": "x", "model": "kimi", "vllm_models": {}}')
    _command_line(monkeypatch, *texts)


def _command_line(monkeypatch: pytest.MonkeyPatch, *texts: str) -> None:
    """Ansible reads it once in the life of a process."""
    monkeypatch.setattr(load_extra_vars, "extra_vars", None, raising=False)
    monkeypatch.setattr(context, "CLIARGS", ImmutableDict(extra_vars=texts, args=("gpufleet.vllm.gpu_cleanup",)))


def test_a_name_that_is_near_to_a_known_one_is_a_slip() -> None:
    said = slips(["modle", "model", "vllm_models", "ansible_user"], ["target", "model"])
    assert said == {"modle": "there is no variable modle; did you mean model"}
    assert slips(["gpu_borrow_timout", "gpu_borrow_env", "nev"], ["gpus"], "gpu_borrow_", ["timeout", "env"]) == {
        "gpu_borrow_timout": "there is no variable gpu_borrow_timout; did you mean gpu_borrow_timeout"
    }
    assert list(slips(["gpu_borrow_gpus"], ["gpus"], "gpu_borrow_", ["grace"]).values()) == [
        "there is no variable gpu_borrow_gpus; did you mean gpus"
    ]
    assert slips(["p_zzzzzzzz"], ["gpus"], "p_", ["env"]) == {"p_zzzzzzzz": "there is no variable p_zzzzzzzz (known: gpus, p_env)"}


def test_an_option_without_its_prefix_is_a_slip() -> None:
    said = slips(["user", "timeout", "gpus", "site"], ["gpus"], "gpu_borrow_", ["user", "timeout", "gpus"])
    assert said == {name: "there is no variable %s; did you mean gpu_borrow_%s" % (name, name) for name in ("user", "timeout")}
    assert slips_of_roles(["timeout", "b_timeout"], [], {"a_": ["timeout"], "b_": ["timeout"]}) == {
        "timeout": "there is no variable timeout; did you mean a_timeout or b_timeout"
    }


@pytest.mark.usefixtures("given")
def test_the_command_line_is_asked() -> None:
    assert {"fail_on_drfit", "modle", "model", "vllm_models"} <= set(extra_names())
    assert misspelt(["model", "fail_on_drift"]) == [
        "there is no variable fail_on_drfit; did you mean fail_on_drift", "there is no variable modle; did you mean model",
        f"{OTHERS}fail_on_drfit,modle",
    ]  # fmt: skip
    with pytest.raises(AnsibleFilterError):
        misspelt("model")


@pytest.mark.parametrize(
    ("faults", "asked", "given", "said"),
    [
        (benchmark_faults, {}, "srevice=x -e other=1", ["there is no variable srevice; did you mean service", f"{OTHERS}srevice"]),
        (benchmark_faults, {}, "vllm_benchmark_tol=x -e vllm_benchmark_plan_only=true",
         ["there is no variable vllm_benchmark_tol; did you mean vllm_benchmark_tool"]),
        (borrow_faults, {"command": "x"}, "gpu=4 -e gpu_borrow_result=x", ["there is no variable gpu; did you mean gpus", f"{OTHERS}gpu"]),
        (borrow_faults, {"command": "x"}, "gpu_borrow_gpus=4 -e gpu_borrow_secrets=x",
         ["there is no variable gpu_borrow_gpus; did you mean gpus"]),
        (borrow_faults, {"command": "x"}, "user=nobody -e wait=false",
         ["there is no variable user; did you mean gpu_borrow_user",
          "there is no variable wait here: the playbook always waits for the end", f"{OTHERS}user,wait"]),
        (benchmark_faults, {}, "force=true -e model=x",
         ["there is no variable force; did you mean vllm_benchmark_force",
          "there is no variable model; did you mean vllm_benchmark_model", f"{OTHERS}force,model"]),
        (lambda asked: cleanup_faults({}, [], "orphans"), {}, "min_age=5 -e accept=all -e gpu_reclaim_accept=all",
         ["gpu_reclaim_accept has no place here: whatever stays is reported, and its host then fails",
          "accept has no place here: whatever stays is reported, and its host then fails",
          "there is no variable min_age; did you mean gpu_reclaim_min_age", f"{OTHERS}accept,min_age"]),
    ],
)  # fmt: skip
def test_every_playbook_tells_a_slip_in_the_same_words(
    monkeypatch: pytest.MonkeyPatch, faults: Any, asked: Dict[str, Any], given: str, said: List[str]
) -> None:
    _command_line(monkeypatch, *given.split(" -e "))
    assert faults(asked) == said


def test_what_roles_take_is_known_from_their_specifications(monkeypatch: pytest.MonkeyPatch) -> None:
    assert {"version", "timeout"} <= set(options_of_role("vllm_install"))
    _command_line(monkeypatch, "version=1", "vllm_install_python=x", "vllm_install_verison=1", "replace=none", "path=/x")
    assert misspelt(["model"], ["vllm_install"], {"replace": "set `vllm_swap_replace`"}) == [
        "there is no variable replace here; set `vllm_swap_replace`",
        "there is no variable version; did you mean vllm_install_version",
        "there is no variable vllm_install_verison; did you mean vllm_install_version",
        f"{OTHERS}replace,version",
    ]
    with pytest.raises(AnsibleFilterError):
        misspelt(["model"], ["vllm_nothing"])


@pytest.mark.parametrize("name", ["deploy", "swap_model", "fleet_status"])
def test_a_playbook_knows_each_variable_that_its_head_names(name: str) -> None:
    text = (PLAYBOOKS / f"{name}.yml").read_text(encoding="utf-8")
    head = re.findall(r"^# (before_host|[a-z_]+(?=  ))", text, re.MULTILINE)
    (task,) = [task for task in yaml.safe_load(text)[0]["tasks"] if "misspelt" in str(task)]
    known = re.search(r"\[([^]]*)\]\s*\| gpufleet\.vllm\.misspelt", str(task))
    assert known is not None and re.findall(r"[a-z_]+", known.group(1)) == head and "target" in head
