# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A refusal names the option and says what to do; a number is no account."""

from __future__ import annotations

from typing import Any

import pytest

from ansible_collections.gpufleet.vllm.plugins.module_utils._core.errors import GpuFleetError
from ansible_collections.gpufleet.vllm.plugins.module_utils._unit.spec import ServiceSpec


@pytest.mark.parametrize(
    ("given", "option", "next_step"),
    [
        ({"user": "0"}, "user:", "Give one that useradd takes"),
        ({"group": "1000"}, "group:", "Give one that useradd takes"),
        ({"user": "a b"}, "user:", "Give one that useradd takes"),
        ({"host": "a b"}, "host:", "Give one of this host"),
        ({"model": "--help"}, "model:", "Give an absolute path, or OWNER/NAME"),
        ({"served_name": "-x"}, "served_name:", "may not be empty or begin with"),
        ({"env": {"TOKEN": "abc\n"}}, "env.TOKEN:", "strip it"),
        ({"secrets": {"HF_TOKEN": "abc\n"}}, "secrets.HF_TOKEN:", "strip it"),
        ({"env": {"TOKEN": "a\0b"}}, "env.TOKEN:", "Remove it"),
        ({"env": {"TOKEN": "a\x07b"}}, "env.TOKEN:", "Remove it"),
    ],
)
def test_a_refusal_says_where_and_what_next(given: dict[str, Any], option: str, next_step: str) -> None:
    with pytest.raises(GpuFleetError) as refused:
        ServiceSpec(**{"name": "q", "model": "/models/q", "served_name": "q", "gpus": (0,), **given})
    assert refused.value.msg.startswith(option) and next_step in refused.value.msg


@pytest.mark.parametrize("name", ["vllm", "svc-llm", "_vllm", "4ever", "a.b"])
def test_names_of_accounts_are_taken(name: str) -> None:
    assert ServiceSpec(name="q", model="/models/q", served_name="q", gpus=(0,), user=name).user == name
