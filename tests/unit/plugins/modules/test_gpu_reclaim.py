# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The module around a reclaim: whatever fails, and how early, a playbook finds the keys that are always returned."""

from __future__ import annotations

import json
from typing import Any, Dict, List

import pytest
import yaml
from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.testing import patch_module_args

from ansible_collections.gpufleet.vllm.plugins.module_utils._core.errors import GpuFleetError
from ansible_collections.gpufleet.vllm.plugins.module_utils._reclaim.result import ReclaimResult
from ansible_collections.gpufleet.vllm.plugins.modules import gpu_reclaim

ALWAYS = {name for name, value in yaml.safe_load(gpu_reclaim.RETURN).items() if value["returned"] == "always"}


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"gpus": []}, "`gpus` names no GPU"),
        ({"scope": "services"}, "it names none"),
        ({"protect": ["users:alice"]}, "'users:alice' in `protect`"),
        ({"select": "vllm"}, "action plugin"),
        ({}, "The driver hung"),
    ],
)
def test_a_failure_has_every_key_that_is_always_returned(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], arguments: Dict[str, Any], words: str
) -> None:
    def hung(*_arguments: Any, **_more: Any) -> Any:
        raise GpuFleetError("The driver hung", changed=False, freed=False)

    if not arguments:
        monkeypatch.setattr(gpu_reclaim, "reclaim", hung)
    with patch_module_args(arguments), pytest.raises(SystemExit):
        gpu_reclaim.main()
    result: Dict[str, Any] = json.loads(capfd.readouterr().out)
    assert result["failed"] and words in result["msg"] and len(ALWAYS) > 10 and not ALWAYS - set(result)
    assert (result["changed"], result["freed"], result["freed_mib"], result["gpus_before"]) == (False, False, 0, [])
    assert set(result["timings"]) == {"total", "stop", "signal", "settle"}


@pytest.mark.parametrize("fails", [False, True])
def test_warnings_are_handed_over_as_ansible_wants_them(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], fails: bool
) -> None:
    warned = ReclaimResult(False, not fails, (), (), warnings=("GPU 0 does not answer",))

    def result(*_arguments: Any, **_more: Any) -> ReclaimResult:
        if fails:
            raise GpuFleetError("held", **warned.to_failure())
        return warned

    handed: List[str] = []
    monkeypatch.setattr(gpu_reclaim, "reclaim", result)
    # Where they go from there depends on what of Ansible is loaded: on a host into the result, in a controller's process to its display.
    monkeypatch.setattr(AnsibleModule, "warn", lambda _module, text: handed.append(text))
    with patch_module_args({}), pytest.raises(SystemExit):
        gpu_reclaim.main()
    told = json.loads(capfd.readouterr().out)
    assert handed == ["GPU 0 does not answer"]
    assert "warnings" not in told, "`warnings` among the results is what Ansible gives up"
