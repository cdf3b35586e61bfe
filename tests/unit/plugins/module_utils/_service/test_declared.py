# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What is only declared (state present) has settings that systemd takes, or is refused as it would be at a start."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from ansible_collections.gpufleet.vllm.plugins.module_utils._core.errors import GpuFleetError
from ansible_collections.gpufleet.vllm.plugins.module_utils._service import run
from ansible_collections.gpufleet.vllm.plugins.module_utils._service.request import Request
from ansible_collections.gpufleet.vllm.plugins.module_utils._unit.spec import ServiceSpec
from ansible_collections.gpufleet.vllm.tests.unit.plugins.module_utils._service.world import FakeClock

SAID = "50-options.conf:2: Unknown key 'Nope' in section [Service], ignoring."


def examined(monkeypatch: pytest.MonkeyPatch, problems: list[str], state: str = "present", preflight: str = "enforce") -> run.Run:
    options = {"Service": {"Nope": 1}}
    spec = ServiceSpec(name="q", model="/models/q", served_name="q", gpus=(0,), unit_options=options)
    seen = SimpleNamespace(spec=spec, serves=None, view=SimpleNamespace(unit_text_changed=True))
    monkeypatch.setattr(run, "look", lambda *_given: seen)
    monkeypatch.setattr(run, "make_plan", lambda *_given: None)
    monkeypatch.setattr(run, "notices", lambda *_given: [])
    monkeypatch.setattr(run.Run, "result", lambda *_given: SimpleNamespace(to_failure=lambda: {"actions": ["daemon_reload"]}))
    ports: Any = SimpleNamespace(clock=FakeClock(), systemd=SimpleNamespace(verify=lambda *_given: problems))
    one = run.Run(Request(name="q", model="/models/q", state=state, unit_options=options, preflight=preflight), ports, None, 0.0)
    one.examine(remember=False)
    return one


def test_a_setting_that_systemd_does_not_know_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(GpuFleetError, match="Unknown key 'Nope'") as failure:
        examined(monkeypatch, [SAID])
    assert "nothing was touched" in failure.value.msg and failure.value.result["actions"] == []


def test_what_is_not_enforced_is_heard(monkeypatch: pytest.MonkeyPatch) -> None:
    assert any("Unknown key" in text for text in examined(monkeypatch, [SAID], preflight="warn").outcome.warnings)
    assert examined(monkeypatch, [SAID], preflight="skip").outcome.warnings == []
    assert examined(monkeypatch, []).outcome.warnings == []
