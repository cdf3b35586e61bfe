# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Variables that a swap would pass over: none of them without a word, and no word about others."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from ansible_collections.gpufleet.vllm.plugins.module_utils._catalogue.schema import FIELDS
from ansible_collections.gpufleet.vllm.plugins.module_utils._catalogue.strays import SWAP_VARIABLES, strays

ROLES = Path(__file__).resolve().parents[5] / "roles"


def options(role: str) -> set[str]:
    specs = yaml.safe_load((ROLES / role / "meta" / "argument_specs.yml").read_text(encoding="utf-8"))
    return set(specs["argument_specs"]["main"]["options"])


def test_a_swap_knows_what_its_role_knows() -> None:
    inner = set(re.findall(r"\bvllm_swap_\w+", (ROLES / "vllm_swap" / "tasks" / "main.yml").read_text(encoding="utf-8")))
    assert SWAP_VARIABLES == options("vllm_swap") | inner
    assert strays(SWAP_VARIABLES) == ([], [])


def test_of_the_other_roles_variables_each_that_a_swap_has_elsewhere_is_told() -> None:
    wrong, told = strays(options("vllm_service") | {"vllm_service_result", "vllm_models", "batch"})
    assert not wrong
    said = {re.findall("`(vllm_service_[a-z_]+)`", text)[0] for text in told}
    assert said >= {"vllm_service_%s" % field.option for field in FIELDS.values() if field.option is not None}
    assert said >= {"vllm_service_enabled", "vllm_service_replace", "vllm_service_reconnect_timeout"}
    # How that role itself is run says nothing about a swap.
    assert said <= options("vllm_service") - {"vllm_service_state", "vllm_service_wait", "vllm_service_plan_only", "vllm_service_rollback"}


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("vllm_service_drain_timeout", "put `drain_timeout` in the model's entry of the catalogue"),
        ("vllm_service_model", "put `path` in the model's entry"),
        ("vllm_service_replace", "a swap has `vllm_swap_replace`"),
    ],
)
def test_it_is_said_where_it_belongs(name: str, said: str) -> None:
    (text,) = strays([name])[1]
    assert "`%s` is a variable of the role vllm_service" % name in text and said in text


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("vllm_swap_ready_timeout", "put `ready_timeout` in the model's entry of the catalogue."),
        ("vllm_swap_replaces", "did you mean 'vllm_swap_replace'?"),
        ("vllm_swap_xyz", "no swap has a variable `vllm_swap_xyz`"),
    ],
)
def test_a_slip_is_wrong(name: str, said: str) -> None:
    wrong, told = strays([name, "vllm_swap_model"])
    assert len(wrong) == 1 and said in wrong[0] and not told
