# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A plan carried out, and undone when it fails: whatever happens, something serves at the end or the message says loudly that not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ansible_collections.gpufleet.vllm.plugins.module_utils._core.errors import GpuFleetError
from ansible_collections.gpufleet.vllm.plugins.module_utils._core.files import WantedFile, changes
from ansible_collections.gpufleet.vllm.plugins.module_utils._gpu.types import GpuProcess
from ansible_collections.gpufleet.vllm.plugins.module_utils._server.ready import ReadyState
from ansible_collections.gpufleet.vllm.plugins.module_utils._service.account import Account
from ansible_collections.gpufleet.vllm.plugins.module_utils._service.look import Look
from ansible_collections.gpufleet.vllm.plugins.module_utils._service.memory import Need
from ansible_collections.gpufleet.vllm.plugins.module_utils._service.outcome import Outcome
from ansible_collections.gpufleet.vllm.plugins.module_utils._service.plan import Rival, View, make_plan
from ansible_collections.gpufleet.vllm.plugins.module_utils._service.ports import Paths, Ports
from ansible_collections.gpufleet.vllm.plugins.module_utils._service.ready import Target
from ansible_collections.gpufleet.vllm.plugins.module_utils._service.request import Request
from ansible_collections.gpufleet.vllm.plugins.module_utils._service.transaction import Transaction
from ansible_collections.gpufleet.vllm.plugins.module_utils._unit.spec import ServiceSpec
from ansible_collections.gpufleet.vllm.tests.unit.plugins.module_utils._service.world import (
    Behaviour,
    FakeReader,
    World,
    gpu,
    managed,
    snapshot,
    status,
)

NEW, OLD = "vllm-new.service", "vllm-old.service"


class _NoJournal:
    def lines(self, unit: str, invocation_id: str | None = None, limit: int = 2000) -> list[Any]:
        return []


def seconds(outcome: Outcome, phase: str) -> float:
    """How long a phase took; there has to be a figure."""
    found = outcome.timings[phase]
    assert found is not None
    return found


class Swap:
    """A host on which ``old`` serves, and a transaction that puts ``new`` in its place."""

    def __init__(self, tmp_path: Path, old_running: bool = True, own_running: bool = False, **asked: Any) -> None:
        self.world = World()
        self.file = tmp_path / "etc" / "vllm-new.service"
        if old_running:
            self.world.units[OLD] = status(OLD, "active", unit_file_state="enabled")
            self.world.started_at[OLD] = 0.0
        self.world.behaviours = {OLD: Behaviour(), NEW: Behaviour()}
        self.used = dict.fromkeys(range(4), 0)
        if own_running:
            self.file.parent.mkdir(parents=True)
            self.file.write_text("before")
            self.world.units[NEW] = status(NEW, "active", unit_file_state="enabled")
            self.world.started_at[NEW] = 0.0
        options: dict[str, Any] = {"enabled": True, "replace": "conflicting"}
        options.update(asked)
        self.request = Request(name="new", model="/models/new", **options)
        self.more: list[tuple[str, int]] = []
        self.neighbours: dict[int, int] = {}
        self.strangers: dict[int, GpuProcess] = {}
        self.old_gpus: tuple[int, ...] = (0, 1, 2, 3)
        self.host_gpus = 4
        self.own_running = own_running
        self.old_running = old_running
        self.tmp_path = tmp_path
        self.silent = False  # a server that runs as declared and answered nothing

    def ports(self) -> Ports:
        paths = Paths(config=str(self.tmp_path / "config"), run=str(self.tmp_path / "run"), home=str(self.tmp_path / "home"),
                      records=str(self.tmp_path / "records"), guard=str(self.tmp_path / "lib" / "guard.pyz"))
        world: Any = self.world
        return Ports(clock=world.clock, systemd=world, journal=_NoJournal(), server=world.server, paths=paths)  # type: ignore[arg-type]

    def gpus(self) -> list[Any]:
        """The GPUs as they are now."""
        found = []
        for index in range(self.host_gpus):
            processes = [GpuProcess(9, "C", self.neighbours[index], name="x")] if index in self.neighbours else []
            processes += [self.strangers[index]] if index in self.strangers else []
            used = self.used.get(index, 0) + sum(each.used_mib or 0 for each in processes if index in self.strangers)
            found.append(gpu(index, used, processes))
        return found

    def read(self) -> list[Any]:
        """What the driver answers."""
        return self.gpus()

    def run(self) -> Outcome:
        planned = changes([WantedFile(str(self.file), b"after", uid=0, gid=0)])
        names = ([("old", 8000)] if self.old_running else []) + self.more
        rivals = tuple(
            Rival(managed(name, gpus=self.old_gpus, port=port), self.world.status("vllm-%s.service" % name), "it has GPU 0", self.silent)
            for name, port in names
        )
        for name, port in names:
            self.world.ports["vllm-%s.service" % name] = port
        view = View(
            unit=NEW, status=self.world.status(NEW), changes=tuple(planned), definition_changed=bool(planned),
            unit_text_changed=bool(planned), rivals=rivals, gpus=(0, 1, 2, 3),
        )
        host = tuple(self.gpus())
        gpus = host[:4]
        spec = ServiceSpec("new", "/models/new", "new", (0, 1, 2, 3))
        server: Any = self.world.server("0.0.0.0", 8000)
        look = Look(
            view=view, spec=spec, own=managed("new") if self.own_running else None, target=Target(NEW, "new", server),
            account=Account("vllm", "vllm", 990, 990), snapshot=snapshot(host), gpus=gpus, need=Need(0.92), others=(),
            serves=ReadyState(False, "completion", "nothing within 5 s", silent=True) if self.silent else None,
        )
        self.reader: Any = FakeReader(self.read)
        self.outcome = Outcome()
        transaction = Transaction(self.request, look, make_plan(self.request, view), self.ports(), self.reader, self.outcome)
        return transaction.run()


def test_the_old_one_is_stopped_before_the_new_one_starts_and_disabled_only_after_it_serves(tmp_path: Path) -> None:
    swap = Swap(tmp_path)
    outcome = swap.run()
    assert swap.world.log == ["daemon-reload", "stop " + OLD, "start " + NEW, "enable " + NEW, "disable " + OLD]
    assert outcome.ready is not None and outcome.ready.ready
    assert [entry["unit"] for entry in outcome.replaced] == [OLD]
    assert seconds(outcome, "downtime") >= seconds(outcome, "load") > 0
    assert swap.file.read_text() == "after"


def test_the_new_one_is_not_started_before_the_driver_has_let_go(tmp_path: Path) -> None:
    swap = Swap(tmp_path)
    swap.used = dict.fromkeys(range(4), 96801)
    freed_at = swap.world.clock.now + 7.0
    started = []
    original = swap.world.start

    def start(unit: str, no_block: bool = True, timeout: float = 30.0) -> None:
        started.append(swap.world.clock.now)
        original(unit)

    swap.world.start = start  # type: ignore[method-assign]
    sleep = swap.world.clock.sleep

    def pass_time(seconds: float) -> None:
        sleep(seconds)
        if swap.world.clock.now >= freed_at:
            swap.used = dict.fromkeys(range(4), 4)

    swap.world.clock.sleep = pass_time  # type: ignore[method-assign]
    swap.run()
    assert started and freed_at + 0.5 <= started[0] < freed_at + 1.5


def test_a_new_one_that_dies_is_undone_and_the_old_one_serves_again(tmp_path: Path) -> None:
    swap = Swap(tmp_path)
    swap.world.behaviours[NEW] = Behaviour(load=100.0, dies=2.0)
    with pytest.raises(GpuFleetError) as failure:
        swap.run()
    assert "Rolled back: %s serves old again" % OLD in failure.value.msg
    assert swap.outcome.rolled_back
    assert swap.outcome.diagnosis is not None
    assert swap.world.status(OLD).running and swap.world.status(OLD).enabled
    assert not swap.world.status(NEW).running
    assert not swap.file.exists()
    assert swap.world.log[-2:] == ["daemon-reload", "start " + OLD]


def test_a_crash_is_seen_within_a_second_not_at_the_end_of_the_time(tmp_path: Path) -> None:
    swap = Swap(tmp_path, old_running=False)
    swap.world.behaviours[NEW] = Behaviour(load=1000.0, dies=300.0)
    with pytest.raises(GpuFleetError):
        swap.run()
    assert 300.0 <= seconds(swap.outcome, "load") <= 301.0


def test_a_server_with_a_dead_engine_never_counts_as_ready(tmp_path: Path) -> None:
    swap = Swap(tmp_path)
    swap.world.behaviours[NEW] = Behaviour(completes=False)
    with pytest.raises(GpuFleetError) as failure:
        swap.run()
    assert swap.outcome.rolled_back
    assert swap.outcome.ready is None
    assert "Rolled back" in failure.value.msg


def test_a_changed_declaration_that_fails_brings_the_old_files_and_the_old_process_back(tmp_path: Path) -> None:
    swap = Swap(tmp_path, old_running=False, own_running=True)
    starts = []
    original = swap.world.start

    def start(unit: str, no_block: bool = True, timeout: float = 30.0) -> None:
        starts.append(swap.file.read_text())
        swap.world.behaviours[NEW] = Behaviour(load=1.0, dies=0.5 if swap.file.read_text() == "after" else None)
        original(unit)

    swap.world.start = start  # type: ignore[method-assign]
    with pytest.raises(GpuFleetError):
        swap.run()
    assert starts == ["after", "before"]
    assert swap.outcome.rolled_back
    assert swap.world.status(NEW).running


@pytest.mark.parametrize("overlap", ["never", "auto"])
def test_a_server_that_dies_soon_after_it_served_is_undone_while_it_is_watched(tmp_path: Path, overlap: str) -> None:
    swap = Swap(tmp_path, steady_time=10.0, overlap=overlap)
    swap.world.behaviours[NEW] = Behaviour(load=2.0, dies=6.0)
    with pytest.raises(GpuFleetError) as failure:
        swap.run()
    assert "did not go on serving" in failure.value.msg and "served, and then failed" in failure.value.msg
    assert swap.outcome.rolled_back and swap.world.status(OLD).running and "enable %s" % NEW not in swap.world.log
    assert 4 <= seconds(swap.outcome, "steady") < 6


def test_a_server_that_goes_on_serving_is_watched_no_longer_and_counts_as_up_from_the_first_moment(tmp_path: Path) -> None:
    swap = Swap(tmp_path, steady_time=10.0)
    swap.world.behaviours[NEW] = Behaviour(load=2.0)
    swap.run()
    assert 10 <= seconds(swap.outcome, "steady") < 11 and seconds(swap.outcome, "downtime") < 9 and swap.outcome.ready is not None
    once = Swap(tmp_path / "once")
    once.world.behaviours[NEW] = Behaviour(load=2.0)
    once.run()
    assert "steady" not in once.outcome.timings


def test_the_old_server_gets_its_own_time_to_load_again_not_the_new_ones(tmp_path: Path) -> None:
    swap = Swap(tmp_path, ready_timeout=20.0)
    swap.world.behaviours[NEW] = Behaviour(load=1000.0)
    swap.world.behaviours[OLD] = Behaviour(load=470.0)
    with pytest.raises(GpuFleetError) as failure:
        swap.run()
    assert "did not serve within 20 s" in failure.value.msg
    assert "Rolled back: %s serves old again" % OLD in failure.value.msg


def test_a_roll_back_that_fails_says_so_loudly(tmp_path: Path) -> None:
    swap = Swap(tmp_path)
    swap.world.behaviours = {NEW: Behaviour(dies=1.0, load=9.0), OLD: Behaviour(dies=1.0, load=9.0)}
    swap.world.started_at.pop(OLD)
    with pytest.raises(GpuFleetError) as failure:
        swap.run()
    assert "PUTTING BACK WHAT WAS THERE BEFORE FAILED" in failure.value.msg
    assert not swap.outcome.rolled_back


def test_without_rollback_nothing_is_put_back_and_the_message_says_so(tmp_path: Path) -> None:
    swap = Swap(tmp_path, rollback=False)
    swap.world.behaviours[NEW] = Behaviour(dies=1.0, load=9.0)
    with pytest.raises(GpuFleetError) as failure:
        swap.run()
    assert "rollback is off" in failure.value.msg
    assert not swap.world.status(OLD).running
    assert swap.file.exists()


def test_requests_in_flight_are_waited_for_before_the_stop(tmp_path: Path) -> None:
    swap = Swap(tmp_path, drain_timeout=30.0)
    _declare(tmp_path, OLD, "shutdown-timeout: 30\n")
    swap.world.requests[8000] = 5
    left: list[int] = []
    swap.world.on_stop = lambda _unit: left.append(swap.world.requests[8000])
    outcome = swap.run()
    assert left == [0]
    assert seconds(outcome, "drain") > 0
    assert outcome.warnings == []


def _declare(tmp_path: Path, unit: str, text: str) -> None:
    config = tmp_path / "config" / (unit[len("vllm-"):-len(".service")] + ".yaml")
    config.parent.mkdir(exist_ok=True)
    config.write_text(text)


def test_a_server_that_drains_nothing_by_itself_is_told_of(tmp_path: Path) -> None:
    swap = Swap(tmp_path, drain_timeout=30.0)
    _declare(tmp_path, OLD, "max-model-len: 4096\n")
    assert any("%s was declared without a drain of its own" % OLD in warning for warning in swap.run().warnings)


def test_requests_that_do_not_end_in_time_are_counted_in_a_warning(tmp_path: Path) -> None:
    swap = Swap(tmp_path, drain_timeout=2.0)
    swap.world.requests[8000] = 1000
    assert any("requests after 2 s of draining" in warning for warning in swap.run().warnings)


def test_a_first_deployment_that_fails_leaves_no_file_and_no_loop(tmp_path: Path) -> None:
    swap = Swap(tmp_path, old_running=False)
    swap.world.behaviours[NEW] = Behaviour(dies=1.0, load=9.0)
    with pytest.raises(GpuFleetError):
        swap.run()
    assert not swap.file.exists()
    assert swap.world.status(NEW).inactive
    assert not swap.world.status(NEW).enabled


# -- whatever happens, the old one is tried again ---------------------------------------------------------------------


def test_a_fault_that_nobody_foresaw_is_undone_as_well(tmp_path: Path) -> None:
    swap = Swap(tmp_path)

    def broken(unit: str, no_block: bool = True, timeout: float = 30.0) -> None:
        if unit == NEW:
            raise ZeroDivisionError("a fault of ours")
        World.start(swap.world, unit)

    swap.world.start = broken  # type: ignore[method-assign]
    with pytest.raises(GpuFleetError) as failure:
        swap.run()
    assert "ZeroDivisionError" in failure.value.msg and "Rolled back" in failure.value.msg
    assert "Traceback" in failure.value.result["exception"]
    assert swap.world.status(OLD).running


def test_a_driver_that_fails_after_the_stop_does_not_keep_the_old_one_down(tmp_path: Path) -> None:
    swap = Swap(tmp_path)
    readings: list[int] = []

    def read() -> list[Any]:
        readings.append(1)
        raise GpuFleetError("the driver hangs")

    swap.read = read  # type: ignore[method-assign]
    with pytest.raises(GpuFleetError) as failure:
        swap.run()
    assert readings and "Rolled back: %s serves old again" % OLD in failure.value.msg
    assert swap.world.status(OLD).running
    assert any("the driver hangs" in warning for warning in swap.outcome.warnings)


def test_a_restart_that_fails_before_its_start_starts_the_server_again(tmp_path: Path) -> None:
    swap = Swap(tmp_path, old_running=False, own_running=True, state="restarted")
    swap.file.write_text("after")  # the files are as declared
    swap.used = dict.fromkeys(range(4), 96801)  # and the memory does not come back
    with pytest.raises(GpuFleetError) as failure:
        swap.run()
    assert swap.world.status(NEW).running, swap.world.log
    assert "serves new again" in failure.value.msg


def test_every_old_server_is_started_again_though_one_of_them_does_not_come(tmp_path: Path) -> None:
    swap = Swap(tmp_path)
    second = "vllm-second.service"
    swap.more = [("second", 8001)]
    swap.world.units[second] = status(second, "active", unit_file_state="enabled")
    swap.world.started_at[second] = 0.0
    swap.world.behaviours = {OLD: Behaviour(), second: Behaviour(), NEW: Behaviour(dies=1.0, load=9.0)}

    def stop(unit: str) -> None:
        if unit == OLD:
            swap.world.behaviours[OLD] = Behaviour(dies=0.5, load=9.0)

    swap.world.on_stop = stop
    with pytest.raises(GpuFleetError) as failure:
        swap.run()
    assert not swap.outcome.rolled_back
    assert "PUTTING BACK" in failure.value.msg and OLD in failure.value.msg
    assert "But %s serves second again" % second in failure.value.msg
    assert "may serve nothing" not in failure.value.msg


def test_a_server_between_a_crash_and_its_restart_is_started_again_but_not_said_to_serve(tmp_path: Path) -> None:
    swap = Swap(tmp_path)
    swap.world.units[OLD] = status(OLD, "activating", sub_state="auto-restart", n_restarts=1)
    swap.world.started_at.pop(OLD)
    swap.world.behaviours[NEW] = Behaviour(dies=1.0, load=9.0)
    with pytest.raises(GpuFleetError) as failure:
        swap.run()
    assert "start " + OLD in swap.world.log
    assert "did not serve before either" in failure.value.msg


def test_a_fault_at_the_hand_over_leaves_the_new_server_alone(tmp_path: Path) -> None:
    swap = Swap(tmp_path)

    def refuse(unit: str) -> None:
        raise GpuFleetError("read-only file system")

    swap.world.enable = refuse  # type: ignore[method-assign]
    with pytest.raises(GpuFleetError) as failure:
        swap.run()
    assert "%s serves, but" % NEW in failure.value.msg and "read-only file system. Run again." in failure.value.msg
    assert swap.world.status(NEW).running and not swap.outcome.rolled_back


def test_memory_of_somebody_who_stays_is_not_waited_for(tmp_path: Path) -> None:
    swap = Swap(tmp_path)
    swap.neighbours = dict.fromkeys(range(4), 2000)
    swap.used = dict.fromkeys(range(4), 2000)
    assert seconds(swap.run(), "settle") < 5.0


def test_the_roll_back_waits_for_no_gpu_that_the_old_service_does_not_use(tmp_path: Path) -> None:
    """A stranger came up on a GPU that only the new one takes: the old one is back as soon as that is sure."""
    swap = Swap(tmp_path)
    swap.old_gpus = (0, 1)
    stranger = GpuProcess(9, "C", 90000, name="train.py")

    def stopped(_unit: str) -> None:
        swap.strangers[3] = stranger

    swap.world.on_stop = stopped
    begun = swap.world.clock.now
    with pytest.raises(GpuFleetError, match=r"pid 9 \(train.py\) lives on") as failure:
        swap.run()
    assert "serves old again" in failure.value.msg and swap.world.clock.now - begun < 12.0
    assert not any("before the old service" in warning for warning in swap.outcome.warnings), swap.outcome.warnings


def test_the_roll_back_proves_the_old_services_gpus_also_where_the_new_one_has_none(tmp_path: Path) -> None:
    swap = Swap(tmp_path)
    swap.host_gpus = 6
    swap.old_gpus = (3, 5)
    swap.used[5] = 90000
    swap.world.behaviours[NEW] = Behaviour(dies=1.0, load=9.0)
    begun = swap.world.clock.now
    with pytest.raises(GpuFleetError):
        swap.run()
    assert swap.world.clock.now - begun > 30.0, "GPU 5 was not looked at"


def test_while_nothing_serves_there_is_no_figure_for_the_downtime(tmp_path: Path) -> None:
    swap = Swap(tmp_path, rollback=False)
    swap.world.behaviours[NEW] = Behaviour(dies=1.0, load=9.0)
    with pytest.raises(GpuFleetError):
        swap.run()
    assert swap.outcome.timings["downtime"] is None
    assert swap.outcome.ready is None


def test_after_a_run_that_died_half_way_the_enabled_predecessor_is_brought_back(tmp_path: Path) -> None:
    swap = Swap(tmp_path)
    # The earlier run stopped the old one, started the new one, and died; the new one cannot work.
    swap.world.units[OLD] = status(OLD, "inactive", unit_file_state="enabled")
    swap.world.started_at.pop(OLD)
    swap.file.parent.mkdir(parents=True)
    swap.file.write_text("after")
    swap.world.units[NEW] = status(NEW, "active")
    swap.world.started_at[NEW] = swap.world.clock.now
    swap.world.behaviours[NEW] = Behaviour(dies=2.0, load=9.0)
    with pytest.raises(GpuFleetError) as failure:
        swap.run()
    assert "%s serves old again" % OLD in failure.value.msg
    assert swap.world.status(OLD).running
    assert swap.outcome.rolled_back


def test_two_servers_that_resist_take_no_longer_to_stop_than_one(tmp_path: Path) -> None:
    swap = Swap(tmp_path, stop_timeout=10.0)
    second = "vllm-second.service"
    swap.more = [("second", 8001)]
    swap.world.units[second] = status(second, "active")
    swap.world.behaviours = {OLD: Behaviour(stubborn=True), second: Behaviour(stubborn=True), NEW: Behaviour()}
    assert seconds(swap.run(), "stop") < 15.0


def test_a_first_deployment_that_fails_has_no_figure_for_the_downtime(tmp_path: Path) -> None:
    """Nothing served before and nothing does now: a figure, 0.0 above all, would say that something serves."""
    swap = Swap(tmp_path, old_running=False)
    swap.world.behaviours[NEW] = Behaviour(dies=1.0, load=9.0)
    with pytest.raises(GpuFleetError):
        swap.run()
    assert swap.outcome.timings["downtime"] is None


def test_nothing_goes_for_a_server_that_was_not_seen_to_serve(tmp_path: Path) -> None:
    """One that runs and says nothing may be busy, or hang: what serves beside it stays until it has answered."""
    swap = Swap(tmp_path, own_running=True, ready_timeout=30.0, overlap="auto", replace="listed", replace_units=(OLD,))
    swap.file.write_text("after")
    swap.silent = True
    swap.world.behaviours[NEW] = Behaviour(completes=False)
    with pytest.raises(GpuFleetError, match="did not serve within 30 s|has not served"):
        swap.run()
    assert swap.world.status(OLD).running and not any(line.startswith("stop") for line in swap.world.log)
    assert swap.outcome.timings.get("downtime", 0.0) == 0.0
