# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Free means: every GPU, under its limit, for the whole settle time, as the driver says."""

from __future__ import annotations

from dataclasses import replace
from typing import Callable, Dict, List, Optional

import pytest

from ansible_collections.gpufleet.vllm.plugins.module_utils._gpu.types import GpuProcess, MigDevice, Snapshot
from ansible_collections.gpufleet.vllm.plugins.module_utils._reclaim.proof import (
    POLL_S,
    Proof,
    held_mib,
    prove_free,
    why_not_free,
)
from ansible_collections.gpufleet.vllm.tests.unit.plugins.module_utils._reclaim.world import (
    FakeClock,
    ScriptedReader,
    gpu,
    snapshot,
)


def prove(
    used: Callable[[float], List[Optional[int]]],
    settle: float = 1.0,
    timeout: float = 30.0,
    limit: int = 1024,
    give_up: Optional[Callable[[Snapshot], Optional[str]]] = None,
) -> Proof:
    """Prove GPUs free whose use is a function of the seconds since the beginning."""
    clock = FakeClock()
    start = clock.now
    reader = ScriptedReader(lambda: snapshot(*[gpu(index, each) for index, each in enumerate(used(clock.now - start))]))
    indices = range(len(used(0.0)))
    return prove_free(reader, list(indices), dict.fromkeys(indices, limit), settle, timeout, clock, give_up=give_up)


def test_free_memory_is_proven_after_the_settle_time() -> None:
    proof = prove(lambda now: [3, 500])
    assert proof.freed and proof.reason is None
    assert 1.0 <= proof.waited_s <= 1.0 + 2 * POLL_S
    assert proof.settle_s >= 1.0
    assert [each.index for each in proof.gpus] == [0, 1]


@pytest.mark.parametrize("delay", [0.0, 0.03, 0.5, 3.0, 10.0])
def test_it_returns_as_soon_as_the_memory_came_back_and_settled(delay: float) -> None:
    proof = prove(lambda now: [0 if now >= delay else 96801])
    assert proof.freed
    assert delay + 1.0 <= proof.waited_s <= delay + 1.0 + 2 * POLL_S


def test_one_gpu_that_is_late_keeps_all_waiting() -> None:
    proof = prove(lambda now: [0, 96801 if now < 4 else 0, 0])
    assert proof.freed and proof.waited_s >= 5.0


def test_a_moment_between_two_processes_is_no_proof() -> None:
    proof = prove(lambda now: [0 if 1.0 <= now < 1.9 else 50000], timeout=5.0)
    assert not proof.freed
    assert proof.reason == "GPU 0: 50000 MiB are held, at most 1024 count as free"


def test_memory_that_goes_on_falling_under_the_limit_is_not_stable_yet() -> None:
    # 1000 MiB at 0 s, 200 MiB less each second until it is at 0: the settle time begins anew with each step
    proof = prove(lambda now: [max(0, 1000 - 200 * int(now))])
    assert proof.freed and proof.waited_s >= 5.0 + 1.0


def test_a_little_noise_is_no_motion() -> None:
    assert prove(lambda now: [300 + (int(now * 100) % 10)]).waited_s < 1.2


def test_the_timeout_ends_it_and_says_what_is_held() -> None:
    proof = prove(lambda now: [96801, 0], timeout=3.0)
    assert not proof.freed and 3.0 <= proof.waited_s <= 3.1
    assert proof.reason is not None and "GPU 0: 96801 MiB" in proof.reason and "GPU 1" not in proof.reason


def test_free_but_not_long_enough_is_not_proven() -> None:
    proof = prove(lambda now: [0 if now >= 2.5 else 9000], timeout=3.0)
    assert not proof.freed
    assert proof.reason == "the memory is free but not yet stable for 1 s"


def test_no_settle_time_takes_the_first_reading() -> None:
    assert prove(lambda now: [0], settle=0.0).waited_s == 0.0


def test_unknown_memory_is_never_free() -> None:
    proof = prove(lambda now: [None], timeout=1.0)
    assert not proof.freed
    assert proof.reason == "GPU 0 can't be read (ok)"


def test_a_lost_gpu_is_never_free_whatever_its_numbers_say() -> None:
    reading = snapshot(gpu(0, 0, state="lost", error="GPU is lost"))
    assert why_not_free(reading, [0], {0: 1024}) == "GPU 0 can't be read (GPU is lost)"


def test_a_gpu_that_vanished_is_never_free() -> None:
    assert why_not_free(snapshot(gpu(0)), [0, 1], {0: 1024, 1: 1024}) == "GPU 1 is not there"


@pytest.mark.parametrize("reason", ["driver_hung", "no_driver", "driver_library_mismatch", "permission", "library_missing"])
def test_a_driver_beyond_reading_is_not_waited_for(reason: str) -> None:
    clock = FakeClock()
    reader = ScriptedReader(lambda: Snapshot(False, reason=reason, reason_detail="so it is"))
    proof = prove_free(reader, [0], {0: 1024}, 1.0, 60.0, clock)
    assert not proof.freed and reader.asked == 1
    assert proof.reason == "the driver can't be read (%s: so it is)" % reason


def test_a_passing_error_of_the_driver_is_waited_for() -> None:
    clock = FakeClock()
    start = clock.now
    bad = Snapshot(False, reason="error", reason_detail="unknown error")
    reader = ScriptedReader(lambda: bad if clock.now - start < 2 else snapshot(gpu(0)))
    assert prove_free(reader, [0], {0: 1024}, 1.0, 60.0, clock).freed


def test_the_caller_can_end_the_waiting_but_not_make_it_a_proof() -> None:
    asked: List[Snapshot] = []

    def give_up(reading: Snapshot) -> Optional[str]:
        asked.append(reading)
        return "enough" if len(asked) == 3 else None

    proof = prove(lambda now: [5000], give_up=give_up)
    assert (proof.freed, proof.reason, len(asked)) == (False, "enough", 3)


def test_the_caller_is_told_how_it_stands() -> None:
    clock = FakeClock()
    start = clock.now
    told: List[Proof] = []
    reader = ScriptedReader(lambda: snapshot(gpu(0, 0 if clock.now - start > 1 else 7000)))
    prove_free(reader, [0], {0: 1024}, 0.5, 10.0, clock, on_wait=told.append)
    assert told and not any(each.freed for each in told)
    assert "7000 MiB" in str(told[0].reason) and told[-1].reason == "the memory is free but not yet stable for 0.5 s"


def test_limits_are_per_gpu() -> None:
    limits: Dict[int, int] = {0: 1024, 1: 30000}
    assert why_not_free(snapshot(gpu(0, 10), gpu(1, 29999)), [0, 1], limits) is None
    assert why_not_free(snapshot(gpu(0, 1025), gpu(1, 29999)), [0, 1], limits) is not None


def test_on_unified_memory_the_processes_are_the_measure() -> None:
    mine = GpuProcess(pid=10, type="C", used_mib=40000)
    unified = gpu(0, 60000, (mine,), memory_type="unified")
    assert held_mib(unified) == 40000
    assert held_mib(replace(unified, processes=())) == 0, "the driver was asked, and lists nobody"
    assert held_mib(replace(unified, processes=(replace(mine, used_mib=None),))) is None


@pytest.mark.parametrize("hung", [False, True])
def test_on_unified_memory_a_list_that_was_not_read_is_no_empty_one(hung: bool) -> None:
    words = "process list: driver_hung"
    blind = gpu(0, 60000, (), memory_type="unified", processes_reliable=False, unanswered=hung, error=words)
    assert held_mib(blind) is None
    clock = FakeClock()
    proof = prove_free(ScriptedReader(lambda: snapshot(blind)), [0], {0: 1024}, 0.2, 1.0, clock)
    assert (proof.freed, proof.reason) == (False, "GPU 0 can't be read (%s)" % words)
    discrete = gpu(0, 500, (), processes_reliable=False, unanswered=hung, error=words)
    assert held_mib(discrete) == 500, "there the memory itself is the measure"


def test_on_unified_memory_the_driver_has_to_let_go_of_what_has_ended() -> None:
    clock = FakeClock()
    start = clock.now
    gone = GpuProcess(pid=10, type="C", used_mib=80000, state="gone")
    reader = ScriptedReader(
        lambda: snapshot(gpu(0, 90000, (gone,) if clock.now - start < 3.0 else (), memory_type="unified"))
    )
    proof = prove_free(reader, [0], {0: 1024}, 0.5, 30.0, clock)
    assert proof.freed and proof.waited_s >= 3.5


def test_unified_memory_is_read_with_its_processes() -> None:
    clock = FakeClock()
    asked: List[bool] = []

    class Reader(ScriptedReader):
        def snapshot(self, gpus: object = None, processes: bool = True) -> Snapshot:
            asked.append(processes)
            found = (GpuProcess(pid=10, type="C", used_mib=40000),) if processes else ()
            return snapshot(gpu(0, 60000, found, memory_type="unified"))

    proof = prove_free(Reader(snapshot), [0], {0: 1024}, 0.2, 1.0, clock)
    assert not proof.freed and asked[0] is False and all(asked[1:])


def test_a_mig_parent_that_cannot_be_read_is_the_sum_of_its_instances() -> None:
    devices = tuple(MigDevice(index, "MIG-%d" % index, None, index, 0, used_mib=used) for index, used in ((0, 100), (1, 7000)))
    assert held_mib(gpu(0, None, memory_type="mig", mig_devices=devices)) == 7100
    unknown = devices + (MigDevice(2, "MIG-2", None, 2, 0),)
    assert held_mib(gpu(0, None, memory_type="mig", mig_devices=unknown)) is None
