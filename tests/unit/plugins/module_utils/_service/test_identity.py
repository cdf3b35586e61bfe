# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a declaration holds fast to."""

from __future__ import annotations

import pytest

from ansible_collections.gpufleet.vllm.plugins.module_utils._core.errors import GpuFleetError
from ansible_collections.gpufleet.vllm.plugins.module_utils._gpu.select import resolve
from ansible_collections.gpufleet.vllm.plugins.module_utils._gpu.types import Gpu
from ansible_collections.gpufleet.vllm.plugins.module_utils._service.identity import gpu_ids, mig_uuids

HOST = [Gpu(index, f"GPU-{index}abc-{index}", f"00000000:{index + 1:02X}:00.0", "A") for index in range(8)]


@pytest.mark.parametrize(
    ("selection", "expected"),
    [
        (["4", "5"], ()),
        (["all"], ()),
        ([], ()),
        (["GPU-4abc-4"], ("GPU-4abc-4",)),
        (["gpu-4ABC"], ("GPU-4abc-4",)),
        ([" GPU-4 "], ("GPU-4abc-4",)),
        (["05:00.0"], ("00000000:05:00.0",)),
        (["0000:05:00.0"], ("00000000:05:00.0",)),
        (["GPU-6abc-6", "1", "0000:05:00.0"], ("1", "00000000:05:00.0", "GPU-6abc-6")),
        (["0000:05:00.0", "GPU-4abc-4", "4"], ("GPU-4abc-4",)),
        (["GPU-4abc-4", "0000:05:00.0"], ("GPU-4abc-4",)),
    ],
)
def test_each_gpu_stays_as_it_was_named(selection: list[str], expected: tuple[str, ...]) -> None:
    assert gpu_ids(selection, resolve(selection, HOST)) == expected


def test_mig_instances_and_whole_gpus_do_not_go_together() -> None:
    instance = Gpu(1, "MIG-1", None, "A", memory_type="mig")
    assert mig_uuids([instance]) == ("MIG-1",) and mig_uuids(HOST) == ()
    with pytest.raises(GpuFleetError, match=r"MIG-1.*beside whole GPUs \(0\)"):
        mig_uuids([HOST[0], instance])
