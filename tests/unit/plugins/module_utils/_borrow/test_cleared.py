# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A borrowing whose job died, met by whoever comes next: its record stays until everything that it has stopped is back."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.gpufleet.vllm.plugins.module_utils._core.errors import GpuFleetError
from ansible_collections.gpufleet.vllm.plugins.module_utils._core.host_lock import HostLock
from ansible_collections.gpufleet.vllm.plugins.module_utils._job import underway
from ansible_collections.gpufleet.vllm.plugins.module_utils._job.abandoned import clear
from ansible_collections.gpufleet.vllm.plugins.module_utils._job.change import change
from ansible_collections.gpufleet.vllm.plugins.module_utils._service.parameters import to_request
from ansible_collections.gpufleet.vllm.tests.unit.plugins.module_utils._borrow.place import OLD, Place, Program, patch

OTHER = "bench --other"


def borrows(place: Place) -> Any:
    return place.asks(command=OTHER)


def changes_a_service(place: Place) -> Any:
    params = {"name": "old", "state": "stopped", "stop_timeout": 5}
    return change(params, to_request(params), place.ports(), False)


def record(place: Place) -> dict[str, Any]:
    found = place.store.load()
    assert found is not None
    return found


def each_death(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, program: Program) -> Any:
    """A host after each possible death of a borrowing, the job's and the module's."""
    patch(monkeypatch)
    number, died = 0, True
    while died:
        number += 1
        place = Place.that_serves(tmp_path / ("host-%d" % number))
        place.program = Program(**{**program.__dict__, "starts": []})
        died = place.dies_at(number)
        place.units.clock.now += 60.0
        yield number, place
    assert number > 8


@pytest.mark.parametrize("program", [Program(), Program(rc=1)], ids=["works", "fails"])
def test_after_any_death_the_next_borrowing_finds_everything_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, program: Program
) -> None:
    for number, place in each_death(tmp_path, monkeypatch, program):
        runs = place.asks(command=OTHER)
        assert runs["services"] and runs["put_back"] and place.serving() == [OLD], (number, runs)
        assert not place.store.exists() and len([each for each in place.program.starts if OTHER in each]) == 1, number
        assert len(place.program.starts) <= 2, (number, "the first was begun twice")


@pytest.mark.parametrize("later", [borrows, changes_a_service])
def test_after_any_death_a_job_that_cannot_work_loses_no_record_while_something_is_down(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, later: Any
) -> None:
    """Also where the first run's end was told already."""
    down_at = []
    for number, place in each_death(tmp_path, monkeypatch, Program()):
        down = place.serving() == []
        with monkeypatch.context() as broken:
            broken.setattr(Place, "run_job", lambda self: None)
            broken.setattr(underway, "abandoned", lambda _record, _ports: True)
            try:
                later(place)
            except GpuFleetError as exc:
                assert not down or later is changes_a_service or "systemctl start " + OLD in exc.msg, (number, exc.msg)
        if down:
            down_at.append(number)
            assert record(place)["undo"]["stopped"], (number, "who would put it back?")
    assert down_at


def ended_but_not_forgotten(place: Place, put_back: bool) -> None:
    """The job has told its end and could not remove its record; then it was gone."""
    place.dies_while_it_runs()
    kept = record(place)
    place.live()
    result = dict(place.result(), put_back=put_back)
    last = json.loads(Path(place.paths.change, "last.json").read_text())
    Path(place.paths.change, "last.json").write_text(json.dumps(dict(last, result=result)))
    Path(place.paths.change, "record.json").write_text(json.dumps(kept))


def test_who_does_not_wait_is_told_which_borrowing_to_follow_first(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    place.dies_while_it_runs()
    kept = record(place)
    with monkeypatch.context() as stands:
        stands.setattr(Place, "run_job", lambda self: None)  # the command goes on for long
        with pytest.raises(GpuFleetError, match=rf"may be stopped: {OLD}\. Start them by hand with `systemctl start {OLD}`") as first:
            place.asks(command=OTHER, wait=False)
    told = first.value.result
    assert told["job"]["first"] and told["job"]["id"] == kept["id"] and [each["action"] for each in told["actions"]] == ["complete"]
    place.live()
    begun = place.asks(command=OTHER, wait=False)
    assert "first" not in begun["job"] and begun["job"]["id"] != kept["id"]


def test_an_end_that_is_told_is_not_followed_once_more(place: Place) -> None:
    ended_but_not_forgotten(place, True)
    assert "first" not in place.asks(command=OTHER, wait=False)["job"]


def test_what_has_ended_and_was_put_back_is_only_forgotten(place: Place) -> None:
    ended_but_not_forgotten(place, True)
    result, starts = place.result(), len(place.program.starts)
    place.units.log.clear()
    place.live()
    assert not place.store.exists() and place.result() == result
    assert place.units.log == [] and len(place.program.starts) == starts, "nothing of it is done again"


def test_what_has_ended_and_was_not_put_back_is_put_back_by_the_next_job(place: Place) -> None:
    ended_but_not_forgotten(place, False)
    place.units.stop(OLD)
    place.live()
    assert not place.store.exists() and place.serving() == [OLD] and place.result()["put_back"]


def test_its_record_stays_where_the_job_cannot_put_it_back_and_says_how_to(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    ended_but_not_forgotten(place, False)
    place.units.stop(OLD)
    monkeypatch.setattr(Place, "run_job", lambda self: None)
    with pytest.raises(GpuFleetError, match=rf"not put back: {OLD}\. Start them by hand with `systemctl start {OLD}`, then run again"):
        borrows(place)
    assert place.store.exists()


def test_it_is_forgotten_once_what_it_stopped_was_started_by_hand(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    ended_but_not_forgotten(place, False)
    monkeypatch.setattr(Place, "run_job", lambda self: None)
    clear(record(place), place.ports(), place.store)
    assert not place.store.exists() and place.serving() == [OLD]


def test_another_record_than_the_one_that_was_looked_at_is_not_touched(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    ended_but_not_forgotten(place, True)
    found = record(place)
    another = dict(found, id="of-somebody-else")

    def meanwhile(*_arguments: Any) -> dict[str, Any]:
        Path(place.paths.change, "record.json").write_text(json.dumps(another))
        return {}

    monkeypatch.setattr(Place, "run_job", lambda self: None)
    monkeypatch.setattr(underway, "wait_for_end", meanwhile)
    clear(found, place.ports(), place.store)
    assert record(place)["id"] == "of-somebody-else"


def test_nobody_can_begin_a_change_between_the_look_and_the_removal(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    ended_but_not_forgotten(place, True)
    tried = []

    def abandoned(_record: Any, _ports: Any) -> bool:
        with pytest.raises(GpuFleetError, match="clearing up"), HostLock(place.paths.run, "another"):
            pass
        tried.append(1)
        return True

    monkeypatch.setattr(Place, "run_job", lambda self: None)
    monkeypatch.setattr(underway, "abandoned", abandoned)
    clear(record(place), place.ports(), place.store)
    assert tried == [1] and not place.store.exists()


def test_one_that_ended_while_it_was_cleared_is_no_failure(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    place.dies_while_it_runs()
    found = record(place)

    def over(*_arguments: Any) -> dict[str, Any]:
        place.store.discard()
        raise GpuFleetError("The change has ended, and another one after it.")

    monkeypatch.setattr(Place, "run_job", lambda self: None)
    monkeypatch.setattr(underway, "wait_for_end", over)
    clear(found, place.ports(), place.store)
