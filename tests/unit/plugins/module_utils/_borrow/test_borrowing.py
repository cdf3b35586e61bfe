# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""GPUs are borrowed and given back, whatever the command does and whoever dies at whatever moment."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.gpufleet.vllm.plugins.module_utils._core.errors import GpuFleetError
from ansible_collections.gpufleet.vllm.plugins.module_utils._gpu.types import GpuProcess
from ansible_collections.gpufleet.vllm.plugins.module_utils._job.change import change
from ansible_collections.gpufleet.vllm.plugins.module_utils._service.parameters import to_request
from ansible_collections.gpufleet.vllm.plugins.plugin_utils._borrow import rows_of
from ansible_collections.gpufleet.vllm.tests.unit.plugins.module_utils._borrow.place import (
    OLD,
    Place,
    Program,
    patch,
)
from ansible_collections.gpufleet.vllm.tests.unit.plugins.module_utils._service.world import Behaviour


def order(place: Place) -> list[str]:
    """What happened to units, in order, with the command's own name left out."""
    return [" ".join("command" if "gpufleet-borrow" in word else word for word in entry.split()) for entry in place.units.log]


def test_what_serves_is_stopped_the_command_runs_and_it_serves_again(place: Place) -> None:
    place.units.log.clear()
    done = place.asks()
    assert (done["outcome"], done["rc"], done["put_back"], done["failed"], done["changed"]) == ("succeeded", 0, True, False, True), done
    assert order(place) == ["enable gpufleet-change.service", f"stop {OLD}", "begin the command", "stop command", f"start {OLD}"]
    assert done["output"] == "working\n187.21 GB/s\n" and not done["output_truncated"]
    assert done["services"] == [{"unit": OLD, "name": "old", "served_name": "old", "gpus": [0, 1], "before": "serves", "served": True,
                                 "back": True, "seen": "serves again"}]  # fmt: skip
    assert done["gpus"] == [0, 1] and [gpu["index"] for gpu in done["gpus_after"]] == [0, 1]
    assert done["timings"]["command"] >= 5 and done["timings"]["downtime"] >= 5 and done["left_behind"] == []
    words = place.program.starts[0]
    for word in ("--setenv=CUDA_VISIBLE_DEVICES=0,1", "--setenv=CUDA_DEVICE_ORDER=PCI_BUS_ID", "--setenv=GPUFLEET_GPU_UUIDS=GPU-0,GPU-1",
                 "--property=RuntimeMaxSec=60", "--property=KillMode=control-group", "--uid=root"):  # fmt: skip
        assert word in words, words
    assert words[words.index("--") + 1 :] == ["/bin/sh", "-c", "bench --all"]
    assert place.serving() == [OLD] and not place.store.exists()


@pytest.mark.parametrize(
    ("program", "outcome", "said"),
    [
        (Program(rc=3), "failed", "it ended with exit status 3"),
        (Program(rc=127), "failed", "a command that isn't there"),
        (Program(rc=3, seconds=0.0, begin_rc=1), "failed", "it ended with exit status 3"),
        (Program(signal=9), "killed", "ended by signal 9"),
        (Program(hangs=True), "timed out", "within its limit of 60 s"),
    ],
    ids=["fails", "is not there", "fails at once", "is killed", "hangs"],
)
def test_the_service_comes_back_whatever_the_command_did(place: Place, program: Program, outcome: str, said: str) -> None:
    place.program = program
    done = place.asks()
    assert done["failed"] and done["outcome"] == outcome and said in done["msg"], done
    assert done["put_back"] and f"{OLD} serves old again" in done["msg"]
    assert place.serving() == [OLD]
    assert done["seconds"] < 70


def test_what_the_command_leaves_behind_is_named(place: Place) -> None:
    place.program = Program(leaves=(4711,))
    done = place.asks()
    assert not done["failed"] and [(each["pid"], each["gpus"]) for each in done["left_behind"]] == [(4711, [{"gpu": 1, "used_mib": 4096}])]


def test_check_mode_touches_nothing(place: Place) -> None:
    before = place.snapshot()
    place.units.log.clear()
    planned = place.asks(check=True)
    assert [step["action"] for step in planned["actions"]] == ["write", "enable", "stop", "prove_free", "run", "start"]
    assert planned["changed"] and planned["put_back"] is None and place.units.log == [] and place.snapshot() == before
    assert not place.store.exists() and place.program.starts == []


def test_somebody_elses_memory_is_refused_before_anything_is_stopped(place: Place) -> None:
    place.strangers = (GpuProcess(9001, "C", 2048, name="train.py", user="bob"),)
    place.units.log.clear()
    with pytest.raises(GpuFleetError, match=r"somebody else is on them.*train\.py, user bob.*Nothing was touched"):
        place.asks()
    assert place.units.log == [] and place.serving() == [OLD]
    assert place.asks(gpus=["0"])["put_back"], "a neighbour on another GPU is none of this borrowing's"


@pytest.mark.parametrize(
    "stranger",
    [GpuProcess(9001, "C", None, name="train.py", user="bob"),
     GpuProcess(9001, "C", 20000, name="train.py", user="bob", state="not_visible"),
     GpuProcess(9001, "C", 20000, name="train.py", user="bob", state="zombie")],
    ids=["an unknown amount", "not visible", "zombie"],
)  # fmt: skip
def test_a_stranger_counts_in_every_state_but_gone(place: Place, stranger: GpuProcess) -> None:
    place.strangers, place.unlisted_mib = (stranger,), 20000 if stranger.used_mib is None else 0
    place.units.log.clear()
    with pytest.raises(GpuFleetError, match=r"somebody else is on them.*train\.py.*Nothing was touched"):
        place.asks()
    assert place.units.log == []


@pytest.mark.parametrize(
    "nobody",
    [GpuProcess(9001, "C", 20000, name="train.py", state="gone"), GpuProcess(9001, "C", None, name="train.py"),
     GpuProcess(9001, None, None, name="dcgm-exporter")],
    ids=["gone", "an amount that is small by the card's own", "a monitor"],
)  # fmt: skip
def test_what_is_proven_to_be_small_is_no_stranger(place: Place, nobody: GpuProcess) -> None:
    place.strangers, place.unlisted_mib = (nobody,), 500
    assert place.asks(check=True)["changed"]


@pytest.mark.parametrize(("mib", "refused"), [(600, False), (1900, False), (20000, True)])
def test_memory_that_no_process_accounts_for_is_refused_but_for_the_drivers_own(place: Place, mib: int, refused: bool) -> None:
    place.unlisted_mib = mib
    place.units.log.clear()
    if refused:
        with pytest.raises(GpuFleetError, match=r"GPU 1 \(110,000 MiB used, 20,000 MiB of them by no process.*fuser.*Nothing was touched"):
            place.asks()
        assert place.units.log == [] and place.serving() == [OLD]
    else:
        assert place.asks(check=True)["changed"]


@pytest.mark.parametrize(
    ("behaviour", "said"),
    [(Behaviour(load=1.0, refuses=401), "old runs again, but it refuses the API key of its own declaration"),
     (Behaviour(load=1.0, completes=False, rate=50.0), "old runs again, too busy to answer")],
    ids=["another key", "busy"],
)  # fmt: skip
def test_one_that_was_not_seen_to_serve_is_not_said_to(
    place: Place, monkeypatch: pytest.MonkeyPatch, behaviour: Behaviour, said: str
) -> None:
    kind: Any = type(place.units)
    real = kind.bring_up

    def bring_up(self: Any, unit: str) -> None:
        real(self, unit)
        self.behaviours[unit] = behaviour

    monkeypatch.setattr(kind, "bring_up", bring_up)
    done = place.asks()
    assert done["put_back"] and rows_of({"gpu01": done})[0]["services"] == said, done["services"]


def test_a_service_that_would_come_up_as_something_else_is_refused(place: Place) -> None:
    config = Path(place.paths.config, "old.yaml")
    os.utime(config)
    state = place.units.units[OLD]
    place.units.units[OLD] = type(state)(**{**state.__dict__, "main_start": config.stat().st_mtime - 60})
    with pytest.raises(GpuFleetError, match="older than .*old.yaml, so that something else might come up"):
        place.asks()
    assert place.serving() == [OLD]


def test_what_nobody_heard_of_is_told_to_the_same_request_and_run_once(place: Place) -> None:
    place.program = Program(rc=3)
    place.asks()
    last = json.loads(Path(place.paths.change, "last.json").read_text())
    assert last["received"] is True
    assert place.asks()["job"]["attached"] is False and len(place.program.starts) == 2, "what failed and was heard of is run anew"
    last = json.loads(Path(place.paths.change, "last.json").read_text())
    del last["received"]
    Path(place.paths.change, "last.json").write_text(json.dumps(last))
    told = place.asks()
    assert told["job"]["attached"] and "nobody had heard of" in told["warnings"][0] and len(place.program.starts) == 2
    assert not place.asks()["job"]["attached"] and len(place.program.starts) == 3


def unheard(place: Place) -> None:
    last = json.loads(Path(place.paths.change, "last.json").read_text())
    last.pop("received", None)
    Path(place.paths.change, "last.json").write_text(json.dumps(last))


@pytest.mark.parametrize("program", [Program(), Program(rc=3)], ids=["worked", "failed"])
def test_whoever_does_not_wait_is_told_in_full_what_nobody_heard_of(place: Place, program: Program) -> None:
    place.program = program
    place.asks()
    unheard(place)
    for more in ({"wait": False}, {"check": True}):
        told = place.asks(**more)
        assert "nobody had heard of" in told["warnings"][0] and told["job"]["ended"].startswith("20") and told["output"], told
        assert told["failed"] == bool(program.rc) and len(place.program.starts) == 1
    last = place.store.last()
    assert last is not None and not last.get("received"), "who only begins to follow has not heard it yet"


@pytest.mark.parametrize("wait", [True, False])
def test_force_runs_anew_what_nobody_heard_of(place: Place, wait: bool) -> None:
    place.asks()
    unheard(place)
    assert not place.asks(force=True, wait=wait)["job"]["attached"] and len(place.program.starts) == 2


def test_a_result_stands_until_it_is_forced_or_something_else_is_asked_for(place: Place) -> None:
    first = place.asks()
    place.units.log.clear()
    before = place.snapshot()
    for check in (True, False):
        again = place.asks(check=check)
        assert (again["changed"], again["outcome"], again["output"], again["actions"]) == (False, "succeeded", first["output"], []), again
        assert "its result stands" in again["detail"] and again["put_back"] is None and "job" not in again
    assert place.units.log == [] and place.snapshot() == before and len(place.program.starts) == 1
    assert place.asks(force=True)["changed"] and len(place.program.starts) == 2
    assert place.asks(command="bench --more")["changed"] and len(place.program.starts) == 3
    assert place.asks()["changed"] and len(place.program.starts) == 4, "something else was run in between"


def _stopped(place: Place) -> None:
    params = {"name": "old", "state": "stopped", "stop_timeout": 5}
    assert change(params, to_request(params), place.ports(), False)["changed"]


def _restarted(place: Place) -> None:
    place.units.stop(OLD)
    place.units.start(OLD)
    place.serving()


@pytest.mark.parametrize("meanwhile", [_stopped, _restarted, lambda place: place.revive(True)], ids=["stopped", "restarted", "booted"])
def test_a_result_does_not_stand_when_what_was_put_back_is_another(place: Place, meanwhile: Any) -> None:
    place.asks()
    meanwhile(place)
    assert place.asks()["changed"] and len(place.program.starts) == 2


def test_where_nothing_serves_the_command_runs_all_the_same(place: Place) -> None:
    place.units.stop(OLD)
    done = place.asks()
    assert done["outcome"] == "succeeded" and done["services"] == [] and done["put_back"] and place.serving() == []


@pytest.mark.parametrize("reboot", [False, True], ids=["job", "host"])
@pytest.mark.parametrize("program", [Program(), Program(rc=1), Program(leaves=(4711,))], ids=["works", "fails", "leaves"])
def test_a_death_at_every_single_step_leaves_a_host_that_serves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reboot: bool, program: Program
) -> None:
    patch(monkeypatch)
    last, number = 999, 0
    while number < last:
        number += 1
        place = Place.that_serves(tmp_path / ("host-%d" % number))
        place.program = Program(**{**program.__dict__, "starts": []})
        died = place.dies_at(number)
        last = number if not died else last
        place.revive(reboot)
        _lives_on(place, number)
        if reboot and died and place.program.starts:
            assert len(place.program.starts) == 1, "a command that may have brought the host down is not run again by itself"
    assert last > 8


def _lives_on(place: Place, number: int) -> None:
    """The job is started again, by systemd or at boot, as long as there is a record; then the host is at rest."""
    for _attempt in range(3):
        if place.store.exists():
            place.live()
    said: Any = place.describe()
    assert not place.store.exists(), (number, said)
    assert place.serving() == [OLD], (number, said)
    assert place.unit() == "", (number, "nothing of the command is left")
    assert place.at_boot() == [OLD]


def test_a_job_that_dies_while_the_command_runs_finds_it_and_its_result(place: Place) -> None:
    place.dies_while_it_runs()
    place.live()
    done = place.result()
    assert len(place.program.starts) == 1 and done["outcome"] == "succeeded" and done["put_back"] and "187.21" in done["output"]


def test_a_job_that_dies_again_and_again_gives_up_and_puts_back(place: Place) -> None:
    place.dies_while_it_runs()
    record = json.loads(Path(place.paths.change, "record.json").read_text())
    record["attempts"] = 2
    Path(place.paths.change, "record.json").write_text(json.dumps(record))
    place.live()
    done = place.result()
    assert done["failed"] and "killed again and again" in done["msg"] and done["put_back"] and place.serving() == [OLD]


def test_what_was_abandoned_comes_to_its_end_before_another(place: Place) -> None:
    place.dies_while_it_runs()
    first = place.asks(check=True, command="other")["actions"][0]
    assert first["action"] == "complete" and "gpu_borrow of GPU 0, 1 for a command, begun by" in first["reason"]
    assert [step["action"] for step in place.asks(check=True)["actions"]] == ["follow"]
