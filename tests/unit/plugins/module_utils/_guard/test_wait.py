# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""When a service may start."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any, List, Optional, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ansible_collections.gpufleet.vllm.plugins.module_utils._gpu.types import Gpu, GpuProcess, MigDevice, Snapshot
from ansible_collections.gpufleet.vllm.plugins.module_utils._guard import exit_codes
from ansible_collections.gpufleet.vllm.plugins.module_utils._guard.wait import STABLE_MIB, Need, Waiting, holders

TOTAL, RESERVED = 97887, 638
NEED = Need(0.92)
ENOUGH = math.ceil(TOTAL * 0.92)  # 90057


def gpu(free: Optional[int], index: int = 0, **more: Any) -> Gpu:
    """A GPU with so much memory free."""
    used = None if free is None else TOTAL - RESERVED - free
    fields = {"total_mib": TOTAL, "used_mib": used, "free_mib": free, "reserved_mib": RESERVED, **more}
    return Gpu(index, "GPU-%d" % index, "00000000:01:00.0", "NVIDIA A", **fields)


def seen(*gpus: Gpu) -> Snapshot:
    """A reading of these GPUs."""
    return Snapshot(True, gpus=gpus)


def verdicts(frees: "Sequence[int | None]", step: float = 0.5, settle: float = 1.0, need: Need = NEED) -> List[Optional[int]]:
    """The codes of readings of one GPU, one after the other."""
    waiting = Waiting(need, settle)
    return [waiting.judge(seen(gpu(free)), number * step).code for number, free in enumerate(frees)]


def test_the_need_is_vllms_own_reckoning() -> None:
    assert NEED.of(gpu(0)) == ENOUGH
    assert Need(0.92, 500).of(gpu(0)) == ENOUGH + 500
    assert Need(0.5).of(gpu(0, total_mib=1001, reserved_mib=None)) == 501  # rounded up
    assert NEED.of(gpu(0, total_mib=None)) is None


def test_one_mib_too_few_is_too_few() -> None:
    assert verdicts([ENOUGH - 1, ENOUGH - 1]) == [None, None]
    assert verdicts([ENOUGH, ENOUGH, ENOUGH]) == [None, None, exit_codes.PASS]


def test_an_idle_gpu_passes_at_once() -> None:
    assert verdicts([TOTAL - RESERVED - 2]) == [exit_codes.PASS]


def test_enough_must_be_stable_too() -> None:
    # a neighbour that frees memory while vLLM measures makes it fail as surely as too little memory does
    rising = [91000, 92000, 93000, 94000, 94000, 94010, 94010]
    assert verdicts(rising) == [None, None, None, None, None, exit_codes.PASS, exit_codes.PASS]
    falling_short = [91000, 91000 - STABLE_MIB, 80000, 91000, 91000, 91000]
    assert verdicts(falling_short) == [None, None, None, None, None, exit_codes.PASS]


@pytest.mark.parametrize(("kind", "passes"), [("unified", True), ("discrete", False)])
def test_memory_that_is_the_hosts_own_may_move_a_little(kind: str, passes: bool) -> None:
    """On GB10 and its like every program of the host moves it: it would never be as still as a card's."""
    waiting = Waiting(Need(0.5), 1.0)
    restless = [100_000, 100_400, 99_700, 100_300]
    readings = [gpu(free, memory_type=kind, total_mib=124_610, used_mib=124_610 - free, reserved_mib=None) for free in restless]
    codes = [waiting.judge(seen(each), number * 0.5).code for number, each in enumerate(readings)]
    assert (exit_codes.PASS in codes) is passes
    waiting = Waiting(Need(0.5), 1.0)
    rising = [replace(readings[0], free_mib=free, used_mib=124_610 - free) for free in (90_000, 92_000, 94_000, 96_000)]
    codes = [waiting.judge(seen(each), number * 0.5).code for number, each in enumerate(rising)]
    assert exit_codes.PASS not in codes, "what a neighbour gives back is more than that"


def test_every_gpu_counts() -> None:
    verdict = Waiting(NEED, 0).judge(seen(gpu(97000, 0), gpu(10, 1), gpu(97000, 2)), 0)
    assert (verdict.code, verdict.short) == (None, (1,))
    assert "GPU 1: 10 MiB free, %d needed" % ENOUGH in verdict.text


def test_unknown_is_not_free() -> None:
    assert verdicts([None, None, None]) == [None, None, None]
    verdict = Waiting(NEED, 0).judge(seen(gpu(None, state="error", error="memory: unknown error", total_mib=None)), 0)
    assert verdict.code is None and "memory: unknown error" in verdict.text


@pytest.mark.parametrize(
    ("reason", "code"),
    [
        ("no_driver", None),  # it may still be loading
        ("driver_hung", None),
        ("error", None),
        ("driver_library_mismatch", exit_codes.DRIVER),
        ("permission", exit_codes.DRIVER),
        ("library_missing", exit_codes.DRIVER),
    ],
)
def test_an_unreadable_driver_is_waited_for_only_where_that_helps(reason: str, code: Optional[int]) -> None:
    verdict = Waiting(NEED, 0).judge(Snapshot(False, reason=reason, reason_detail="so"), 0)
    assert verdict.code == code and "so" in verdict.text


@pytest.mark.parametrize("state", ["lost", "reset_required"])
def test_a_broken_gpu_is_not_waited_for(state: str) -> None:
    assert Waiting(NEED, 0).judge(seen(gpu(97000), gpu(None, 1, state=state)), 0).code == exit_codes.DRIVER


def test_more_than_the_card_has_is_never() -> None:
    verdict = Waiting(Need(0.92, 9000), 0).judge(seen(gpu(97000)), 0)
    assert verdict.code == exit_codes.NEVER
    assert "can never have the 99057 MiB free" in verdict.text and "9000 MiB margin" in verdict.text
    # close to all of it can be had, though the driver keeps some for itself
    assert verdicts([TOTAL - RESERVED - 2], need=Need(0.999)) == [exit_codes.PASS]
    assert verdicts([TOTAL - RESERVED - 2], need=Need(0.92, TOTAL - RESERVED - 2 - ENOUGH)) == [exit_codes.PASS]


def test_all_of_a_card_is_never() -> None:
    """An idle GPU has it all but 2 MiB, and vLLM's own context takes more than that before it looks."""
    for free in (TOTAL - RESERVED - 2, TOTAL - RESERVED, 10):
        verdict = Waiting(Need(1.0), 0).judge(seen(gpu(free)), 0)
        assert verdict.code == exit_codes.NEVER and "gpu_memory_utilization 1 of 97887 MiB" in verdict.text


@pytest.mark.parametrize("margin", [0, 60, 400, 700, 5000])
@pytest.mark.parametrize("reserved", [0, 30, 638, 2000, None])
def test_no_share_is_refused_below_one_that_passes(reserved: Optional[int], margin: int) -> None:
    idle = gpu(TOTAL - (reserved or 0) - 2, reserved_mib=reserved, used_mib=2)
    passes = [Waiting(Need(share / 2000, margin), 0).judge(seen(idle), 0).code == exit_codes.PASS for share in range(1800, 2001)]
    assert passes == sorted(passes, reverse=True) and passes[0] and not passes[-1]


def test_where_the_reserve_counts_as_used_an_idle_gpu_still_passes() -> None:
    waiting = Waiting(NEED, 1.0)
    assert waiting.judge(seen(gpu(TOTAL - 640, used_mib=640, reserved_mib=None)), 0).code == exit_codes.PASS


@given(st.lists(st.integers(0, TOTAL - RESERVED), min_size=1, max_size=30), st.floats(0.01, 1), st.floats(0, 3))
def test_it_never_passes_with_too_little_or_with_movement(frees: List[int], utilization: float, settle: float) -> None:
    need, waiting, step = Need(utilization), Waiting(Need(utilization), settle), 0.5
    for number, free in enumerate(frees):
        judged = gpu(free)
        verdict = waiting.judge(seen(judged), number * step)
        if verdict.code == exit_codes.PASS:
            wanted = need.of(judged)
            assert wanted is not None and free >= wanted
            settled = frees[max(0, number - int(settle / step)): number + 1]
            idle = (judged.used_mib or 0) <= 1024
            assert idle or max(settled) - min(settled) <= 2 * STABLE_MIB
            return


def test_the_holders_are_named() -> None:
    worker = GpuProcess(4711, "C", 90051, "VLLM::Worker_TP", "VLLM::Worker_TP0", "vllm", 1.0, "vllm-old.service")
    child = GpuProcess(4712, None, None, "python3", "python3 loader.py " + "x" * 80, "alice", 1.0)
    boxed = GpuProcess(4713, "C", 10, "python3", "python3", "root", 1.0, container="f" * 64, state="zombie")
    ghost = GpuProcess(4714, "C", 7, state="not_visible")
    lines = holders([gpu(10, 0, processes=(worker, child)), gpu(10, 1, processes=(worker, boxed, ghost), unattributed_mib=5000)])
    assert lines == [
        "pid 4711 VLLM::Worker_TP0 (user vllm, unit vllm-old.service) [GPU 0: 90051 MiB, GPU 1: 90051 MiB]",
        "pid 4712 python3 loader.py " + "x" * 39 + "... (user alice) [GPU 0: holds the device open]",
        "pid 4713 python3 (user root, container ffffffffffff, zombie) [GPU 1: 10 MiB]",
        "pid 4714 (not visible from here) [GPU 1: 7 MiB]",
        "nobody that the driver lists [GPU 1: 5000 MiB]",
    ]
    assert holders([gpu(10, 0, processes=(worker,)), gpu(10, 1, processes=(boxed,))], only=[1]) == [lines[2]]


def mig(index: int, *uuids: str) -> Gpu:
    """A divided GPU whose own memory can be read and is free."""
    devices = tuple(MigDevice(number, uuid, None, number, 0, total_mib=40_000, used_mib=0, free_mib=40_000)
                    for number, uuid in enumerate(uuids))
    return gpu(TOTAL - RESERVED, index, memory_type="mig", mig_devices=devices)


def test_the_whole_of_a_divided_gpu_is_nobodys() -> None:
    """vLLM would get one of the parts, whatever the memory of the whole says, and also when it says nothing."""
    for whole in (mig(0, "MIG-a", "MIG-b"), replace(mig(0, "MIG-a", "MIG-b"), total_mib=None, used_mib=None, free_mib=None)):
        for others in ((), (gpu(97000, 1),)):
            verdict = Waiting(NEED, 0).judge(seen(whole, *others), 0)
            assert verdict.code == exit_codes.ABSENT and "GPU 0 is divided" in verdict.text and "(MIG-a, MIG-b)" in verdict.text
    part = mig(0, "MIG-a", "MIG-b").of_mig(mig(0, "MIG-a", "MIG-b").mig_devices[1])
    assert Waiting(NEED, 0).judge(seen(part), 0).code == exit_codes.PASS
    verdict = Waiting(NEED, 0).judge(seen(part, gpu(97000, 2)), 0)
    assert verdict.code == exit_codes.ABSENT and "would not see GPU 2" in verdict.text
