# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A clean-up beside a swap, beside another clean-up, and beside servers that load."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any, Dict, Iterator, List

import pytest

from ansible_collections.gpufleet.vllm.plugins.module_utils._core.errors import GpuFleetError
from ansible_collections.gpufleet.vllm.plugins.module_utils._core.host_lock import HostLock, holder_of
from ansible_collections.gpufleet.vllm.plugins.module_utils._gpu.types import MigDevice
from ansible_collections.gpufleet.vllm.plugins.module_utils._guard.lock import StartLock
from ansible_collections.gpufleet.vllm.plugins.module_utils._process.procfs import read_process
from ansible_collections.gpufleet.vllm.plugins.module_utils._reclaim import look as looking
from ansible_collections.gpufleet.vllm.plugins.module_utils._reclaim import situation, unit_views
from ansible_collections.gpufleet.vllm.plugins.module_utils._reclaim.plan import make_plan
from ansible_collections.gpufleet.vllm.plugins.module_utils._reclaim.request import ReclaimRequest
from ansible_collections.gpufleet.vllm.plugins.module_utils._reclaim.run import reclaim
from ansible_collections.gpufleet.vllm.plugins.module_utils._reclaim.seen import Start, UnitKey, UnitView
from ansible_collections.gpufleet.vllm.plugins.module_utils._reclaim.starts import claimed_gpus, find_starts
from ansible_collections.gpufleet.vllm.plugins.module_utils._systemd.show import UnitStatus
from ansible_collections.gpufleet.vllm.plugins.module_utils._unit.change_unit import CHANGE_UNIT
from ansible_collections.gpufleet.vllm.tests.unit.plugins.module_utils._reclaim.machine import Machine, as_root
from ansible_collections.gpufleet.vllm.tests.unit.plugins.module_utils._reclaim.world import (
    NOW,
    active,
    holder,
    info,
    orphan,
    snapshot,
    unit,
    view,
)
from ansible_collections.gpufleet.vllm.tests.unit.plugins.module_utils._reclaim.world import (
    gpu as a_gpu,
)

ORPHAN: Dict[str, Any] = {"vllm": True, "orphan": True}
KIMI = "vllm-kimi.service"


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Iterator[Machine]:
    """A host of our own, as root sees it."""
    monkeypatch.setattr(os, "geteuid", as_root)
    for module in (looking, unit_views):
        monkeypatch.setattr(module, "cgroup_text", lambda pid, root="/proc": "0::/\n")
    made = Machine()
    yield made
    made.end()
    assert made.readers == 0


@pytest.fixture
def swap(machine: Machine) -> Iterator["subprocess.Popen[str]"]:
    """Another process that changes the services of this host, as vllm_service does."""
    code = (
        "import fcntl, json, os, sys, time; f = open(sys.argv[1] + '/change.lock', 'w'); fcntl.flock(f, fcntl.LOCK_EX);"
        " f.write(json.dumps({'pid': os.getpid(), 'since': 1800000000.0, 'purpose': 'vllm_service started kimi'})); f.flush();"
        " print('held', flush=True); time.sleep(60)"
    )
    with subprocess.Popen([sys.executable, "-c", code, machine.run_root], stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None and child.stdout.readline() == "held\n"
        yield child
        child.kill()


@pytest.mark.parametrize("scope", ["orphans", "all"])
@pytest.mark.parametrize("check_mode", [False, True])
def test_nothing_is_ended_while_somebody_changes_services(
    machine: Machine, swap: "subprocess.Popen[str]", scope: str, check_mode: bool
) -> None:
    pid = machine.spawn(**ORPHAN)
    with pytest.raises(GpuFleetError) as caught:
        reclaim(ReclaimRequest(scope=scope, timeout=5.0, settle=0.1), machine.ports(), check_mode=check_mode)
    assert machine.alive(pid) and machine.systemd.log == []
    since = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(1800000000.0))
    for words in ("nothing was touched", "vllm_service started kimi (pid %d)" % swap.pid, "since " + since):
        assert words in caught.value.msg
    assert caught.value.result["lock_holder"]["pid"] == swap.pid
    assert (caught.value.result["changed"], caught.value.result["freed"]) == (False, False)


@pytest.mark.parametrize("check_mode", [False, True])
@pytest.mark.parametrize(("state", "sub_state"), [("activating", "auto-restart"), ("active", "running"), ("deactivating", "final-sigterm")])
def test_nothing_is_ended_while_the_job_of_a_change_is_between_two_tries(
    machine: Machine, state: str, sub_state: str, check_mode: bool
) -> None:
    """A job that was killed holds no lock until systemd has started it again; what it has done so far is half of a swap."""
    pid = machine.spawn(**ORPHAN)
    machine.systemd.units[CHANGE_UNIT] = UnitStatus(CHANGE_UNIT, "loaded", state, sub_state)
    with pytest.raises(GpuFleetError, match="nothing was touched. Another run is changing.*: gpufleet-change.service") as caught:
        reclaim(ReclaimRequest(timeout=5.0, settle=0.1), machine.ports(), check_mode=check_mode)
    assert machine.alive(pid) and machine.systemd.log == []
    assert caught.value.result["lock_holder"]["purpose"] == CHANGE_UNIT
    assert (caught.value.result["changed"], caught.value.result["freed"]) == (False, False)
    assert holder_of(machine.run_root) is None
    machine.systemd.units[CHANGE_UNIT] = UnitStatus(CHANGE_UNIT, "loaded", "inactive", "dead")
    assert reclaim(ReclaimRequest(timeout=5.0, settle=0.1), machine.ports(), check_mode=check_mode).changed


def test_the_job_of_a_change_is_known_by_its_name() -> None:
    assert unit_views.CHANGE_UNIT == CHANGE_UNIT


@pytest.mark.parametrize("check_mode", [False, True])
def test_what_has_nothing_to_end_needs_no_lock(machine: Machine, swap: "subprocess.Popen[str]", check_mode: bool) -> None:
    assert reclaim(ReclaimRequest(settle=0.1), machine.ports(), check_mode=check_mode).freed


@pytest.mark.parametrize("check_mode", [False, True])
def test_shared_memory_is_left_as_it_is_while_somebody_changes_services(
    machine: Machine, swap: "subprocess.Popen[str]", check_mode: bool, tmp_path: Path
) -> None:
    (tmp_path / "vllm_offload_a").write_text("x")
    ports = machine.ports(shm_root=str(tmp_path))
    with pytest.raises(GpuFleetError, match="Another run is changing the services"):
        reclaim(ReclaimRequest(settle=0.1, clean_shm=True), ports, check_mode=check_mode)
    assert (tmp_path / "vllm_offload_a").exists()


def test_nobody_changes_services_while_something_is_ended(machine: Machine) -> None:
    machine.delay = 0.3
    machine.spawn(**ORPHAN)
    holders: List[Any] = []
    real = machine.reading

    def reading() -> Any:
        holders.append(holder_of(machine.run_root))
        return real()

    machine.reading = reading  # type: ignore[method-assign]
    assert reclaim(ReclaimRequest(settle=0.1), machine.ports()).freed
    assert holders[0] is None and holders[-1]["pid"] == os.getpid() and holders[-1]["purpose"] == "gpu_reclaim scope orphans"
    assert holder_of(machine.run_root) is None, "it is let go at the end"
    with HostLock(machine.run_root, "vllm_service"):
        pass


def test_what_changed_before_the_lock_was_had_counts(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    """A swap that ended between the look and the lock has made one of the orphans its own."""
    with HostLock(machine.run_root, "a clean-up of before"):
        pass
    pid = machine.spawn(**ORPHAN)
    real = HostLock.__enter__

    def enter(self: HostLock) -> HostLock:
        monkeypatch.undo()
        with HostLock(machine.run_root, "a swap"):
            machine.claims[0].flags.update(orphan=False)
        return real(self)

    monkeypatch.setattr(HostLock, "__enter__", enter)
    monkeypatch.setattr(os, "geteuid", as_root)
    with pytest.raises(GpuFleetError, match="it is no orphan"):
        reclaim(ReclaimRequest(timeout=3.0, settle=0.1), machine.ports())
    assert machine.alive(pid)


@pytest.mark.parametrize("before", [False, True])
def test_the_host_is_not_looked_at_twice_where_nobody_had_the_lock_meanwhile(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, before: bool
) -> None:
    if before:
        with HostLock(machine.run_root, "a clean-up of before"):
            pass
    machine.spawn(**ORPHAN)
    looks: List[bool] = []

    def look(*arguments: Any) -> Any:
        looks.append(holder_of(machine.run_root) is not None)
        return looking.look(*arguments)

    monkeypatch.setattr(situation, "look", look)
    assert reclaim(ReclaimRequest(settle=0.1), machine.ports()).freed
    assert looks == [False, True], "the first, and the last one, which falls into the settle time"


def loading(gpus: List[int], name: str = KIMI) -> Start:
    return Start((name, None), frozenset(gpus), NOW - 30)


def test_nothing_is_ended_under_the_hands_of_a_server_that_loads() -> None:
    server = holder(12, [0], unit=(KIMI, None), vllm=True)
    look = view([orphan(10, [0]), orphan(11, [1]), server], [unit(KIMI)], [0, 1], starts=(loading([0]),))
    made = make_plan(ReclaimRequest(), look)
    assert [each.holder.pid for each in made.signals] == [11]
    (reason,) = [skip.reason for skip in made.skips if skip.pid == 10]
    since = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(NOW - 30))
    assert reason.startswith("not now: vllm-kimi.service loads its model on GPU 0 since " + since)
    assert not any(skip.rightful for skip in made.skips if skip.pid == 10), "an orphan holds nothing by right"


def test_a_service_is_not_stopped_either_while_another_one_loads_beside_it() -> None:
    look = view(
        [holder(11, [0], unit=("vllm-a.service", None)), holder(12, [0, 1], unit=(KIMI, None))], [unit("vllm-a.service"), unit(KIMI)],
        starts=(loading([0, 1]),),
    )
    assert make_plan(ReclaimRequest(scope="services", services=("vllm-a",)), look).empty
    # Asked for itself, the one that loads goes, and with it what it stood in the way of.
    both = make_plan(ReclaimRequest(scope="services", services=("vllm-a", "vllm-kimi")), look)
    assert [stop.unit.unit for stop in both.stops] == ["vllm-a.service", KIMI]
    assert [stop.unit.unit for stop in make_plan(ReclaimRequest(scope="all"), look).stops] == ["vllm-a.service", KIMI]


def test_what_is_spared_may_itself_be_loading() -> None:
    """A loads on GPU 0; B, on 0 and 1, is spared for it and loads as well; so C, on GPU 1, is spared for B."""
    names = ["vllm-%s.service" % letter for letter in "abc"]
    holders = [holder(11 + number, gpus, unit=(names[number], None)) for number, gpus in enumerate(([0], [0, 1], [1]))]
    look = view(holders, [unit(name) for name in names], [0, 1], starts=(loading([0], names[0]), loading([0, 1], names[1])))
    made = make_plan(ReclaimRequest(scope="services", services=tuple(names[1:])), look)
    assert made.empty and [skip.pid for skip in made.skips] == [11, 12, 13]


def claim(root: Path, **more: Any) -> None:
    """What a guard leaves in its unit's directory."""
    own = read_process(os.getpid())
    assert own is not None
    fields: Dict[str, Any] = {
        "gpus": ["GPU-0001-aaaa"], "host": "127.0.0.1", "port": 1, "pid": os.getpid(), "start_ticks": own.start_ticks,
        "cgroup": "0::/system.slice/" + KIMI, "ticket": 1, "passed": time.monotonic(),
    }
    directory = root / "locks" / KIMI
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "claim").write_text(json.dumps({**fields, **more}))


def test_a_unit_that_claimed_its_gpus_loads_until_its_port_answers(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(StartLock, "_belongs", lambda lock, claim: True)
    root = Path(machine.run_root)
    seen = snapshot(a_gpu(0), a_gpu(1))
    other = orphan(10, [1])
    assert find_starts(seen, [other], {}, machine.ports()) == ()
    claim(root)
    (start,) = find_starts(seen, [other], {}, machine.ports())
    assert (start.unit, start.gpus) == ((KIMI, None), frozenset({1})) and abs(start.since - time.time()) < 5
    assert find_starts(seen, [orphan(10, [0])], {}, machine.ports()) == (), "nobody else is on its GPU"
    claim(root, passed=None)
    assert find_starts(seen, [other], {}, machine.ports()) == (), "its guard waits for the very memory that is to come free"
    claim(root, passed=time.monotonic() - 60)
    assert find_starts(seen, [other], {}, machine.ports()) == (), "it died"


@pytest.mark.parametrize("passed", [None, 0.0])
@pytest.mark.parametrize(("selected", "stops"), [("0", []), ("1", [KIMI])])
def test_a_named_unit_that_starts_is_stopped_for_the_gpus_that_it_claims(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, passed: "float | None", selected: str, stops: List[str]
) -> None:
    """Also while its guard waits for them: that unit is activating, and nothing of it is on a GPU."""
    monkeypatch.setattr(StartLock, "_belongs", lambda lock, claim: True)  # this process stands in for the guard
    machine.systemd.units[KIMI] = UnitStatus(KIMI, "loaded", "activating", "start-pre")
    claim(Path(machine.run_root), passed=None if passed is None else time.monotonic())
    request = ReclaimRequest(gpus=(selected,), scope="services", services=(KIMI,))
    with machine.ports().open_reader() as reader:
        made = make_plan(request, looking.look(reader, request, machine.ports()))
    assert [stop.unit.unit for stop in made.stops] == stops
    assert [skip.reason for skip in made.skips] == ([] if stops else ["it starts on GPU 1, none of those selected"])


def test_a_claim_of_a_mig_instance_or_of_a_gpu_without_a_uuid_is_one_of_its_gpu(machine: Machine) -> None:
    part = MigDevice(0, "MIG-0000-bbbb", None, 1, 0, used_mib=0)
    seen = snapshot(replace(a_gpu(0), uuid=None), a_gpu(1, mig_devices=(part,)))
    for name, index in (("GPU 0", 0), ("MIG-0000-bbbb", 1), ("GPU-0001-aaaa", 1)):
        claim(Path(machine.run_root), gpus=[name])
        assert claimed_gpus(seen, machine.ports()) == {(KIMI, None): {index}}


SERVER = (
    "import socket, sys, time; s = socket.socket(); s.bind(('127.0.0.1', 0)); print(s.getsockname()[1], flush=True);"
    " sys.stdin.readline(); s.listen(); print('listens', flush=True); time.sleep(60)"
)


def test_somebodys_own_server_loads_until_it_listens(machine: Machine) -> None:
    words = ["python3", "/opt/vllm/bin/vllm", "serve", "m"]
    with subprocess.Popen(
        [sys.executable, "-c", SERVER, " ".join(words)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as child:
        assert child.stdin is not None and child.stdout is not None
        port = int(child.stdout.readline())
        holders = [holder(child.pid, [0], unit=(KIMI, None), vllm=True, start_time=time.time()), orphan(10, [0])]
        units: Dict[UnitKey, UnitView] = {(KIMI, None): unit(KIMI, main_pid=child.pid)}
        seen = snapshot(a_gpu(0))
        (start,) = find_starts(seen, holders, units, machine.ports())
        assert start.unit == (KIMI, None) and start.gpus == {0} and abs(start.since - time.time()) < 5
        assert find_starts(seen, holders[:1], units, machine.ports()) == ()
        assert find_starts(seen, [holder(child.pid, [0], unit=(KIMI, None)), orphan(10, [0])], units, machine.ports()) == ()
        child.stdin.write("\n")
        child.stdin.flush()
        child.stdout.readline()
        socket.create_connection(("127.0.0.1", port)).close()
        assert find_starts(seen, holders, units, machine.ports()) == ()
        child.kill()


# A wrapper (main process) with something beside its server that listens at once, as a proxy or an exporter of metrics does.
WRAPPER = """
import socket, subprocess, sys
beside = socket.socket()
beside.bind(("127.0.0.1", 0))
beside.listen()
server = subprocess.Popen([sys.executable, "-S", "-c", sys.argv[1], "vllm serve m"])
print(server.pid, flush=True)
server.wait()
"""


@pytest.fixture
def wrapped() -> Iterator["tuple[subprocess.Popen[str], int]"]:
    """A wrapper, told line by line, and the pid of its server."""
    with subprocess.Popen(
        [sys.executable, "-S", "-c", WRAPPER, SERVER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True
    ) as child:
        assert child.stdout is not None
        first, second = child.stdout.readline(), child.stdout.readline()
        del second  # the server's port
        yield child, int(first)
        os.killpg(child.pid, 9)


def test_a_server_that_a_script_of_its_unit_started_loads_until_it_listens_itself(
    machine: Machine, wrapped: "tuple[subprocess.Popen[str], int]"
) -> None:
    wrapper, server = wrapped
    assert wrapper.stdin is not None and wrapper.stdout is not None
    machine.systemd.units["my-model.service"] = active("my-model.service", wrapper.pid)
    machine.systemd.members["my-model.service"] = [wrapper.pid, server]
    key: UnitKey = ("my-model.service", None)
    holders = [holder(server, [0], unit=key, vllm=True, start_time=time.time()), orphan(10, [0])]
    request = ReclaimRequest(scope="services", services=("my-model",))

    def stands() -> "tuple[list[UnitKey], bool]":
        units = unit_views.unit_views(request, [], machine.ports())
        return [start.unit for start in find_starts(snapshot(a_gpu(0)), holders, units, machine.ports())], units[key].loads

    assert stands() == ([key], True)
    old = [replace(holders[0], start_time=time.time() - 7200), holders[1]]
    assert not find_starts(snapshot(a_gpu(0)), old, {key: unit(key[0], main_pid=wrapper.pid)}, machine.ports())
    wrapper.stdin.write("\n")
    wrapper.stdin.flush()
    assert wrapper.stdout.readline() == "listens\n"
    assert stands() == ([], False)


def test_a_program_that_is_no_server_is_never_waited_for(machine: Machine) -> None:
    own = os.getpid()
    holders = [holder(own, [0], unit=(KIMI, None), vllm=True, info=info(own), start_time=time.time()), orphan(10, [0])]
    units: Dict[UnitKey, UnitView] = {(KIMI, None): unit(KIMI, main_pid=own)}
    assert find_starts(snapshot(a_gpu(0)), holders, units, machine.ports()) == ()
