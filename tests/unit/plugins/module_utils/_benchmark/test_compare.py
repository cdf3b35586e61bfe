# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Results against a baseline, and hosts against each other."""

from __future__ import annotations

from typing import Any, Dict

import pytest

from ansible_collections.gpufleet.vllm.plugins.module_utils._benchmark.compare import (
    METRICS,
    compare,
    incomparable,
    slow_hosts,
    verdict,
)


def level(concurrency: int, tokens: float, ttft: float = 100.0, success: float = 100.0) -> Dict[str, Any]:
    failed = round((100.0 - success) / 10)
    times = {"mean": ttft, "median": ttft, "p99": ttft}
    return {
        "concurrency": concurrency, "requests": 10, "completed": 10 - failed, "failed": failed, "success_percent": success,
        "errors": [{"kind": "http_500", "count": failed, "example": "no"}] if failed else [],
        "request_throughput": tokens / 10, "output_throughput": tokens, "total_throughput": 2 * tokens, "output_throughput_per_gpu": None,
        "ttft_ms": times, "tpot_ms": {"mean": 10.0, "median": 10.0, "p99": 10.0}, "itl_ms": {"mean": None, "median": None, "p99": None},
        "e2e_ms": {"mean": 1000.0, "median": 1000.0, "p99": 1000.0},
    }  # fmt: skip


def result(*levels: Dict[str, Any], **more: Any) -> Dict[str, Any]:
    return {"tool": "builtin", "model": "m", "profile": {"input_tokens": 8, "output_tokens": 8}, "deployment": "d", "parts": [],
            "levels": list(levels), **more}


def test_the_directions_are_right() -> None:
    assert {name for name, more in METRICS.items() if more} == {
        "request_throughput", "output_throughput", "total_throughput", "output_throughput_per_gpu"}  # fmt: skip
    found = compare(result(level(1, 80, ttft=150)), result(level(1, 100, ttft=100)))["comparisons"]
    by_metric = {each["metric"]: each for each in found}
    assert by_metric["output_throughput"]["change_percent"] == -20.0 and by_metric["output_throughput"]["worse_percent"] == 20.0
    assert by_metric["ttft_ms.median"]["change_percent"] == 50.0 and by_metric["ttft_ms.median"]["worse_percent"] == 50.0
    assert by_metric["e2e_ms.median"]["worse_percent"] == 0.0
    better = compare(result(level(1, 200, ttft=50)), result(level(1, 100, ttft=100)))["comparisons"]
    assert all(each["worse_percent"] == 0.0 for each in better)
    assert "itl_ms.median" not in by_metric, "what isn't known is not compared"


def test_a_regression_is_a_bad_verdict_with_its_reason() -> None:
    judged = verdict(result(level(1, 100), level(4, 200)), result(level(1, 100), level(4, 400)), 10.0, 100.0)
    assert not judged["ok"]
    assert judged["reasons"] == ["concurrency 4: output_throughput is 200, 50 percent worse than 400"]
    assert [each["concurrency"] for each in judged["regressions"]] == [4]
    assert verdict(result(level(4, 200)), result(level(4, 400)), 50.0, 100.0)["ok"], "as much as is allowed is allowed"


def test_only_what_is_judged_fails() -> None:
    slow = result(level(1, 100, ttft=100))
    slow["levels"][0]["ttft_ms"] = {"mean": 100.0, "median": 100.0, "p99": 900.0}
    assert verdict(slow, result(level(1, 100)), 10.0, 100.0)["ok"]
    assert not verdict(slow, result(level(1, 100)), 10.0, 100.0, ["ttft_ms.p99"])["ok"]


def test_a_millisecond_is_noise() -> None:
    assert verdict(result(level(1, 100, ttft=1.9)), result(level(1, 100, ttft=1.0)), 10.0, 100.0)["ok"]
    assert not verdict(result(level(1, 100, ttft=2.9)), result(level(1, 100, ttft=1.0)), 10.0, 100.0)["ok"]


def test_each_level_has_to_succeed() -> None:
    judged = verdict(result(level(1, 100), level(2, 100, success=80.0)), None, 10.0, 90.0)
    assert judged["reasons"] == ["concurrency 2: 2 of 10 requests failed: 2 x http_500 (no)"]
    assert judged["success_percent"] == 90.0 and judged["baseline"] is None
    assert verdict(result(level(2, 100, success=80.0)), None, 10.0, 80.0)["ok"]


@pytest.mark.parametrize(
    ("other", "said"),
    [
        ({"tool": "guidellm"}, "with the tool guidellm, this result with builtin"),
        ({"model": "other"}, "with the model other"),
        ({"profile": {"input_tokens": 8, "output_tokens": 9}}, "output_tokens 9"),
        ({"levels": [level(7, 1)]}, "none of the concurrency levels"),
    ],
)
def test_apples_are_not_held_against_pears(other: Dict[str, Any], said: str) -> None:
    baseline = {**result(level(1, 100)), **other}
    assert said in str(incomparable(result(level(1, 100)), baseline))
    judged = verdict(result(level(1, 100)), baseline, 10.0, 100.0)
    assert not judged["ok"] and said in judged["reasons"][0]


def test_what_changed_and_what_only_one_has_is_told() -> None:
    before = result(level(1, 100), level(2, 100), parts=[{"name": "vllm_version", "value": "1", "digest": "a"}])
    after = result(level(1, 100), level(4, 100), parts=[{"name": "vllm_version", "value": "2", "digest": "b"}])
    compared = compare(after, before)
    assert compared["changed"] == [{"name": "vllm_version", "before": "1", "after": "2"}]
    assert (compared["only_in_result"], compared["only_in_baseline"]) == ([4], [2])


def test_a_slow_host_is_one_below_the_others() -> None:
    fleet = {"a": result(level(1, 100)), "b": result(level(1, 98)), "c": result(level(1, 70)), "d": result(level(1, 10), deployment="e")}
    fleet["c"]["measured"] = "2026-11-29T22:10:00Z"
    assert slow_hosts(fleet, 10.0) == [{"host": "c", "below_percent": 29.3, "compared_with": 2, "concurrency": [1], "other": None,
                                        "measured": "2026-11-29T22:10:00Z"}]  # fmt: skip
    assert slow_hosts(fleet, 40.0) == []
    (slow,) = slow_hosts({"a": result(level(1, 100)), "b": result(level(1, 80))}, 10.0)
    assert (slow["host"], slow["other"]) == ("b", "a")
    assert slow_hosts({"a": result(level(1, 100))}, 10.0) == []


def test_hosts_are_compared_at_the_levels_that_both_have() -> None:
    fleet = {"a": result(level(1, 100), level(8, 800)), "b": result(level(1, 100)), "c": result(level(1, 100), level(8, 400))}
    assert [(each["host"], each["below_percent"]) for each in slow_hosts(fleet, 10.0)] == [("c", 25.0)]
