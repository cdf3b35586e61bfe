# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The load: its defaults, the numbers of its levels, and what is refused."""

from __future__ import annotations

from typing import Any, Dict

import pytest

from ansible_collections.gpufleet.vllm.plugins.module_utils._benchmark.profile import to_profile
from ansible_collections.gpufleet.vllm.plugins.module_utils._core.errors import GpuFleetError


def test_the_defaults_are_the_curve_as_people_quote_it() -> None:
    profile = to_profile({})
    assert profile.concurrency == (1, 2, 4, 8, 16, 32, 64, 128)
    assert (profile.input_tokens, profile.output_tokens, profile.seed) == (1024, 256, 0)
    assert [profile.requests_at(level) for level in (1, 4, 8, 128)] == [16, 16, 32, 512]
    assert [profile.warmup_at(level) for level in (1, 8, 128)] == [1, 8, 32]


def test_what_is_given_holds_and_what_is_none_does_not() -> None:
    profile = to_profile({"concurrency": [4, 2], "requests": 10, "warmup": 0, "seed": None, "input_tokens": 8})
    assert profile.to_dict() == {
        "concurrency": [4, 2],
        "input_tokens": 8,
        "output_tokens": 256,
        "requests": [10, 10],
        "warmup": [0, 0],
        "seed": 0,
    }


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"concurrency": []}, "concurrency is empty"),
        ({"concurrency": [1, 1]}, "names a level twice"),
        ({"concurrency": [0]}, "from 1 to 4096"),
        ({"concurrency": [5000]}, "from 1 to 4096"),
        ({"concurrency": ["2"]}, "whole numbers"),
        ({"concurrency": [True]}, "whole numbers"),
        ({"input_tokens": 0}, "input_tokens is 0"),
        ({"output_tokens": -1}, "output_tokens is -1"),
        ({"output_tokens": 1.5}, "whole numbers"),
        ({"concurrency": [8], "requests": 7}, "7 requests never keep 8 busy"),
        ({"warmup": -1}, "warmup is -1"),
        ({"seed": 2**31}, "seed takes"),
        ({"tokens": 3}, "there is no tokens"),
    ],
)
def test_what_makes_no_sense_is_refused_with_the_option(given: Dict[str, Any], said: str) -> None:
    with pytest.raises(GpuFleetError, match="^profile: .*" + said):
        to_profile(given)


def test_all_faults_are_told_at_once() -> None:
    with pytest.raises(GpuFleetError) as caught:
        to_profile({"concurrency": [2], "requests": 1, "output_tokens": 0})
    assert "busy" in caught.value.msg and "output_tokens is 0" in caught.value.msg
