# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the table of a deployment says: of each host, and in words."""

from __future__ import annotations

from typing import Any

import pytest
from ansible.errors import AnsibleFilterError

from ansible_collections.gpufleet.vllm.plugins.filter.deploy_rows import deploy_fault, deploy_rows, deploy_steps

UNIT = "vllm-kimi.service"
DONE = {"host": "gpu01", "vllm": "0.33.0", "commit": None, "fetched_mib": 5, "ready": True, "result": "failed", "failed": True,
        "detail": "x"}  # fmt: skip


def test_every_host_has_a_row() -> None:
    hostvars = {"gpu01": {"deploy_row": DONE}, "gpu02": {}, "gpu03": {"vllm_model_plan": {"changed": False}}}
    rows = deploy_rows(["gpu01", "gpu02", "gpu03"], hostvars)
    assert rows[0] == DONE
    assert [(row["host"], row["result"], row["failed"]) for row in rows[1:]] == [("gpu02", "not begun", False), ("gpu03", "failed", True)]
    assert "turn" in rows[1]["detail"] and "is not known" in rows[2]["detail"] and {*rows[1]} == {*rows[2]} == {*DONE}


def test_what_was_forgotten_or_is_of_something_else_is_no_trace() -> None:
    forgotten: dict[str, object] = dict.fromkeys(("deploy_row", "deploy_service", "vllm_model_plan", "deploy_failure"), {})
    hostvars = {"gpu01": forgotten, "gpu02": {"deploy_row": DONE}}
    rows = deploy_rows(["gpu01", "gpu02"], hostvars, ["gpu02"])
    assert [row["result"] for row in rows] == ["not begun", "not begun"]
    assert "turn" in rows[0]["detail"] and rows[1]["detail"] == "it had failed before this deployment, in the same run"


def step(action: str, target: str, reason: str = "so") -> dict[str, str]:
    return {"action": action, "target": target, "reason": reason}


@pytest.mark.parametrize(
    ("actions", "said"),
    [
        ([], ""),
        (["fetch 3 files", step("write", "/etc/vllm/kimi.yaml"), step("daemon_reload", UNIT), step("enable", UNIT), step("start", UNIT)],
         f"fetch 3 files; write /etc/vllm/kimi.yaml; have systemd read {UNIT}; enable {UNIT}; start {UNIT}"),
        ([step("drain", UNIT), step("stop", UNIT, "its declaration changes"), step("prove_free", "0,1"), step("start", UNIT)],
         f"drain {UNIT}; RESTART {UNIT} (its declaration changes); prove GPU 0,1 free; start {UNIT}"),
        ([step("stop", "vllm-other.service"), step("start", UNIT), step("odd_%s", "x")],
         f"stop vllm-other.service; start {UNIT}; odd %s x"),
    ],
)  # fmt: skip
def test_steps_are_words(actions: Any, said: str) -> None:
    assert deploy_steps(actions) == said


@pytest.mark.parametrize(
    ("message", "of_the_whole"),
    [
        ("Port 8000 is in use. Give another. Nothing was touched.", "Port 8000 is in use. Give another."),
        ("Nothing was touched. GPU 9 is not on this host.", "GPU 9 is not on this host."),
        ("kimi cannot work on this host, and nothing was touched:\n- it does not fit", "kimi cannot work on this host:\n- it does not fit"),
        ("GPU memory can't be reclaimed now, nothing was touched. Wait.", "GPU memory can't be reclaimed now. Wait."),
        ("The server did not start.", "The server did not start."),
    ],
)
def test_a_module_that_touched_nothing_does_not_speak_for_those_before_it(message: str, of_the_whole: str) -> None:
    assert deploy_fault(message, []) == message
    assert deploy_fault(message, ["fetch 3 files"]) == of_the_whole


def test_something_else_is_refused() -> None:
    for odd in (lambda: deploy_rows("gpu01", {}), lambda: deploy_steps({"action": "write"}), lambda: deploy_fault("x", "y")):
        with pytest.raises(AnsibleFilterError, match="takes a list of"):
            odd()
