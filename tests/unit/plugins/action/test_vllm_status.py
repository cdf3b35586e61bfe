# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the host is given of a catalogue, the entries that can't be used included."""

from __future__ import annotations

from typing import Any, Dict

import pytest
from ansible.errors import AnsibleActionFail
from ansible.utils.display import Display

from ansible_collections.gpufleet.vllm.plugins.action.vllm_status import ActionModule

from .conftest import RunAction


@pytest.fixture
def given(monkeypatch: pytest.MonkeyPatch) -> Dict[str, Any]:
    """The arguments that the module gets."""
    found: Dict[str, Any] = {}

    def execute(self: ActionModule, module_args: Dict[str, Any], **more: Any) -> Dict[str, Any]:
        found.update(module_args)
        return {"invocation": {}}

    monkeypatch.setattr(ActionModule, "_execute_module", execute)
    return found


def test_the_faults_of_a_catalogue_reach_the_host(run_action: RunAction, given: Dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    warned: list[str] = []
    monkeypatch.setattr(Display, "warning", lambda self, text, *more, **named: warned.append(text))
    models = {"kimi": {"path": "/models/Kimi", "gpus": "all"}, "broken": {"path": "/models/B", "prot": 8000}}
    run_action(ActionModule, {"models": models, "model": "broken"})
    assert [entry["name"] for entry in given["entries"]] == ["kimi"] and given["model"] == "broken" and "models" not in given
    assert "'prot' (did you mean 'port'?)" in given["faults"]["broken"]
    assert len(warned) == 1 and "The catalogue's entry 'broken' can't be used" in warned[0]


def test_faults_that_were_found_before_are_told_and_handed_on(
    run_action: RunAction, given: Dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    warned: list[str] = []
    monkeypatch.setattr(Display, "warning", lambda self, text, *more, **named: warned.append(text))
    run_action(ActionModule, {"models": {"broken": {"prot": 8000}}, "faults": {"elsewhere": "it cannot be read."}})
    assert set(given["faults"]) == {"broken", "elsewhere"} and len(warned) == 2
    run_action(ActionModule, {"models": {}, "faults": {"elsewhere": "it cannot be read."}})
    assert given["faults"] == {"elsewhere": "it cannot be read."} and warned[-1].endswith("'elsewhere' can't be used: it cannot be read.")


def test_the_catalogue_and_what_is_made_of_it_are_not_given_both(run_action: RunAction, given: Dict[str, Any]) -> None:
    with pytest.raises(AnsibleActionFail, match="in two ways"):
        run_action(ActionModule, {"models": {"kimi": {"path": "/models/Kimi"}}, "entries": [{"name": "kimi"}]})
