# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Engine arguments as people write them, and versions as vLLM prints them."""

from __future__ import annotations

from typing import Any

import pytest

from ansible_collections.gpufleet.vllm.plugins.module_utils._memory_plan.arguments import (
    AUTO,
    read_args,
    whole_number,
)
from ansible_collections.gpufleet.vllm.plugins.module_utils._memory_plan.versions import (
    behaviour,
    parse_version,
)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (8192, 8192),
        ("8192", 8192),
        ("128k", 128_000),
        ("128K", 131_072),
        ("1M", 1_048_576),
        ("25.6k", 25_600),
        ("1.5", None),
        (8192.0, 8192),
        (8192.5, None),
        (True, None),
        ("-5", None),
        ("lots", None),
        ([8192], None),
        (float("nan"), None),
        (2**70, None),
    ],
)
def test_numbers(value: Any, expected: int | None) -> None:
    assert whole_number(value) == expected


@pytest.mark.parametrize("value", ["auto", "AUTO", -1, "-1"])
def test_auto(value: Any) -> None:
    assert read_args({"max-model-len": value}).max_model_len == AUTO


def test_hyphens_short_forms_and_negations() -> None:
    found = read_args({"--tensor-parallel-size": "4", "pp": 2, "no_enable_prefix_caching": True, "q": "fp8"})
    assert (found.tensor_parallel_size, found.pipeline_parallel_size) == (4, 2)
    assert (found.enable_prefix_caching, found.quantization) == (False, "fp8")


@pytest.mark.parametrize(
    "value",
    [{"method": "mtp", "num_speculative_tokens": 3}, '{"method": "mtp", "num_speculative_tokens": 3}'],
)
def test_speculation_as_a_dict_and_as_json(value: Any) -> None:
    found = read_args({"speculative_config": value})
    assert (found.speculative_method, found.speculative_tokens) == ("mtp", 3)


@pytest.mark.parametrize(
    ("args", "count"),
    [
        ({"max_num_seqs": 0}, 1),
        ({"tensor_parallel_size": "two", "enforce_eager": "maybe"}, 2),
        ({"gpu_memory_utilization": 1.5, "speculative_config": "{", "dtype": 5}, 3),
        ({"cpu_offload_gb": -1, 5: 6}, 1),
    ],
)
def test_what_cannot_be_read_is_said(args: dict[Any, Any], count: int) -> None:
    assert len(read_args(args).unread) == count


@pytest.mark.parametrize(
    ("version", "expected"),
    [
        ("0.19.1rc1.dev71+gdd9342e6b", (0, 19)),
        ("v0.33.0", (0, 33)),
        ("0.11", (0, 11)),
        ("0.11.2rc1+rhai0", (0, 11)),
        ("0.2x", None),
        ("nightly", None),
        ("", None),
        (None, None),
    ],
)
def test_versions(version: str | None, expected: tuple[int, int] | None) -> None:
    assert parse_version(version) == expected


def test_an_unknown_version_is_taken_for_a_new_one_with_the_larger_warm_up() -> None:
    found = behaviour(None)
    assert (found.utilization, found.graphs_in_budget, found.sampler_bytes[1]) == (0.92, True, 39)
    assert behaviour("0.20.2").utilization == 0.9
