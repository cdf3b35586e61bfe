# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""How much has to be free, and who stands in the way."""

from __future__ import annotations

import pytest

from ansible_collections.gpufleet.vllm.plugins.module_utils._gpu.types import Gpu, GpuProcess, MigDevice
from ansible_collections.gpufleet.vllm.plugins.module_utils._service.memory import (
    Limit,
    Need,
    as_now,
    free_limits,
    holders_text,
    shortages,
)
from ansible_collections.gpufleet.vllm.tests.unit.plugins.module_utils._service.world import TOTAL_MIB, gpu, snapshot

NEED = Need(0.92)
NEEDED = 90057  # ceil(97887 * 0.92)


def process(pid: int, used: int | None, unit: str | None = None, **more: object) -> GpuProcess:
    return GpuProcess(pid, "C", used, name="python3", user="alice", unit=unit, **more)  # type: ignore[arg-type]


def test_the_need_is_vllms_own_formula() -> None:
    assert NEED.mib(gpu(0)) == NEEDED
    assert Need(0.92, 100).mib(gpu(0)) == NEEDED + 100
    assert NEED.mib(gpu(0, total_mib=None)) is None
    assert NEED.max_used_mib(gpu(0)) == TOTAL_MIB - NEEDED
    assert NEED.max_used_mib(gpu(0, reserved_mib=638)) == TOTAL_MIB - 638 - NEEDED
    assert Need(1.0).max_used_mib(gpu(0, reserved_mib=638)) == 0


def test_what_is_about_to_be_stopped_is_no_hindrance() -> None:
    busy = gpu(0, 96801, [process(7, 96801, "vllm-old.service")])
    assert shortages([busy], NEED, frozenset({"vllm-old.service"}), frozenset()) == []
    assert shortages([busy], NEED, frozenset(), frozenset({7})) == []
    found, = shortages([busy], NEED, frozenset(), frozenset())
    assert found.certain and found.possible_mib == TOTAL_MIB - 96801 and [each.pid for each in found.holders] == [7]


def test_memory_that_nobody_is_seen_to_hold_may_yet_come_back() -> None:
    found, = shortages([gpu(0, 50000)], NEED, frozenset(), frozenset())
    assert not found.certain and found.holders == []


def test_a_process_whose_memory_is_unknown_is_given_the_benefit_of_the_doubt() -> None:
    busy = gpu(0, 96801, [process(7, None, "vllm-old.service")])
    assert shortages([busy], NEED, frozenset({"vllm-old.service"}), frozenset()) == []


def test_a_card_that_is_too_small_is_certain() -> None:
    small, = shortages([gpu(0, reserved_mib=638)], Need(1.0), frozenset(), frozenset())
    assert small.certain and small.holders == []


def test_every_holder_is_named_with_what_a_person_needs() -> None:
    text = holders_text([gpu(3, 96801, [process(4711, 96801, "training.service")]), gpu(4, 2)], {3: 1024, 4: 1024})
    for part in ("GPU 3", "96,801 MiB used", "pid 4711", "python3", "user alice", "training.service", "holds 96,801 MiB"):
        assert part in text
    assert "GPU 4" not in text
    assert "no process that the driver or /proc shows" in holders_text([gpu(3, 5000)], {3: 1024})
    assert "unknown" in holders_text([gpu(3, None)], {3: 1024})


def card(first: int, second: int) -> Gpu:
    """A card cut in two, of which so much is used; a process of each half is listed for the whole card."""
    halves = tuple(
        MigDevice(number, "MIG-%d" % number, None, number, 0, total_mib=40000, used_mib=used, free_mib=40000 - used, reserved_mib=0)
        for number, used in enumerate((first, second))
    )
    holders = [process(7, None, "vllm-neighbour.service")] if first + second else []
    return gpu(0, first + second, holders, memory_type="mig", mig_devices=halves)


def test_an_instance_is_judged_by_its_own_memory() -> None:
    """What a neighbour holds on the other half of the card is no hindrance, and the card's size is not the instance's."""
    whole = card(0, 38000)
    first, second = (whole.of_mig(device) for device in whole.mig_devices)
    assert shortages([first], Need(0.9), frozenset(), frozenset()) == []
    full, = shortages([second], Need(0.9), frozenset(), frozenset())
    assert (full.needed_mib, full.possible_mib, full.certain) == (36000, 2000, False)
    assert shortages([second], Need(0.9), frozenset({"vllm-neighbour.service"}), frozenset()) == []
    small, = shortages([first], Need(0.9, 8000), frozenset(), frozenset())
    assert small.certain, "no waiting makes an instance larger"
    assert free_limits([first], Need(0.9), frozenset(), frozenset()) == [Limit(0, 1024, 4000, "MIG-0", True)]
    assert "MIG-1 (38,000 MiB used)" in holders_text([second], {})


@pytest.mark.parametrize(("there", "staying"), [
    (gpu(0, 0), False),
    (gpu(0, 500, [process(7, 500, "vllm-old.service")]), False),
    (gpu(0, 500, [process(9, 500, "vllm-old.service"), process(7, 0, "somebody.service")]), True),
    (gpu(0, 500, [process(7, None)]), True),
    (gpu(0, 500, [process(7, 400)]), True),
    (gpu(0, 500, [process(7, 400, state="gone")]), False),
    (gpu(0, 500, [process(8, 400)]), False),
    (gpu(0, 500, processes_reliable=False), True),
])  # fmt: skip
def test_somebody_stays_by_who_is_there_and_not_by_how_much(there: Gpu, staying: bool) -> None:
    found, = free_limits([there], NEED, frozenset({"vllm-old.service"}), frozenset({8}))
    assert found.staying is staying


def test_others_on_a_divided_card_stay() -> None:
    whole = card(0, 5000)
    first = whole.of_mig(whole.mig_devices[0])
    assert [each.staying for each in free_limits([first], Need(0.9), frozenset(), frozenset())] == [True]
    assert [each.staying for each in free_limits([first], Need(0.9), frozenset({"vllm-neighbour.service"}), frozenset())] == [False]


def test_the_same_instances_are_found_again() -> None:
    before = card(0, 38000)
    later = snapshot([card(12, 0), gpu(1, 5)])
    chosen = [before.of_mig(before.mig_devices[0]), gpu(1), gpu(9)]
    assert [(each.index, each.used_mib) for each in as_now(chosen, later)] == [(0, 12), (1, 5)]
