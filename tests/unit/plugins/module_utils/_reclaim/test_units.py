# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Units stopped in a bounded time, whatever their processes do."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Dict, Iterator, List, Optional

import pytest

from ansible_collections.gpufleet.vllm.plugins.module_utils._core.clock import Clock
from ansible_collections.gpufleet.vllm.plugins.module_utils._reclaim import units
from ansible_collections.gpufleet.vllm.plugins.module_utils._reclaim.ladder import stop_unit
from ansible_collections.gpufleet.vllm.plugins.module_utils._reclaim.units import KILL_WAIT_S, UnitRef, stop_units
from ansible_collections.gpufleet.vllm.plugins.module_utils._systemd.cgroup import cgroup_pids
from ansible_collections.gpufleet.vllm.plugins.module_utils._systemd.show import UnitStatus
from ansible_collections.gpufleet.vllm.tests.unit.plugins.module_utils._reclaim.world import (
    Behaviour,
    FakeClock,
    FakeSystemd,
    active,
)

UNIT = "vllm-a.service"
OF_USER = "/user.slice/user-1000.slice/user@1000.service/app.slice/train.service"


@pytest.fixture(autouse=True)
def places(monkeypatch: pytest.MonkeyPatch) -> Dict[int, str]:
    """Where a process is in the tree of cgroups, by pid; what is not in it is in UNIT."""
    made: Dict[int, str] = {}
    monkeypatch.setattr(units, "cgroup_text", lambda pid, root="/proc": "0::%s\n" % made.get(pid, "/system.slice/" + UNIT))
    return made


def systemd(clock: Clock, **behaviours: Behaviour) -> FakeSystemd:
    """A manager with vllm-<name>.service running for each behaviour."""
    made = FakeSystemd(clock)
    for name, behaviour in behaviours.items():
        unit = "vllm-%s.service" % name
        made.units[unit] = active(unit)
        made.behaviours[unit] = behaviour
        made.members[unit] = [100]
    return made


def test_a_unit_that_obeys_is_stopped() -> None:
    clock = FakeClock()
    manager = systemd(clock, a=Behaviour(after=0.5))
    stopped = stop_unit(manager, UNIT, 20.0, clock)  # type: ignore[arg-type]
    assert (stopped.result, stopped.ok, stopped.changed) == ("stopped", True, True)
    assert 0.5 <= stopped.seconds <= 0.6
    assert manager.log == [("stop", UNIT)]


def test_a_wedged_unit_is_killed_as_a_whole_after_its_time() -> None:
    clock = FakeClock()
    manager = systemd(clock, a=Behaviour(after=None))
    stopped = stop_unit(manager, UNIT, 3.0, clock)  # type: ignore[arg-type]
    assert stopped.result == "killed" and 3.0 <= stopped.seconds <= 3.2
    assert manager.log == [("stop", UNIT), ("kill", UNIT)]


def test_a_unit_that_systemd_itself_had_to_kill_did_not_just_stop() -> None:
    clock = FakeClock()
    manager = systemd(clock, a=Behaviour(after=1.0))
    manager.on_stopped = lambda unit: manager.units.update({unit: replace(manager.units[unit], active_state="failed", result="timeout")})
    stopped = stop_unit(manager, UNIT, 20.0, clock)  # type: ignore[arg-type]
    assert (stopped.result, manager.log) == ("killed", [("stop", UNIT)])


def test_a_unit_that_survives_even_that_is_reported_in_time() -> None:
    clock = FakeClock()
    manager = systemd(clock, a=Behaviour(after=None, killable=False))
    stopped = stop_unit(manager, UNIT, 1.0, clock)  # type: ignore[arg-type]
    assert (stopped.result, stopped.ok, stopped.survivors) == ("failed", False, (100,))
    assert stopped.detail == "it is still deactivating"
    assert stopped.seconds <= 1.0 + KILL_WAIT_S + 0.3
    assert manager.log.count(("kill", UNIT)) > 1, "what forked while it was being killed is killed again"


@pytest.mark.parametrize(("starts", "result"), [(1, "stopped"), (2, "stopped"), (3, "failed"), (99, "failed")])
def test_a_unit_that_is_started_again_at_once_is_stopped_again_but_not_until_systemds_limit(starts: int, result: str) -> None:
    """By its socket, say: its connections wait, so it is never seen down. Five starts would put unit and socket out of service."""
    clock = FakeClock()
    manager = systemd(clock, a=Behaviour(after=0.1))
    manager.units[UNIT] = active(UNIT, invocation_id="run0")
    started: list[str] = []

    def start(_unit: str) -> None:
        if len(started) < starts:
            started.append("run%d" % (len(started) + 1))
            manager.units[UNIT] = active(UNIT, invocation_id=started[-1])

    manager.on_stopped = start
    stopped = stop_unit(manager, UNIT, 20.0, clock)  # type: ignore[arg-type]
    assert (stopped.result, stopped.restarted, len(started)) == (result, result == "failed", min(starts, 3))
    assert stopped.changed and ("kill", UNIT) not in manager.log, "each run has its whole grace"
    assert stopped.seconds < 3.0


def test_a_unit_that_does_not_run_is_left_as_it_is() -> None:
    clock = FakeClock()
    manager = FakeSystemd(clock)
    stopped = stop_unit(manager, UNIT, 1.0, clock)  # type: ignore[arg-type]
    assert (stopped.result, stopped.changed, manager.log) == ("inactive", False, [])


def test_several_units_are_stopped_side_by_side() -> None:
    clock = FakeClock()
    manager = systemd(clock, a=Behaviour(after=2.0), b=Behaviour(after=2.0), c=Behaviour(after=None))
    refs = [UnitRef(manager, "vllm-%s.service" % name) for name in "abc"]  # type: ignore[arg-type]
    begun = clock.now
    assert [each.result for each in stop_units(refs, 4.0, clock)] == ["stopped", "stopped", "killed"]
    assert clock.now - begun < 5.0


def test_a_manager_that_does_not_answer_fails_its_units_and_no_others() -> None:
    clock = FakeClock()
    broken = systemd(clock, a=Behaviour())
    broken.broken = "Failed to connect to bus"
    healthy = systemd(clock, b=Behaviour())
    refs = [UnitRef(broken, UNIT, 1000), UnitRef(healthy, "vllm-b.service")]  # type: ignore[arg-type]
    results = stop_units(refs, 4.0, clock)
    assert [(each.result, each.uid) for each in results] == [("failed", 1000), ("stopped", None)]
    assert results[0].detail == "Failed to connect to bus"


@pytest.fixture
def child() -> Iterator[subprocess.Popen[bytes]]:
    """A process that outlives its unit."""
    process = subprocess.Popen([sys.executable, "-S", "-c", "import time; time.sleep(60)"])
    yield process
    process.kill()
    process.wait()


def test_what_outlives_its_unit_is_swept(child: subprocess.Popen[bytes]) -> None:
    clock = Clock()
    manager = systemd(clock, a=Behaviour(after=0.0, leaves=(child.pid,)))
    stopped = stop_unit(manager, UNIT, 5.0, clock)  # type: ignore[arg-type]
    assert (stopped.result, stopped.survivors) == ("swept", ())
    assert child.wait(5) == -15


def test_what_a_unit_left_behind_earlier_is_swept_without_a_stop(child: subprocess.Popen[bytes]) -> None:
    clock = Clock()
    manager = FakeSystemd(clock, members={UNIT: [child.pid]})
    stopped = stop_unit(manager, UNIT, 5.0, clock)  # type: ignore[arg-type]
    assert (stopped.result, manager.log) == ("swept", [])
    assert child.wait(5) == -15


def test_a_unit_that_starts_again_during_the_sweep_keeps_its_new_processes(
    child: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(units, "KILL_WAIT_S", 0.5)
    clock = Clock()
    manager = FakeSystemd(clock, members={UNIT: [child.pid]})
    looks = []

    class Reviving(FakeSystemd):
        def statuses(self, names: object) -> object:  # type: ignore[override]
            looks.append(names)
            if len(looks) == 3:  # between the listing of the left-overs and their end
                manager.units[UNIT] = active(UNIT)
                manager.behaviours[UNIT] = Behaviour(after=None, killable=False)
            return FakeSystemd.statuses(self, names)  # type: ignore[arg-type]

    manager.__class__ = Reviving
    stopped = stop_unit(manager, UNIT, 0.2, clock)  # type: ignore[arg-type]
    assert child.poll() is None
    assert stopped.result == "failed"


@pytest.fixture
def innocent() -> Iterator["subprocess.Popen[bytes]"]:
    """A process that is none of the stopped unit's."""
    process = subprocess.Popen([sys.executable, "-S", "-c", "import time; time.sleep(60)"])
    yield process
    process.kill()
    process.wait()


class Mounted(FakeSystemd):
    """A manager whose processes are looked for in a tree of cgroups, as the real one's are."""

    root = ""
    uid: Optional[int] = None

    def cgroup_pids(self, name: str, status: Optional[UnitStatus] = None) -> List[int]:
        status = self.status(name) if status is None else status
        return cgroup_pids(name, status.control_group, status.slice, self.root, self.uid)


def mount(root: Path, path: str, pid: int) -> None:
    group = root / "sys/fs/cgroup" / path.strip("/")
    group.mkdir(parents=True)
    (group / "cgroup.procs").write_text("%d\n" % pid, encoding="ascii")


@pytest.mark.parametrize("running", [True, False])
def test_a_users_unit_is_not_looked_for_among_the_systems(
    child: "subprocess.Popen[bytes]", innocent: "subprocess.Popen[bytes]", places: Dict[int, str], tmp_path: Path, running: bool
) -> None:
    """A transient unit is unknown once it is down: what the system's manager runs under that name is another unit's."""
    unit, clock = "train.service", Clock()
    manager = Mounted(clock)
    manager.root, manager.uid = str(tmp_path), 1000
    mount(tmp_path, "/system.slice/train.service", innocent.pid)
    mount(tmp_path, OF_USER, child.pid)
    places.update({innocent.pid: "/system.slice/train.service", child.pid: OF_USER})
    if running:
        manager.units[unit] = active(unit, control_group=OF_USER, slice="app.slice")
        manager.behaviours[unit] = Behaviour(after=0.0)
        manager.on_stopped = manager.units.__delitem__
    stopped = stop_units([UnitRef(manager, unit, 1000)], 5.0, clock)[0]  # type: ignore[arg-type]
    assert stopped.result == ("swept" if running else "inactive")
    assert innocent.poll() is None
    assert (child.poll() == -15) is running, "what it left in its own cgroup is swept all the same"


def test_only_what_the_kernel_says_is_the_units_is_swept(innocent: "subprocess.Popen[bytes]", places: Dict[int, str]) -> None:
    places[innocent.pid] = OF_USER.replace("train.service", UNIT)
    manager = FakeSystemd(Clock(), members={UNIT: [innocent.pid]})
    assert stop_unit(manager, UNIT, 5.0, Clock()).result == "inactive"  # type: ignore[arg-type]
    assert innocent.poll() is None


def test_what_leaves_the_unit_before_its_signal_is_let_go(
    child: "subprocess.Popen[bytes]", monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is asked again before each signal: between the listing and the KILL lies a whole grace."""
    looks: List[int] = []

    def cgroup(pid: int, root: str = "/proc") -> str:
        looks.append(pid)
        return "0::/system.slice/%s\n" % (UNIT if len(looks) <= 2 else "other.service")

    monkeypatch.setattr(units, "cgroup_text", cgroup)
    manager = FakeSystemd(Clock(), members={UNIT: [child.pid]})
    stopped = stop_unit(manager, UNIT, 5.0, Clock())  # type: ignore[arg-type]
    assert child.poll() is None and len(looks) == 3
    assert stopped.ok and stopped.survivors == ()


def test_a_unit_asked_for_by_another_name_is_swept_by_its_own(child: "subprocess.Popen[bytes]", places: Dict[int, str]) -> None:
    places[child.pid] = "/system.slice/vllm-real.service"
    manager = systemd(Clock(), a=Behaviour(after=0.0, leaves=(child.pid,)))
    manager.units[UNIT] = replace(manager.units[UNIT], unit="vllm-real.service")
    assert stop_unit(manager, UNIT, 5.0, Clock()).result == "swept"  # type: ignore[arg-type]
