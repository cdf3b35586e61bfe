# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A GPU narrowed to one of its MIG instances."""

from __future__ import annotations

from typing import Dict, List, Optional, Tuple

import pytest

from ansible_collections.gpufleet.vllm.plugins.module_utils._gpu import raw
from ansible_collections.gpufleet.vllm.plugins.module_utils._gpu.attribution import Attribution
from ansible_collections.gpufleet.vllm.plugins.module_utils._gpu.types import Gpu, MigDevice
from ansible_collections.gpufleet.vllm.plugins.module_utils._process.inspect import Inspection

MIB = 1 << 20
ENTRIES = [
    raw.RawProcess(11, "C", 500 * MIB, 1, 0),
    raw.RawProcess(12, "C", 300 * MIB, 2, 0),
    raw.RawProcess(13, "C", 7 * MIB, 2, 1),
    raw.RawProcess(14, "C", 40 * MIB, 1, 0),
    raw.RawProcess(14, "G", 40 * MIB, 1, 0),  # the same memory in another list
    raw.RawProcess(14, "C", 2 * MIB, 2, 0),
    raw.RawProcess(15, "C", None, 2, 0),
]


def divided(entries: List[raw.RawProcess]) -> Gpu:
    """A GPU with the processes of these lists."""
    on = Attribution(Inspection()).on(raw.RawGpu(0, processes=entries))
    return Gpu(0, "GPU-0", None, "A", memory_type="mig", processes=on)


def there(gpu: Gpu) -> Dict[int, Optional[int]]:
    """Its processes and their MiB."""
    return {process.pid: process.used_mib for process in gpu.processes}


@pytest.mark.parametrize(
    ("where", "expected"),
    [
        ((1, 0), {11: 500, 14: 40}),
        ((2, 0), {12: 300, 14: 2, 15: None}),
        ((2, 1), {13: 7}),
        ((2, None), {12: 300, 13: 7, 14: 2, 15: None}),
        ((3, 0), {}),
    ],
)
def test_an_instance_has_its_own_processes_alone(where: Tuple[int, Optional[int]], expected: Dict[int, Optional[int]]) -> None:
    whole = divided(ENTRIES)
    assert there(whole) == {11: 500, 12: 300, 13: 7, 14: 42, 15: None}
    part = whole.of_mig(MigDevice(0, "MIG-a", None, *where))
    assert there(part) == expected and part.error is None
    assert all("parts" not in process for process in part.to_dict()["processes"])


def test_a_process_that_may_be_anywhere_is_kept_and_named() -> None:
    """An older driver does not say on which instance a process is: it may be in the way."""
    whole = divided([*ENTRIES[:2], raw.RawProcess(21, "C", 5 * MIB), raw.RawProcess(22, "C", 5 * MIB)])
    part = whole.of_mig(MigDevice(0, "MIG-a", None, 1, 0, error="name: not supported"))
    assert there(part) == {11: 500, 21: 5, 22: 5}
    assert part.error == "name: not supported; may be on another MIG instance: pid 21, 22"
    unknown = whole.of_mig(MigDevice(0, "MIG-a", None, None, None))
    assert there(unknown) == there(whole) and unknown.error == "may be on another MIG instance: pid 11, 12, 21, 22"
