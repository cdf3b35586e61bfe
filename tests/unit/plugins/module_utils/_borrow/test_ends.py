# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""How a borrowing ends when the command can't be ended, its unit is gone, the GPUs are not free, or systemd is slow to answer."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from ansible_collections.gpufleet.vllm.plugins.module_utils._borrow import borrowing
from ansible_collections.gpufleet.vllm.plugins.module_utils._borrow.hidden import PREFIX
from ansible_collections.gpufleet.vllm.plugins.module_utils._core.errors import GpuFleetError
from ansible_collections.gpufleet.vllm.plugins.module_utils._gpu.types import GpuProcess
from ansible_collections.gpufleet.vllm.plugins.module_utils._reclaim.done import StoppedUnit
from ansible_collections.gpufleet.vllm.plugins.module_utils._reclaim.units import stop_units
from ansible_collections.gpufleet.vllm.plugins.module_utils._service import rollback
from ansible_collections.gpufleet.vllm.plugins.module_utils._service.free import Freed
from ansible_collections.gpufleet.vllm.plugins.module_utils._systemd.journal import JournalLine
from ansible_collections.gpufleet.vllm.plugins.plugin_utils._borrow import not_put_back, rows_of
from ansible_collections.gpufleet.vllm.tests.unit.plugins.module_utils._borrow.place import (
    OLD,
    Death,
    Place,
    Program,
)


def word(result: dict[str, Any]) -> str:
    return str(rows_of({"gpu01": result})[0]["result"])


def test_what_cannot_be_ended_keeps_every_other_host_from_beginning(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    real = stop_units

    def stop(refs: Any, *more: Any) -> Any:
        if refs[0].unit.startswith(PREFIX):
            return [StoppedUnit(refs[0].unit, "failed", 30.0, (4711,), None, "processes of it survived SIGKILL", False)]
        return real(refs, *more)

    monkeypatch.setattr(borrowing, "stop_units", stop)
    done = place.asks()
    assert done["failed"] and done["put_back"] is False and "could not be ended" in done["msg"], done
    assert word(done) == "NOT PUT BACK" and not_put_back({"gpu01": done}) == ["gpu01"] and place.serving() == [OLD]


def test_a_stop_that_systemd_did_not_answer_is_asked_for_again(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    real, asked = stop_units, []

    def stop(refs: Any, *more: Any) -> Any:
        if refs[0].unit.startswith(PREFIX):
            asked.append(1)
            if len(asked) == 1:
                return [StoppedUnit(refs[0].unit, "failed", 30.0, (), None, "systemctl ran past its time", False)]
        return real(refs, *more)

    monkeypatch.setattr(borrowing, "stop_units", stop)
    assert place.asks()["put_back"] and len(asked) == 2


def test_a_command_whose_unit_is_gone_is_not_begun_again(place: Place) -> None:
    place.dies_while_it_runs()
    place.units.units.pop(place.unit())
    place.began = None
    place.live()
    done = place.result()
    assert len(place.program.starts) == 1 and done["outcome"] == "stopped" and done["failed"] and done["put_back"], done
    assert word(done) == "STOPPED" and "187.21" in done["output"] and done["seconds"] is None


def test_one_that_was_never_handed_over_is_begun(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    real = place.runner.run

    def run(argv: Any, *more: Any, **others: Any) -> Any:
        if argv[0] == "systemd-run" and not place.gives_up:
            place.gives_up = place.dead = True
            raise Death
        return real(argv, *more, **others)

    monkeypatch.setattr(place.runner, "run", run)
    with pytest.raises(Death):
        place.asks()
    place.revive(False)
    place.live()
    assert len(place.program.starts) == 1 and place.result()["outcome"] == "succeeded"


ORPHAN = {"pid": 9, "name": "VLLM::Worker"}


def _not_free(*_arguments: Any, **_more: Any) -> Freed:
    raise GpuFleetError("The memory that the command needs was not seen to come free.", ended_processes=[ORPHAN])


@pytest.mark.parametrize("serves", [True, False])
def test_what_was_ended_before_it_gave_up_is_told(place: Place, monkeypatch: pytest.MonkeyPatch, serves: bool) -> None:
    if not serves:
        place.units.stop(OLD)
    monkeypatch.setattr(borrowing, "make_free", _not_free)
    done = place.asks()
    assert done["failed"] and done["changed"] and done["ended_processes"] == [ORPHAN] and word(done) == "GAVE UP", done
    assert serves or "these vLLM processes of nobody were ended: 9" in done["msg"]


@pytest.mark.parametrize("serves", [True, False])
def test_what_is_ended_after_the_command_is_told(place: Place, monkeypatch: pytest.MonkeyPatch, serves: bool) -> None:
    if not serves:
        place.units.stop(OLD)

    def free(*_arguments: Any, **more: Any) -> Freed:
        return Freed(ended=() if "whose" in more else (ORPHAN,))

    monkeypatch.setattr(borrowing, "make_free", free)
    monkeypatch.setattr(rollback, "make_free", free)
    done = place.asks()
    assert done["outcome"] == "succeeded" and done["ended_processes"] == [ORPHAN], done


def test_what_is_ended_where_the_memory_then_does_not_come_back_is_told(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rollback, "make_free", _not_free)
    done = place.asks()
    assert done["put_back"] and done["ended_processes"] == [ORPHAN], done


def test_gpus_that_are_not_proven_free_afterwards_are_no_success(place: Place) -> None:
    place.units.stop(OLD)
    place.program = Program(leaves=(4711,))
    place.strangers_after = (GpuProcess(9001, "C", 20000, name="docker", user="bob"),)
    done = place.asks()
    assert done["outcome"] == "succeeded" and done["failed"] and done["put_back"] is False and "docker, user bob" in done["msg"], done
    assert word(done) == "NOT PUT BACK"


def test_a_driver_that_is_gone_afterwards_is_no_success_where_nothing_serves(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    place.units.stop(OLD)
    real = borrowing.Borrowing.put_back

    def put_back(self: Any, failure: Any) -> None:
        place.driver_answers = False
        real(self, failure)

    monkeypatch.setattr(borrowing.Borrowing, "put_back", put_back)
    done = place.asks()
    assert done["failed"] and "isn't known" in done["msg"] and word(done) == "NOT PUT BACK", done


@pytest.mark.parametrize(("times", "outcome"), [(3, "succeeded"), (100_000, None)])
def test_a_systemd_that_is_slow_to_answer_is_asked_again(
    place: Place, monkeypatch: pytest.MonkeyPatch, times: int, outcome: Any
) -> None:
    kind: Any = type(place.units)
    real = kind.status
    failed: list[str] = []

    def status(self: Any, unit: str) -> Any:
        if unit.startswith(PREFIX) and place.program.starts and len(failed) < times and not place.gives_up:
            failed.append(unit)
            raise GpuFleetError("A command of systemd failed: `systemctl show` (ran past its time)")
        return real(self, unit)

    monkeypatch.setattr(kind, "status", status)
    back = borrowing.Borrowing.put_back

    def put_back(self: Any, failure: Any) -> None:
        place.gives_up = True
        back(self, failure)

    monkeypatch.setattr(borrowing.Borrowing, "put_back", put_back)
    done = place.asks()
    assert done["outcome"] == outcome and done["put_back"] and "187.21" in done["output"], done
    assert outcome is not None or "ran past its time" in done["msg"]


def test_how_long_it_ran_is_systemds_word(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    kind: Any = type(place.units)
    real = kind._now

    def now(self: Any, unit: str) -> Any:
        found = real(self, unit)
        return replace(found, main_start=500.0, main_exit=500.25) if found.exec_main_code and unit.startswith(PREFIX) else found

    monkeypatch.setattr(kind, "_now", now)
    place.dies_while_it_runs()
    place.units.clock.now += 500
    place.live()
    assert place.result()["seconds"] == 0.25


@pytest.mark.parametrize("writes", [("boom",), ()])
def test_an_exit_status_of_its_own_is_not_systemds(place: Place, monkeypatch: pytest.MonkeyPatch, writes: tuple[str, ...]) -> None:
    said = [JournalLine(1.0, 4000, "(sh)", "u.service: Changing to the requested working directory failed")]
    said += [JournalLine(2.0, 4000, "sh", text) for text in writes]
    place.program = Program(rc=200)
    monkeypatch.setattr(type(place.ports().journal), "lines", lambda *_arguments: said)
    done = place.asks()
    assert done["outcome"] == ("failed" if writes else "not begun") and done["rc"] == 200, done


def test_a_borrowing_whose_job_cannot_end_it_names_what_is_stopped_for_it(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    place.dies_while_it_runs()
    monkeypatch.setattr(Place, "run_job", lambda self: None)
    said = rf"ends again and again.*may be stopped: {OLD}. Start them by hand with `systemctl start {OLD}`"
    with pytest.raises(GpuFleetError, match=said):
        place.asks(command="bench --other")
    assert place.store.exists(), "nothing of it is forgotten"
