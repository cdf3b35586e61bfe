# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Parameters are checked before anything is looked at, each fault with its own words."""

from __future__ import annotations

from typing import Any

import pytest

from ansible_collections.gpufleet.vllm.plugins.module_utils._core.errors import GpuFleetError
from ansible_collections.gpufleet.vllm.plugins.module_utils._service.parameters import to_request


def test_the_least_that_can_be_said_gets_the_documented_defaults() -> None:
    request = to_request({"name": "kimi", "model": "/models/kimi"})
    assert (request.state, request.gpus, request.port, request.host, request.replace) == ("started", ("all",), 8000, "0.0.0.0", "none")
    assert (request.smoke, request.rollback, request.preflight, request.ready_timeout) == (True, True, "enforce", 1800.0)
    assert request.guard.enabled and request.guard.timeout == 300.0


@pytest.mark.parametrize(("given", "kind", "units"), [
    ("none", "none", ()), (None, "none", ()), ("", "none", ()), ("conflicting", "conflicting", ()),
    (["vllm-a.service", "old"], "listed", ("vllm-a.service", "old.service")), ("a.service, b", "listed", ("a.service", "b.service")),
])
def test_replace_takes_a_word_or_units(given: Any, kind: str, units: tuple[str, ...]) -> None:
    request = to_request({"name": "kimi", "replace": given})
    assert (request.replace, request.replace_units) == (kind, units)


@pytest.mark.parametrize(("given", "said"), [
    ({"name": "  "}, "`name` is empty"),
    ({"replace": []}, None),
    ({"replace": {"a": 1}}, "`replace` is"),
    ({"replace": [1]}, "`replace` is"),
    ({"port": 0}, "between 1 and 65535"),
    ({"port": 65536}, "between 1 and 65535"),
    ({"ready_timeout": 0}, "`ready_timeout` is 0"),
    ({"steady_time": 601}, "`steady_time` is 601"),
    ({"drain_timeout": -1}, "`drain_timeout` is -1"),
    ({"gpus": ["0", " "]}, "empty entry"),
    ({"gpus": []}, "`gpus` is an empty list"),
    ({"model": ""}, "`model` is empty"),
    ({"model": " ", "state": "present"}, "`model` is empty"),
    ({"env": {"VLLM_PORT": "tcp://10.0.0.1:8000"}}, "`env.VLLM_PORT` is 'tcp://10.0.0.1:8000'"),
    ({"secrets": {"VLLM_API_KEY": "key\n"}}, "line break"),
    ({"env": {"A": ["x"]}}, "`env.A` is a list"),
    ({"env": {"A": None}}, "`env.A` has no value"),
    ({"secrets": {"TOKEN": {"a": 1}}}, "`secrets.TOKEN` is a dict"),
    ({"unit_options": {"Service": "Nice=5"}}, "`unit_options.Service` is a str"),
])
def test_what_cannot_be_is_said(given: dict[str, Any], said: str | None) -> None:
    params = {"name": "kimi", **given}
    if said is None:
        with pytest.raises(GpuFleetError):
            to_request(params)
        return
    with pytest.raises(GpuFleetError) as failure:
        to_request(params)
    assert said in failure.value.msg


def test_values_of_the_environment_become_text() -> None:
    request = to_request({"name": "kimi", "env": {"A": 1, "B": True, "C": "x", "D": 0.5}})
    assert dict(request.env) == {"A": "1", "B": "1", "C": "x", "D": "0.5"}


def test_what_only_looks_odd_is_taken() -> None:
    assert to_request({"name": "kimi", "state": "absent", "model": ""}).model is None
    assert dict(to_request({"name": "kimi", "model": "/m", "env": {"VLLM_PORT": 29500}}).env) == {"VLLM_PORT": "29500"}
