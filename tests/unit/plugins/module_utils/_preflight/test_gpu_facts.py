# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""GPUs of a machine that is not there, in every shape in which somebody may give them."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ansible_collections.gpufleet.vllm.plugins.module_utils._core.errors import GpuFleetError
from ansible_collections.gpufleet.vllm.plugins.module_utils._gpu.types import Gpu, Snapshot
from ansible_collections.gpufleet.vllm.plugins.module_utils._preflight.gpu_facts import snapshot_of, version_of

FULL = Snapshot(True, driver_version="580.95.05", cuda_version="13.0", count=2, gpus=tuple(
    Gpu(index, f"GPU-{index}", None, "NVIDIA H200", total_mib=143771, used_mib=5, free_mib=143766) for index in range(2)
)).to_dict()


@pytest.mark.parametrize("facts", [
    FULL,
    {"gpu_memory": FULL},
    {"ansible_facts": {"gpu_memory": FULL}},
    {"count": 2, "gpu_mib": 143771, "name": "NVIDIA H200", "driver_version": "580.95.05", "cuda_version": 13.0},
    {"count": "2", "gpu_mib": "143771", "name": "NVIDIA H200", "driver_version": "580.95.05", "cuda_version": "13.0"},
    {"gpus": [{"total_mib": 143771, "name": "NVIDIA H200"}] * 2, "driver_version": "580.95.05", "cuda_version": "13.0"},
])
def test_every_form_says_the_same(facts: dict[str, Any]) -> None:
    found = snapshot_of(facts)
    assert [(gpu.index, gpu.total_mib, gpu.name, gpu.state) for gpu in found.gpus] == [(0, 143771, "NVIDIA H200", "ok"),
                                                                                       (1, 143771, "NVIDIA H200", "ok")]
    assert (found.driver_version, found.cuda_version, found.count) == ("580.95.05", "13.0", 2)


@pytest.mark.parametrize(("facts", "said"), [
    ({}, "names no GPUs"),
    ([], "is a list"),
    ("8", "is a str"),
    ({"gpus": []}, "names no GPUs"),
    ({"gpus": {"0": {}}}, "names no GPUs"),
    ({"gpus": [7]}, "gpus[0] is a int"),
    ({"gpus": [{"total_mib": 5}, {}]}, "gpus[1] has no total_mib"),
    ({"gpus": [{"total_mib": 0}]}, "whole number from 1"),
    ({"gpus": [{"total_mib": -5}]}, "whole number from 1"),
    ({"gpus": [{"total_mib": 1.5}]}, "whole number from 1"),
    ({"gpus": [{"total_mib": True}]}, "a whole number is needed"),
    ({"gpus": [{"total_mib": "97 GiB"}]}, "a whole number is needed"),
    ({"gpus": [{"total_mib": 2**64 - 1}]}, "whole number from 1"),
    ({"gpus": [{"total_mib": float("nan")}]}, "a whole number is needed"),
    ({"gpus": [{"total_mib": 5, "name": []}]}, "text is needed"),
    ({"gpus": [{"total_mib": 5, "index": 1}] * 2}, "an index twice"),
    ({"count": 8}, "not both of count and gpu_mib"),
    ({"count": 10**9, "gpu_mib": 5}, "whole number from 1 to 1024"),
    ({"gpus": [{"total_mib": 5, "free_mib": 6}]}, "free_mib is 6, and total_mib 5"),
    ({"available": False, "reason": "no_driver", "gpus": []}, "could not be read (no_driver)"),
])
def test_what_cannot_be_is_refused_with_its_place(facts: Any, said: str) -> None:
    with pytest.raises(GpuFleetError) as caught:
        snapshot_of(facts)
    assert said in caught.value.msg


@pytest.mark.parametrize(("facts", "version"), [
    (FULL, None), ({"vllm_version": "0.19.1"}, "0.19.1"), ({"ansible_facts": {"gpu_memory": {"vllm_version": 0.19}}}, "0.19"), ("x", None),
])
def test_the_version_may_be_given_beside_the_gpus(facts: Any, version: str | None) -> None:
    assert version_of(facts) == version


@pytest.mark.parametrize("given", ["new", [], {}, "1"])
def test_what_is_no_version_is_refused(given: Any) -> None:
    with pytest.raises(GpuFleetError, match=r"gpu_facts\.vllm_version"):
        version_of({**FULL, "vllm_version": given})


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(
        st.sampled_from(["gpus", "count", "gpu_mib", "total_mib", "index", "name", "gpu_memory", "available", "cuda_version", "state"]),
        inner, max_size=5),
    max_leaves=12,
)


@given(_JSON)
def test_garbage_is_told_and_never_breaks(facts: Any) -> None:
    try:
        found = snapshot_of(facts)
    except GpuFleetError as exc:
        assert "gpu_facts" in exc.msg
        return
    assert found.gpus and all(gpu.total_mib and gpu.total_mib > 0 for gpu in found.gpus)
