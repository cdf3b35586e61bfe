# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the tables of a preflight say, read as somebody who sees them for the first time."""

from __future__ import annotations

from typing import Any

import pytest
from ansible.errors import AnsibleFilterError

from ansible_collections.gpufleet.vllm.plugins.filter.preflight_rows import preflight_findings, preflight_rows

PREFLIGHT: dict[str, Any] = {
    "ok": True,
    "verdict": "fits",
    "checks": [{"id": "model", "status": "pass", "detail": "readable", "fix": None}],
    "plan": {"weights_mib_per_gpu": 54899, "kv_tokens": 409744, "max_concurrency": 3.12, "free_mib_needed": 89527},
    "about": {"gpus": [0, 1, 2, 3, 6], "tensor_parallel_size": 4, "max_model_len": 131072, "free_mib_per_gpu": 97280},
}
FAIL = {"id": "quant_block_experts", "status": "fail", "detail": "192 is not a multiple of 128", "fix": "Use 4."}
WARN = {"id": "shm", "status": "warn", "detail": "64 MiB are free", "fix": "Make it larger."}


def service(**more: Any) -> dict[str, Any]:
    """What vllm_service returned."""
    return {"changed": True, "actions": [], "preflight": {**PREFLIGHT, **more}}


def test_a_row_has_its_figures_in_words() -> None:
    assert preflight_rows({"gpu01": service()}) == [{
        "host": "gpu01", "gpus": "0-3, 6", "split": "TP 4", "weights": "53.6 GiB", "kv_tokens": "409,744",
        "requests": "3.1 x 131,072", "must_be_free": "87.4 GiB", "free": "95.0 GiB", "verdict": "fits",
    }]


def test_the_module_alone_reads_the_same() -> None:
    assert preflight_rows({"h": PREFLIGHT}) == preflight_rows({"h": service()})


@pytest.mark.parametrize(("result", "verdict"), [
    (service(verdict="tight"), "tight"),
    (service(verdict="unknown"), "not known"),
    (service(verdict="does_not_fit", ok=False), "FAILS"),
    ({**service(ok=False), "failed": True}, "REFUSED"),
    ({"failed": True, "msg": "x"}, "REFUSED"),
    ({"unreachable": True, "msg": "x"}, "NO ANSWER"),
    ({"changed": False, "actions": []}, "not checked"),
    ({}, "not checked"),
    (None, "not checked"),
])
def test_every_end_has_its_word(result: Any, verdict: str) -> None:
    assert preflight_rows({"h": result})[0]["verdict"] == verdict


@pytest.mark.parametrize(("about", "split"), [
    ({"tensor_parallel_size": 8, "expert_parallel": True}, "TP 8, EP"),
    ({"tensor_parallel_size": 4, "pipeline_parallel_size": 2, "data_parallel_size": 1}, "TP 4, PP 2"),
    ({"tensor_parallel_size": 1, "data_parallel_size": 8}, "TP 1, DP 8"),
    ({}, None),
])
def test_how_it_is_split(about: dict[str, Any], split: str | None) -> None:
    assert preflight_rows({"h": service(about=about)})[0]["split"] == split


def test_what_is_not_known_is_left_empty() -> None:
    row = preflight_rows({"h": service(plan={"kv_tokens": None}, about={})})[0]
    assert [row[name] for name in ("weights", "kv_tokens", "requests", "free", "gpus")] == [None] * 5


def test_the_same_finding_on_several_hosts_is_one_line_and_failures_come_first() -> None:
    hosts = {f"gpu{number}": service(checks=[WARN]) for number in range(6)}
    hosts["gpu6"] = service(checks=[WARN, FAIL])
    assert preflight_findings(hosts) == [
        {"hosts": "gpu6", "check": "quant_block_experts", "status": "FAIL", "detail": "192 is not a multiple of 128", "fix": "Use 4."},
        {"hosts": "all 7", "check": "shm", "status": "WARN", "detail": "64 MiB are free", "fix": "Make it larger."},
    ]
    del hosts["gpu6"]["preflight"]["checks"][0]
    assert preflight_findings(hosts)[1]["hosts"] == "gpu0, gpu1, gpu2 and 3 more"
    assert preflight_findings({"gpu01": service(checks=[WARN])})[0]["hosts"] == "gpu01"


def test_a_host_without_checks_says_why() -> None:
    found = preflight_findings({"a": {"failed": True, "msg": "No driver.\nMore."}, "b": {"unreachable": True}, "c": {}})
    assert [(row["hosts"], row["detail"]) for row in found] == [("a", "No driver."), ("b", "no answer")]


@pytest.mark.parametrize("value", [None, [], "text", 5])
def test_something_else_than_results_is_refused(value: Any) -> None:
    for each in (preflight_rows, preflight_findings):
        with pytest.raises(AnsibleFilterError):
            each(value)
