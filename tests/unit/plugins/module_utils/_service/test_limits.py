# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A change of which everything takes as long as it may ends before whoever waits for it gives up."""

from __future__ import annotations

from pathlib import Path

import pytest

from ansible_collections.gpufleet.vllm.plugins.module_utils._core.errors import GpuFleetError
from ansible_collections.gpufleet.vllm.plugins.module_utils._service import transaction
from ansible_collections.gpufleet.vllm.plugins.module_utils._service.arguments import ARGUMENT_SPEC
from ansible_collections.gpufleet.vllm.plugins.module_utils._service.request import Request
from ansible_collections.gpufleet.vllm.plugins.module_utils._unit.change_limits import LOAD_AGAIN_S, longest_s
from ansible_collections.gpufleet.vllm.tests.unit.plugins.module_utils._service.test_transaction import NEW, OLD, Swap
from ansible_collections.gpufleet.vllm.tests.unit.plugins.module_utils._service.world import Behaviour, status


@pytest.mark.parametrize(("ready", "drain", "stop"), [(1800.0, 0.0, 60.0), (60.0, 0.0, 60.0), (7200.0, 300.0, 60.0), (600.0, 30.0, 900.0)])
def test_the_longest_change_that_there_can_be_is_over_in_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ready: float, drain: float, stop: float
) -> None:
    swap = Swap(tmp_path, ready_timeout=ready, drain_timeout=drain, stop_timeout=stop)
    world, clock = swap.world, swap.world.clock
    second = "vllm-second.service"
    swap.more = [("second", 8001)]
    for unit, port in ((OLD, 8000), (second, 8001)):
        world.units[unit] = status(unit, "active", unit_file_state="enabled")
        world.started_at[unit] = 0.0
        world.ports[unit] = port
        world.requests[port] = 10**6
    world.behaviours = {unit: Behaviour(stubborn=True) for unit in (OLD, second)}
    world.behaviours[NEW] = Behaviour(load=1e9, stubborn=True)
    killed: list[float] = []

    def gone(unit: str) -> None:
        killed.append(clock.now)
        swap.used = dict.fromkeys(range(4), 90000)  # and the driver is slow to notice
        world.behaviours[unit] = Behaviour(load=max(ready, LOAD_AGAIN_S) - 10.0)

    world.on_stop = gone
    sleep = clock.sleep

    def passes(seconds: float) -> None:
        sleep(seconds)
        if killed and clock.now - killed[-1] > 115.0:
            swap.used = dict.fromkeys(range(4), 0)

    monkeypatch.setattr(clock, "sleep", passes)
    # The plan of this small world has no model on a disk.
    monkeypatch.setattr(transaction.Transaction, "_warm", lambda one: one._timed("warm", sleep, ready))
    begun = clock.now
    with pytest.raises(GpuFleetError) as failure:
        swap.run()
    took = clock.now - begun
    assert "serves old again" in failure.value.msg and "serves second again" in failure.value.msg
    assert took > 2 * ready + drain + stop + max(ready, LOAD_AGAIN_S), "not all of it was as late as may be"
    undone_before = stop + max(ready, LOAD_AGAIN_S)
    assert took + undone_before < longest_s(ready, drain, stop, 0.0)


def test_its_defaults_are_the_modules() -> None:
    request = Request(name="x")
    assert longest_s() == longest_s(request.ready_timeout, request.drain_timeout, request.stop_timeout)
    assert longest_s() == longest_s(reconnect=ARGUMENT_SPEC["reconnect_timeout"]["default"])
