# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""One form for all tools: the figures of a level from its requests, and what counts as a failure."""

from __future__ import annotations

import math
from typing import List

import pytest

from ansible_collections.gpufleet.vllm.plugins.module_utils._benchmark import result as results
from ansible_collections.gpufleet.vllm.plugins.module_utils._benchmark.errors import example_of, kind_of_error
from ansible_collections.gpufleet.vllm.plugins.module_utils._benchmark.result import (
    Sample,
    level_of,
    percentile,
    statistics,
)


def good(ttft: float = 0.1, e2e: float = 1.0, tokens: int = 10) -> Sample:
    return Sample(ttft=ttft, e2e=e2e, input_tokens=5, output_tokens=tokens, gaps=(0.1,) * (tokens - 1))


def test_the_figures_of_a_level() -> None:
    level = level_of(2, 4, [good(), good(), good(), good(ttft=0.2)], 2.0, 10, 4)
    assert (level["completed"], level["failed"], level["success_percent"]) == (4, 0, 100.0)
    assert (level["request_throughput"], level["output_throughput"], level["input_throughput"]) == (2.0, 20.0, 10.0)
    assert (level["total_throughput"], level["output_throughput_per_gpu"]) == (30.0, 5.0)
    assert level["ttft_ms"] == {"mean": 125.0, "median": 100.0, "p99": 197.0}
    assert level["tpot_ms"]["median"] == 100.0  # (1.0 - 0.1) / 9
    assert level["itl_ms"]["median"] == 100.0 and level["e2e_ms"]["p99"] == 1000.0
    assert level["kept_busy"] == 2.0
    assert level["errors"] == []


def test_a_short_answer_is_a_failure_whatever_the_tool_says() -> None:
    level = level_of(1, 3, [good(), good(tokens=9), Sample(ttft=0.1, e2e=0.1, output_tokens=0)], 1.0, 10, None)
    assert (level["completed"], level["failed"]) == (1, 2)
    assert [(each["kind"], each["count"]) for each in level["errors"]] == [("empty", 1), ("short", 1)]
    assert level["output_throughput"] == 10.0, "the tokens of failed requests are nobody's throughput"
    assert level["output_throughput_per_gpu"] is None and level["kept_busy"] is None


def test_requests_that_the_tool_does_not_tell_of_have_failed() -> None:
    level = level_of(1, 4, [good()], 1.0, 10, None)
    assert (level["completed"], level["failed"], level["success_percent"]) == (1, 3, 25.0)
    assert level["errors"] == [{"kind": "missing", "count": 3, "example": "the tool tells nothing of it"}]


def test_nothing_at_all_is_no_number() -> None:
    level = level_of(1, 2, [Sample("boom"), Sample("boom")], None, 10, 2)
    assert level["output_throughput"] is None and level["ttft_ms"] == {"mean": None, "median": None, "p99": None}
    assert level["success_percent"] == 0.0 and level["input_tokens"] == 0


def test_one_request_without_a_count_makes_the_total_unknown() -> None:
    level = level_of(1, 2, [good(), Sample(ttft=0.1, e2e=1.0, output_tokens=10)], 1.0, 10, None)
    assert level["input_tokens"] is None and level["input_throughput"] is None and level["total_throughput"] is None
    assert level["output_throughput"] == 20.0


def test_no_figure_is_infinite_or_no_number() -> None:
    assert statistics([math.nan, math.inf, None]) == {"mean": None, "median": None, "p99": None}
    assert statistics([0.001, math.nan]) == {"mean": 1.0, "median": 1.0, "p99": 1.0}
    assert results.rounded(math.inf) is None


@pytest.mark.parametrize(
    ("values", "percent", "found"),
    [
        ([1.0], 99, 1.0),
        ([1.0, 3.0], 50, 2.0),
        ([1.0, 2.0, 3.0, 4.0], 50, 2.5),
        ([0.0, 100.0], 99, 99.0),
        ([float(n) for n in range(101)], 99, 99.0),
    ],
)
def test_percentiles_are_numpys(values: List[float], percent: float, found: float) -> None:
    assert percentile(values, percent) == pytest.approx(found)


def test_the_peak_is_the_level_with_the_most_tokens() -> None:
    levels = [level_of(n, 1, [good()], seconds, 10, 2) for n, seconds in ((1, 1.0), (2, 0.5), (4, 0.7))]
    assert results.peak_of(levels) == {"concurrency": 2, "output_throughput": 20.0, "output_throughput_per_gpu": 10.0}
    assert results.peak_of([level_of(1, 1, [Sample("x")], 1.0, 1, None)]) is None


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("Internal Server Error", "http_500"),
        ("Unauthorized", "http_401"),
        ("Client error '404 Not Found' for url 'http://127.0.0.1:1/v1'", "http_404"),
        ("HTTP 503: no", "http_503"),
        ("Traceback\n  ...\nasyncio.exceptions.TimeoutError", "timeout"),
        ("aiohttp.client_exceptions.ClientConnectorError: Cannot connect to host 127.0.0.1:1", "connection"),
        ("ClientPayloadError: Response payload is not completed: <TransferEncodingError: 400>", "cut"),
        ("httpx.RemoteProtocolError: peer closed connection without sending complete message body", "cut"),
        ("Never received a valid chunk to calculate TTFT.This response will be marked as failed!", "empty"),
        ("EngineDeadError: EngineCore encountered an issue.", "server_error"),
        ("something else", "other"),
        ("the prompt has 500 words", "other"),
    ],
)
def test_errors_are_counted_by_kind(text: str, kind: str) -> None:
    assert kind_of_error(text) == kind


def test_an_example_is_one_line() -> None:
    assert example_of("Traceback (most recent call last):\n  File x\n\nTimeoutError: late\n") == "TimeoutError: late"
    assert example_of("") == ""
