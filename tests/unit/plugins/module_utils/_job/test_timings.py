# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a change that was interrupted says it took: the whole of it by phase, and no figure where nothing was measured."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Callable

import pytest

from ansible_collections.gpufleet.vllm.plugins.module_utils._job.record import Record
from ansible_collections.gpufleet.vllm.tests.unit.plugins.module_utils._job.host import Host, patch
from ansible_collections.gpufleet.vllm.tests.unit.plugins.module_utils._job.test_death import (
    Case,
    failing_swap,
    overlapped,
    swap,
)

PHASES = ("preflight", "warm", "drain", "stop", "settle", "load")
# Nobody looked for so long after the death.
GONE_S = 20.0

Fresh = Callable[[Callable[[Host], dict[str, Any]]], Case]


@pytest.fixture
def fresh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Fresh:
    """Makes cases, each in a directory of its own."""
    patch(monkeypatch)
    count = iter(range(100000))
    return lambda scenario: Case(scenario, tmp_path / str(next(count)))


def killed(fresh: Fresh, scenario: Callable[[Host], dict[str, Any]], stage: str, last: bool = False) -> Host:
    """The first moment (or the last one) at which the job can be killed in this stage; then it lies there for a while."""
    found = None
    for k in range(1, 60):
        case = fresh(scenario)
        case.host.begin(**case.params)
        case.host.live(die_at=k)
        record = case.host.store.load()
        if record is None or not case.host.dead:
            break
        if record["stage"] == stage:
            found = case.host
            if not last:
                break
    assert found is not None, stage
    Host.current = found
    found.revive(False)
    found.units.clock.now += GONE_S
    return found


@pytest.mark.parametrize(("stage", "last"), [
    ("begun", True), ("staging", False), ("staging", True), ("stopping", False), ("stopping", True),
    ("starting", False), ("starting", True), ("committing", False), ("committing", True),
])  # fmt: skip
def test_a_swap_that_was_killed_once_is_told_with_its_times(fresh: Fresh, stage: str, last: bool) -> None:
    host = killed(fresh, swap, stage, last)
    host.live()
    result = host.result()
    timings = result["timings"]
    assert not result.get("failed") and result["ready"], result
    assert timings["preflight"] < 1.0, "the time of somebody who was gone is no preflight's"
    assert timings["load"] >= 1.0 and timings["downtime"] >= timings["load"] and timings["settle"] >= 0.5, timings
    assert sum(timings[phase] for phase in PHASES) <= timings["total"] + 0.01, timings
    assert ({"stopping": timings["stop"], "starting": timings["load"]}.get(stage) or GONE_S) >= GONE_S
    assert (timings["downtime"] >= GONE_S) is (stage in ("stopping", "starting")), "from the stop on nobody served until it was seen"


def test_an_overlapped_one_that_was_killed_while_the_old_one_stops_has_its_times(fresh: Fresh) -> None:
    host = killed(fresh, overlapped, "committing", last=True)
    host.live()
    timings = host.result()["timings"]
    assert timings["load"] >= 1.0 and timings["settle"] >= 0.5 and timings["downtime"] == 0.0 and timings["preflight"] < 1.0, timings


def test_one_that_is_undone_after_a_power_cut_tells_what_was_measured(fresh: Fresh) -> None:
    host = killed(fresh, swap, "starting")
    host.revive(True)
    host.live()
    result = host.result()
    timings = result["timings"]
    assert result["rolled_back"] and timings["settle"] >= 0.5 and timings["load"] >= GONE_S and timings["downtime"] > GONE_S, timings
    assert timings["warm"] is None, "it did not come to that"


def test_a_power_cut_at_the_end_does_not_lengthen_the_downtime(fresh: Fresh) -> None:
    host = killed(fresh, swap, "committing", last=True)
    host.revive(True)
    host.units.clock.now += 500.0
    host.live()
    timings = host.result()["timings"]
    assert not host.result().get("failed") and 1.0 <= timings["downtime"] < GONE_S and timings["load"] < GONE_S, timings


def test_a_failure_has_no_figure_for_what_it_did_not_come_to(fresh: Fresh) -> None:
    case = fresh(failing_swap)
    case.host.begin(**case.params)
    case.host.live()
    timings = case.host.result()["timings"]
    assert timings["drain"] is None and timings["warm"] is None and timings["load"] > 0, timings


def test_a_record_of_an_earlier_version_is_read(fresh: Fresh) -> None:
    host = killed(fresh, swap, "starting")
    found = host.store.load()
    assert found is not None
    old = {name: value for name, value in found.items() if name not in ("timings", "stage_at")}
    assert Record.from_json(old).timings_until(1e9) == {}
