# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The filter, through Ansible's own template engine."""

from __future__ import annotations

from typing import Any

import pytest
from ansible.errors import AnsibleFilterError

from ansible_collections.gpufleet.vllm.plugins.filter.deployment import FilterModule

MODELS = {"m": {"path": "/models/m", "port": "8000"}}


def deployment(models: Any, *args: Any) -> Any:
    return FilterModule().filters()["deployment"](models, *args)


def test_it_returns_the_modules_parameters() -> None:
    assert deployment(MODELS, "m") == {"name": "m", "model": "/models/m", "served_name": "m", "port": 8000}


def test_a_problem_is_ansibles_kind_of_error_with_our_text() -> None:
    with pytest.raises(AnsibleFilterError, match="The model 'n' is not in the catalogue. The catalogue has: m."):
        deployment(MODELS, "n")


def test_without_a_model_it_says_so() -> None:
    with pytest.raises(AnsibleFilterError, match="No model was given"):
        deployment(MODELS)


def test_variables_that_a_swap_would_pass_over_are_refused_or_told(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    monkeypatch.setattr("ansible.utils.display.Display.warning", lambda _self, text, *_more, **_words: said.append(text))
    assert deployment(MODELS, "m", ["vllm_swap_model", "vllm_service_stop_timeout"])["name"] == "m"
    assert len(said) == 1 and said[0].startswith("`vllm_service_stop_timeout` is a variable of the role vllm_service")
    with pytest.raises(AnsibleFilterError, match="No swap has a variable `vllm_swap_batch`"):
        deployment(MODELS, "m", ["vllm_swap_batch"])
