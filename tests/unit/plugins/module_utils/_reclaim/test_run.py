# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A whole reclaim on real processes and simulated GPUs: what is done, what is said, and how long it takes."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from pathlib import Path
from typing import Any, Dict, Iterator, List, Sequence
from unittest import mock

import pytest

from ansible_collections.gpufleet.vllm.plugins.module_utils._core.errors import GpuFleetError
from ansible_collections.gpufleet.vllm.plugins.module_utils._core.runner import Completed, Runner
from ansible_collections.gpufleet.vllm.plugins.module_utils._gpu.types import Snapshot
from ansible_collections.gpufleet.vllm.plugins.module_utils._process import rules
from ansible_collections.gpufleet.vllm.plugins.module_utils._process.identity import ProvenProcess
from ansible_collections.gpufleet.vllm.plugins.module_utils._reclaim import look as looking
from ansible_collections.gpufleet.vllm.plugins.module_utils._reclaim import (
    processes,
    reset,
    situation,
    unit_views,
    units,
)
from ansible_collections.gpufleet.vllm.plugins.module_utils._reclaim.request import ReclaimRequest
from ansible_collections.gpufleet.vllm.plugins.module_utils._reclaim.result import ReclaimResult
from ansible_collections.gpufleet.vllm.plugins.module_utils._reclaim.run import reclaim
from ansible_collections.gpufleet.vllm.tests.unit.plugins.module_utils._reclaim.machine import DEAF, Machine, as_root
from ansible_collections.gpufleet.vllm.tests.unit.plugins.module_utils._reclaim.world import (
    Behaviour,
    ScriptedReader,
    active,
    gpu,
    snapshot,
)

ORPHAN: Dict[str, Any] = {"vllm": True, "orphan": True}


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Iterator[Machine]:
    """A host of our own; the test runs as if by root, and no process has a unit unless the test says so."""
    monkeypatch.setattr(os, "geteuid", as_root)
    made = Machine()
    named: Dict[int, str] = {}

    def cgroup(pid: int, root: str = "/proc") -> str:
        return "0::/system.slice/%s\n" % named[pid] if pid in named else "0::/\n"

    for module in (looking, unit_views, units):
        monkeypatch.setattr(module, "cgroup_text", cgroup)
    made.units = named  # type: ignore[attr-defined]
    yield made
    made.end()
    assert made.readers == 0, "a reader was left open"


def do(machine: Machine, **request: Any) -> ReclaimResult:
    """A reclaim with short times."""
    values: Dict[str, Any] = {"grace": 2.0, "timeout": 10.0, "settle": 0.1}
    values.update(request)
    return reclaim(ReclaimRequest(**values), machine.ports())


def in_unit(machine: Machine, unit: str, pid: int, **behaviour: Any) -> None:
    """Put a process into a running unit."""
    machine.units[pid] = unit  # type: ignore[attr-defined]
    machine.systemd.units[unit] = active(unit, pid)
    machine.systemd.behaviours[unit] = Behaviour(**behaviour)
    machine.systemd.members.setdefault(unit, []).append(pid)


def kill_members(machine: Machine, members: Sequence[int]) -> None:
    for child in machine.children:
        if child.pid in members:
            child.kill()
            child.wait()


def test_the_last_look_falls_into_the_settle_time(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Looking at processes and units takes longer than a reading of the driver, and nobody is to wait for it after the settle time."""
    events: List[str] = []
    real_look, real_reading = looking.look, machine.reading

    def look(*arguments: Any) -> Any:
        found = real_look(*arguments)
        events.append("look at %d holders" % len(found.holders))
        return found

    def reading() -> Snapshot:
        events.append("reading")
        return real_reading()

    monkeypatch.setattr(situation, "look", look)
    monkeypatch.setattr(machine, "reading", reading)
    machine.spawn(**ORPHAN)
    assert do(machine, settle=0.5).freed
    looks = [number for number, event in enumerate(events) if event.startswith("look")]
    assert events[looks[-1]] == "look at 0 holders" and events[looks[0]] == "look at 1 holders"
    after = events[looks[-1] + 1:]
    assert after and set(after) == {"reading"}, "the driver has the last word"


def test_nothing_to_do_is_quick_and_changes_nothing(machine: Machine) -> None:
    begun = time.monotonic()
    result = reclaim(ReclaimRequest(), machine.ports())
    assert (result.changed, result.freed, result.freed_mib, result.held) == (False, True, 0, ())
    assert time.monotonic() - begun < 0.5


def test_orphans_go_and_their_memory_with_them(machine: Machine) -> None:
    machine.delay = 0.2
    pids = [machine.spawn(gpus=[index], **ORPHAN) for index in (0, 1)]
    result = do(machine)
    assert (result.changed, result.freed, result.freed_mib) == (True, True, 180000)
    assert [(each.holder.pid, each.signals, each.outcome) for each in result.signalled] == [
        (pid, ("TERM",), "terminated") for pid in pids
    ]
    assert not any(machine.alive(pid) for pid in pids)
    again = do(machine)
    assert (again.changed, again.freed, again.signalled) == (False, True, ())


@pytest.mark.parametrize("delay", [0.0, 0.7])
def test_it_returns_at_once_when_the_driver_let_go_and_it_settled(machine: Machine, delay: float) -> None:
    machine.delay = delay
    machine.spawn(**ORPHAN)
    assert do(machine, settle=0.3).freed
    assert 0.3 <= time.monotonic() - machine.released() <= 0.3 + 0.3


def test_check_mode_names_exactly_what_a_run_ends_and_touches_nothing(machine: Machine) -> None:
    pid, other = machine.spawn(**ORPHAN), machine.spawn()
    in_unit(machine, "vllm-a.service", machine.spawn(gpus=[1], vllm=True))
    request = ReclaimRequest(scope="all", protect=("user:nobody-has-this-name",), timeout=10.0, settle=0.2, grace=1.0)
    planned = reclaim(request, machine.ports(), check_mode=True)
    assert planned.changed and not planned.freed
    assert [each.to_result() for each in planned.stopped_units] == [
        {"unit": "vllm-a.service", "user": None, "result": "would_stop", "seconds": 0.0,
         "processes": [{"pid": machine.children[2].pid, "name": mock.ANY, "gpus": [1]}]}
    ]
    assert [(each.holder.pid, each.outcome, each.signals) for each in planned.signalled] == [
        (each, "would_signal", ()) for each in sorted((pid, other))
    ]
    reasons = {why for held in planned.held for _holder, why in held.holders}
    assert reasons == {"it would be ended", "its unit would be stopped"}
    assert all(machine.alive(each.pid) for each in machine.children) and machine.systemd.log == []
    machine.systemd.on_stopped = lambda unit: kill_members(machine, list(machine.units))  # type: ignore[attr-defined]
    real = reclaim(request, machine.ports())
    assert [each.unit for each in real.stopped_units] == [each.unit for each in planned.stopped_units]
    assert [each.holder.pid for each in real.signalled] == [each.holder.pid for each in planned.signalled]


def test_an_active_service_outside_the_scope_is_left_alone_and_said_at_once(machine: Machine) -> None:
    served, left = machine.spawn(gpus=[0], vllm=True), machine.spawn(gpus=[1], **ORPHAN)
    in_unit(machine, "vllm-a.service", served)
    begun = time.monotonic()
    with pytest.raises(GpuFleetError) as caught:
        do(machine)
    assert time.monotonic() - begun < 3.0, "nothing was to be waited for"
    assert machine.alive(served) and not machine.alive(left)
    result = caught.value.result
    assert result["freed"] is False and result["changed"] is True and not result["reboot_required"]
    assert [(each["gpu"], each["verdict"]) for each in result["held"]] == [(0, "in_use")]
    for words in ("GPU 0: 90000 MiB", "pid %d" % served, "unit vllm-a.service", "services: [vllm-a.service]", "accept: in_use"):
        assert words in caught.value.msg


def test_a_fleet_that_serves_can_accept_that(machine: Machine) -> None:
    in_unit(machine, "vllm-a.service", machine.spawn(gpus=[0], vllm=True))
    left = machine.spawn(gpus=[1], **ORPHAN)
    result = do(machine, accept="in_use")
    assert (result.freed, result.changed, result.freed_mib) == (False, True, 90000)
    assert not machine.alive(left) and machine.systemd.log == []


def test_whatever_is_left_can_be_accepted_and_is_said_all_the_same(machine: Machine) -> None:
    machine.leak[1] = 5000
    result = do(machine, accept="anything", timeout=0.5)
    assert (result.freed, result.changed) == (False, False)
    assert "held by no process that can be seen" in str(result.to_result()["msg"])
    with pytest.raises(GpuFleetError):
        do(machine, accept="in_use", timeout=0.5)


def test_a_result_that_succeeds_does_not_look_like_a_skipped_task(machine: Machine) -> None:
    in_unit(machine, "vllm-a.service", machine.spawn(vllm=True))
    result = do(machine, accept="in_use")
    assert result.left_alone and "skipped" not in result.to_result() and "failed" not in result.to_result()
    assert "msg" not in do(machine, max_used_mib=95000).to_result()


def test_a_gpu_shared_by_a_service_and_an_orphan_gets_the_orphans_memory_back(machine: Machine) -> None:
    machine.delay = 0.4
    in_unit(machine, "vllm-a.service", machine.spawn(mib=40000, vllm=True))
    machine.spawn(mib=50000, **ORPHAN)
    result = do(machine, accept="in_use")
    assert result.freed_mib == 50000 and result.gpus_after[0].used_mib == 40000


def test_a_unit_is_stopped_as_a_unit(machine: Machine) -> None:
    pid = machine.spawn(vllm=True)
    in_unit(machine, "vllm-a.service", pid, after=0.2)
    machine.systemd.on_stopped = lambda unit: kill_members(machine, [pid])
    result = do(machine, scope="services", services=("vllm-a",))
    assert result.freed and result.signalled == ()
    assert [(each.unit, each.result) for each in result.stopped_units] == [("vllm-a.service", "stopped")]
    assert result.timings.stop > 0.1


def test_a_transient_unit_that_is_gone_since_it_was_stopped_is_not_called_missing(machine: Machine) -> None:
    pid = machine.spawn(vllm=True)
    in_unit(machine, "run-r8.service", pid)

    def collected(unit: str) -> None:
        kill_members(machine, [pid])
        machine.systemd.units.pop(unit)

    machine.systemd.on_stopped = collected
    result = do(machine, scope="services", services=("run-r8", "nosuch"))
    assert result.freed and [each.unit for each in result.stopped_units] == ["run-r8.service"]
    assert [each.name for each in result.left_alone] == ["nosuch.service"]


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("system.slice/gpu01_slurmstepd.scope/job_42/step_0/user/task_0", "it belongs to Slurm's job 42; to end it: scancel 42"),
        ("system.slice/slurmstepd.scope/job_42/step_0", "it belongs to Slurm's job 42; to end it: scancel 42"),
        ("slurm/uid_1000/job_77/step_0", "it belongs to Slurm's job 77; to end it: scancel 77"),
        ("htcondor/condor_var_lib_condor_execute_slot1_1@gpu01", "slot1_1@gpu01; end the job through its scheduler"),
        ("nomad.slice/share.slice/1f2e3d4c-aaaa-bbbb-cccc-0123456789ab.serve.scope", "to end it: nomad alloc stop 1f2e3d4c-aaaa"),
        ("lsf/cluster1/job.1234.4711.1690000000", "it belongs to LSF's job 1234; to end it: bkill '1234'"),
        ("system.slice/containerd.service/kubepods-podab.slice:cri-containerd:" + "ab" * 32, "to end it: nerdctl stop abababababab "),
        ("system.slice/llm.service/libpod-payload-" + "ab" * 32, "to end it: systemctl stop llm.service"),
    ],
)
def test_what_ends_a_job_or_a_container_ends_no_neighbour(machine: Machine, path: str, words: str) -> None:
    """Stopping the unit around it would end every job of the node, or every container."""
    unit = path.split("/")[1]
    in_unit(machine, unit, machine.spawn())
    machine.units[machine.children[0].pid] = path.split("/", 1)[1] if path.startswith("system") else "../" + path  # type: ignore[attr-defined]
    result = do(machine, scope="all", accept="in_use")
    assert not result.changed and words in result.left_alone[0].reason
    assert "systemctl stop" not in result.left_alone[0].reason or "llm" in path


@pytest.mark.parametrize("scope", ["orphans", "all"])
def test_what_runs_below_a_scheduler_is_left_alone(machine: Machine, scope: str) -> None:
    """A job whose cgroup says nothing: the reading of the driver says who keeps it."""
    pid = machine.spawn(vllm=True, kept_by="it runs below condor_starter (pid 40: job scheduler); end the job through that")
    result = do(machine, scope=scope, accept="in_use")
    assert not result.changed and machine.alive(pid)
    assert [each.reason for each in result.left_alone] == ["it runs below condor_starter (pid 40: job scheduler); end the job through that"]


def test_a_wedged_unit_is_killed_as_a_whole(machine: Machine) -> None:
    pid = machine.spawn(vllm=True)
    in_unit(machine, "vllm-a.service", pid, after=None)
    machine.systemd.on_stopped = lambda unit: kill_members(machine, [pid])
    result = do(machine, scope="services", services=("vllm-a",), grace=0.5)
    assert result.freed and [each.result for each in result.stopped_units] == ["killed"]


def test_a_unit_that_survives_even_kill_is_named_with_its_processes(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(units, "KILL_WAIT_S", 0.2)
    pid = machine.spawn(vllm=True)
    in_unit(machine, "vllm-a.service", pid, after=None, killable=False)
    with pytest.raises(GpuFleetError) as caught:
        do(machine, scope="services", services=("vllm-a",), grace=0.2, timeout=1.0)
    result = caught.value.result
    assert [each["pid"] for each in result["unkillable"]] == [pid] and result["reboot_required"] is True
    assert "its unit was stopped, and it survived SIGKILL" in caught.value.msg
    assert "Unit vllm-a.service could not be stopped: it is still deactivating" in caught.value.msg


def test_what_a_stopped_unit_leaves_outside_its_cgroup_is_seen_and_ended(machine: Machine) -> None:
    inside = machine.spawn(vllm=True, gpus=[0])
    in_unit(machine, "vllm-a.service", inside)
    escaped: List[int] = []

    def stopped(unit: str) -> None:
        kill_members(machine, [inside])
        escaped.append(machine.spawn(gpus=[1], **ORPHAN))

    machine.systemd.on_stopped = stopped
    result = do(machine, scope="services", services=("vllm-a",))
    assert result.freed and [each.holder.pid for each in result.signalled] == escaped


def test_a_unit_that_something_starts_again_and_again_is_reported(machine: Machine) -> None:
    unit = "vllm-a.service"
    in_unit(machine, unit, machine.spawn(vllm=True))

    def stopped(_unit: str) -> None:
        kill_members(machine, machine.systemd.members.pop(unit, []) + list(machine.units))  # type: ignore[attr-defined]
        machine.systemd.units[unit] = active(unit, 0)

    def revive() -> Snapshot:
        found = Machine.reading(machine)
        if machine.systemd.units[unit].active_state == "inactive":
            in_unit(machine, unit, machine.spawn(vllm=True), after=0.05)
        return found

    machine.systemd.on_stopped = lambda name: kill_members(machine, list(machine.units))  # type: ignore[attr-defined]
    machine.systemd.behaviours[unit] = Behaviour(after=0.05)
    machine.systemd.triggers[unit] = ["train.timer"]
    machine.reading = revive  # type: ignore[method-assign]
    with pytest.raises(GpuFleetError) as caught:
        do(machine, scope="services", services=(unit,), timeout=20.0)
    assert "Unit %s is started again each time it is stopped, by train.timer: stop that first" % unit in caught.value.msg
    assert "MiB): its unit is started again each time it is stopped" in caught.value.msg
    assert machine.systemd.log.count(("stop", unit)) == 3


def test_a_unit_that_is_never_down_because_its_socket_starts_it_is_reported(machine: Machine) -> None:
    unit = "vllm-a.service"
    in_unit(machine, unit, machine.spawn(vllm=True))
    machine.systemd.units[unit] = active(unit, 100, invocation_id="run0")
    machine.systemd.triggers[unit] = ["train.socket"]

    def start(_unit: str) -> None:
        machine.systemd.units[unit] = active(unit, 100, invocation_id="run%d" % len(machine.systemd.log))

    machine.systemd.on_stopped = start
    with pytest.raises(GpuFleetError) as caught:
        do(machine, scope="services", services=(unit,), timeout=20.0)
    assert "Unit %s is started again each time it is stopped, by train.socket: stop that first" % unit in caught.value.msg
    assert "could not be stopped" not in caught.value.msg and "SIGKILL" not in caught.value.msg
    assert machine.systemd.log == [("stop", unit)] * 3 and not caught.value.result["reboot_required"]


def test_a_deaf_process_is_killed_and_one_that_survives_is_named(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "KILL_WAIT_S", 0.2)
    pid = machine.spawn(DEAF, **ORPHAN)
    real = ProvenProcess.signal
    monkeypatch.setattr(ProvenProcess, "signal", lambda self, sig: "sent" if sig == 9 else real(self, sig))
    with pytest.raises(GpuFleetError) as caught:
        do(machine, grace=0.2, timeout=1.5)
    result = caught.value.result
    assert result["signalled"][0]["outcome"] == "survived" and result["signalled"][0]["signals"] == ["TERM", "KILL"]
    assert [each["pid"] for each in result["unkillable"]] == [pid]
    assert result["reboot_required"] is True and result["freed"] is False
    assert "pid %d" % pid in caught.value.msg and "reboot" in caught.value.msg
    assert 1.4 < result["timings"]["total"] < 2.5


def test_memory_without_any_process_is_waited_for_and_then_said(machine: Machine) -> None:
    machine.leak[1] = 5000
    with pytest.raises(GpuFleetError) as caught:
        do(machine, timeout=0.5)
    result = caught.value.result
    assert "GPU 1: 5000 MiB used, at most 1024 count as free, held by no process that can be seen" in caught.value.msg
    assert "reset: if_needed" in caught.value.msg
    assert (result["changed"], result["reboot_required"]) == (False, False)
    assert result["held"][0]["verdict"] == "dirty" and result["held"][0]["unattributed_mib"] == 5000


def test_who_has_the_driver_open_without_a_gpu_is_named_when_memory_is_nobodys(machine: Machine) -> None:
    machine.leak[1] = 5000
    mine = machine.spawn(gpus=[])
    # One that somebody else started: its parent is gone.
    shell = subprocess.run(["sh", "-c", "sleep 60 >/dev/null 2>&1 & echo $!"], capture_output=True, text=True, check=True)
    stranger = int(shell.stdout)
    opened = dict.fromkeys((os.getppid(), os.getpid(), mine, stranger), frozenset({"nvidiactl"}))
    try:
        with pytest.raises(GpuFleetError) as caught:
            reclaim(ReclaimRequest(timeout=0.5, settle=0.1), machine.ports(device_holders=lambda root: opened))
    finally:
        os.kill(stranger, signal.SIGKILL)
    assert "These have the driver open, though no GPU: sleep (pid %d)." % stranger in caught.value.msg


class Smi(Runner):
    """nvidia-smi as far as a reset needs it."""

    def __init__(self, machine: Machine, refuses: str = "") -> None:
        self.machine, self.refuses = machine, refuses
        self.calls: List[str] = []

    def run(self, argv: Sequence[str], timeout: float = 30.0, stdin: Any = None, env: Any = None) -> Completed:
        self.calls.append(" ".join(argv[3:]))
        assert self.machine.readers == 0, "our own reader is in the way of the reset"
        if "--gpu-reset" in argv:
            if self.refuses:
                return Completed(tuple(argv), 255, "", self.refuses)
            self.machine.leak.clear()
        return Completed(tuple(argv), 0, "Enabled\n", "")


def test_a_reset_frees_what_no_process_holds(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reset, "device_holders", lambda root: {})
    machine.leak[1] = 5000
    smi = Smi(machine)
    result = reclaim(ReclaimRequest(reset="if_needed", timeout=1.0, settle=0.1), machine.ports(runner=smi))
    assert result.freed and result.changed and [each.to_result() for each in result.resets] == [{"gpu": 1, "done": True, "detail": None}]
    assert [call.split(" ", 0)[0] for call in smi.calls] == [
        "--query-gpu=persistence_mode --format=csv,noheader,nounits", "-pm 0", "--gpu-reset", "-pm 1",
    ]


def test_check_mode_says_which_gpus_would_be_reset_and_touches_none(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    opened = {os.getpid(): frozenset({"nvidia0", "nvidia1"})}

    def holders(_root: str) -> Dict[int, Any]:
        assert machine.readers == 0, "our own reader is in the way of the reset"
        return opened

    monkeypatch.setattr(reset, "device_holders", holders)
    machine.leak[1] = 5000
    opened[machine.spawn(gpus=[0], **ORPHAN)] = frozenset({"nvidia0"})
    smi = Smi(machine)

    def planned(**request: Any) -> ReclaimResult:
        return reclaim(ReclaimRequest(**request), machine.ports(runner=smi), check_mode=True)

    made = planned(reset="if_needed", gpus=("1",))
    assert made.changed and [each.to_result() for each in made.resets] == [{"gpu": 1, "done": False, "detail": "it would be reset"}]
    assert [each.gpu for each in planned(reset="if_needed").resets] == [1], "what its process gives back needs no reset"
    assert planned(gpus=("1",)).resets == () and not planned(gpus=("1",)).changed
    machine.leak[0] = 5000
    assert [each.detail for each in planned(reset="if_needed").resets] == ["it would be reset"] * 2, "its process would be gone"
    opened[os.getppid()] = frozenset({"nvidia1"})
    blocked = planned(reset="if_needed", gpus=("1",))
    assert not blocked.changed and "it would not be reset: it is in use by " in str(blocked.resets[0].detail)
    assert smi.calls == []


def test_a_refused_reset_leaves_the_reboot(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reset, "device_holders", lambda root: {})
    machine.leak[1] = 5000
    with pytest.raises(GpuFleetError) as caught:
        reclaim(
            ReclaimRequest(reset="if_needed", timeout=1.0, settle=0.1),
            machine.ports(runner=Smi(machine, "GPU is in use by another client")),
        )
    assert caught.value.result["reboot_required"] is True
    assert "GPU 1: reset failed: GPU is in use by another client" in caught.value.msg


def test_no_driver_no_claim(machine: Machine) -> None:
    for reason in ("no_driver", "library_missing", "driver_library_mismatch", "driver_hung"):
        answer = Snapshot(False, reason=reason, reason_detail="so it is", processes_reliable=False)
        reader = ScriptedReader(lambda answer=answer: answer)  # type: ignore[misc]
        for check_mode in (False, True):
            with pytest.raises(GpuFleetError, match="nothing is touched and nothing counts as free") as caught:
                reclaim(ReclaimRequest(), machine.ports(open_reader=lambda reader=reader: reader), check_mode)
            assert caught.value.result["freed"] is False and " Next: " in caught.value.msg
        assert reader.closed == 2


def test_nobody_is_ended_once_the_time_is_over(machine: Machine) -> None:
    """A driver that answers only after the whole time-out: whoever gave it no longer reckons with anything being ended."""
    pid = machine.spawn(**ORPHAN)
    real = machine.reading

    def slow() -> Snapshot:
        time.sleep(0.4)
        return real()

    machine.reading = slow  # type: ignore[method-assign]
    with pytest.raises(GpuFleetError) as caught:
        do(machine, timeout=0.3)
    assert machine.alive(pid) and caught.value.result["signalled"] == [] and not caught.value.result["changed"]
    assert "left alone: the time was over before it could be ended; give a longer timeout" in caught.value.msg


def test_no_signal_is_sent_once_stopping_a_unit_took_all_the_time(machine: Machine) -> None:
    left, served = machine.spawn(**ORPHAN), machine.spawn(gpus=[1], vllm=True)
    in_unit(machine, "vllm-a.service", served, after=0.2)

    def stopped(unit: str) -> None:
        kill_members(machine, [served])
        time.sleep(1.0)

    machine.systemd.on_stopped = stopped
    with pytest.raises(GpuFleetError) as caught:
        do(machine, scope="services", services=("vllm-a",), timeout=1.0)
    assert machine.alive(left) and caught.value.result["signalled"] == [] and caught.value.result["changed"]
    assert [each["unit"] for each in caught.value.result["stopped_units"]] == ["vllm-a.service"]
    assert "(pid %d, user" % left in caught.value.msg and "the time was over before it could be ended" in caught.value.msg


def test_a_gpu_that_hangs_and_was_not_selected_fails_nothing_and_is_warned_of(machine: Machine) -> None:
    pid = machine.spawn(gpus=[1], **ORPHAN)
    real = machine.reading

    def lame() -> Snapshot:
        found = real()
        sick = gpu(0, None, state="error", error="memory: driver_hung", unanswered=True, processes_reliable=False)
        return Snapshot(True, backend="nvml", count=2, processes_reliable=False, gpus=(sick, found.gpus[1]))

    machine.reading = lame  # type: ignore[method-assign]
    result = do(machine, gpus=("1",))
    assert result.freed and [each.holder.pid for each in result.signalled] == [pid]
    assert result.to_result()["warnings"] == ["GPU 0, which was not selected, does not answer (memory: driver_hung)"]
    begun = time.monotonic()
    with pytest.raises(GpuFleetError, match="GPU 0 can't be read .error: memory: driver_hung") as caught:
        do(machine)
    assert time.monotonic() - begun < 5.0, "nothing was to be waited for"
    assert "warnings" not in caught.value.result


def test_what_came_free_beside_rightful_users_has_to_stay_so_for_the_settle_time(machine: Machine) -> None:
    in_unit(machine, "vllm-a.service", machine.spawn(mib=40000, vllm=True))
    machine.spawn(mib=50000, **ORPHAN)
    result = do(machine, accept="in_use", settle=0.8)
    assert result.changed and result.timings.settle >= 0.8
    again = do(machine, accept="in_use", settle=0.8)
    assert not again.changed and again.timings.settle < 0.8, "nothing was done, nothing is to settle"


def test_a_success_does_not_speak_like_a_failure(machine: Machine) -> None:
    in_unit(machine, "vllm-a.service", machine.spawn(vllm=True))
    said = do(machine, accept="in_use").msg
    assert said is not None and said.startswith("Accepted: GPU memory is still held") and "Next:" not in said


def test_a_loop_that_cannot_be_stopped_as_a_unit_is_named_with_who_goes_on_with_it(machine: Machine) -> None:
    pid = machine.spawn()
    real = machine.reading

    def again() -> Snapshot:
        if not any(machine.alive(child.pid) for child in machine.children):
            machine.spawn()
        return real()

    machine.reading = again  # type: ignore[method-assign]
    with pytest.raises(GpuFleetError) as caught:
        do(machine, scope="all")
    assert pid in [each["pid"] for each in caught.value.result["signalled"]]
    assert "(pid %d) meanwhile, which may start another: end that first" % os.getpid() in caught.value.msg


def test_a_driver_that_dies_on_the_way_ends_it_without_a_claim(machine: Machine) -> None:
    left = machine.spawn(**ORPHAN)
    real = machine.reading

    def dying() -> Snapshot:
        return real() if machine.alive(left) else Snapshot(False, reason="driver_hung", reason_detail="a call hung")

    machine.reading = dying  # type: ignore[method-assign]
    with pytest.raises(GpuFleetError) as caught:
        do(machine)
    result = caught.value.result
    assert "driver_hung" in caught.value.msg and result["freed"] is False and result["gpus_after"] == []
    assert [each["pid"] for each in result["signalled"]] == [left]


def test_what_was_done_is_known_even_when_the_run_breaks_off(machine: Machine) -> None:
    pid = machine.spawn(**ORPHAN)
    in_unit(machine, "vllm-a.service", machine.spawn(gpus=[1], vllm=True))
    real = machine.reading

    def breaking() -> Snapshot:
        if not machine.alive(pid):
            machine.systemd.broken = "systemctl show failed"
        return real()

    machine.reading = breaking  # type: ignore[method-assign]
    with pytest.raises(GpuFleetError, match="systemctl show failed") as caught:
        do(machine)
    result = caught.value.result
    assert [each["pid"] for each in result["signalled"]] == [pid]
    assert result["changed"] is True and result["freed"] is False and result["gpus_after"] == []


def test_hosts_on_which_it_cannot_work_are_refused_before_the_driver_is_asked(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    def never() -> Any:
        raise AssertionError("asked")

    machine.systemd.why_not = "systemd is not running as PID 1 on this host."
    with pytest.raises(GpuFleetError, match="systemd is not running"):
        reclaim(ReclaimRequest(), machine.ports(open_reader=never))
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(GpuFleetError, match="become: true"):
        reclaim(ReclaimRequest(), machine.ports(open_reader=never))


def test_a_gpu_that_is_not_there_is_said_with_what_is(machine: Machine) -> None:
    with pytest.raises(GpuFleetError, match="^Nothing was touched. GPU '7' is not on this host: its driver shows GPUs 0 to 1.$") as caught:
        do(machine, gpus=("0", "7"))
    assert (caught.value.result["changed"], caught.value.result["freed"]) == (False, False)
    with pytest.raises(GpuFleetError, match="^Nothing was touched. GPU 'GPU-77' is not on this host. This host has: 0"):
        do(machine, gpus=("GPU-77",))
    fewer = ScriptedReader(lambda: snapshot(gpu(0), gpu(2), pci_count=3))
    with pytest.raises(GpuFleetError, match="its driver shows GPUs 0, 2 .3 are on the PCI bus: look for Xid lines in the kernel log."):
        reclaim(ReclaimRequest(gpus=("1",)), machine.ports(open_reader=lambda: fewer))
    assert fewer.closed == 1


def test_selecting_by_uuid_and_pci_id(machine: Machine) -> None:
    one, two = machine.spawn(gpus=[0], **ORPHAN), machine.spawn(gpus=[1], **ORPHAN)
    assert [each.holder.pid for each in do(machine, gpus=("GPU-0001-aaaa",)).signalled] == [two]
    assert [each.holder.pid for each in do(machine, gpus=("00000000:01:00.0",)).signalled] == [one]


def test_a_protected_process_that_holds_too_much_is_named(machine: Machine) -> None:
    pid = machine.spawn(**ORPHAN)
    with pytest.raises(GpuFleetError) as caught:
        do(machine, protect=("process:python*",))
    assert machine.alive(pid)
    assert "protected: protect: process:python*" in caught.value.msg
    assert caught.value.result["skipped"] == caught.value.result["left_alone"]
    assert caught.value.result["left_alone"][0]["pid"] == pid


def test_its_own_ancestors_are_never_ended(machine: Machine) -> None:
    machine.claim(os.getppid(), 0, 50000, **ORPHAN)
    with pytest.raises(GpuFleetError) as caught:
        do(machine, scope="all")
    assert "protected: it runs this task" in caught.value.msg


def test_a_gpu_that_is_lost_is_never_free_and_not_waited_for(machine: Machine) -> None:
    reader = ScriptedReader(lambda: snapshot(gpu(0), gpu(1, None, state="lost", error="GPU is lost")))
    begun = time.monotonic()
    with pytest.raises(GpuFleetError) as caught:
        reclaim(ReclaimRequest(timeout=30.0), machine.ports(open_reader=lambda: reader))
    assert "GPU 1 can't be read (lost: GPU is lost)" in caught.value.msg
    assert time.monotonic() - begun < 5.0
    assert [each["verdict"] for each in caught.value.result["held"]] == ["unreadable"]


def test_a_zombie_is_reported_with_the_parent_that_must_reap_it(machine: Machine) -> None:
    pid = machine.spawn(**ORPHAN)
    ticks = machine.claims[0].ticks
    child = machine.children[0]
    child.kill()
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    entry = Machine._entry(machine.claims[0], "VLLM::Worker_TP", 0)
    assert ticks == entry.start_ticks
    machine.reading = lambda: snapshot(gpu(0, 90000, [entry]))  # type: ignore[method-assign]
    with pytest.raises(GpuFleetError) as caught:
        do(machine, timeout=0.8)
    (said,) = caught.value.result["unkillable"]
    assert said["state"] == "Z" and "pid %d" % os.getpid() in said["advice"]
    assert caught.value.result["reboot_required"] is False and caught.value.result["signalled"] == []


def holds(segment: Path) -> str:
    """What a process runs that has a segment open until it is told to end."""
    return "held = open(%r); time.sleep(120)" % str(segment)


@pytest.mark.parametrize("how", ["orphan", "unit"])
def test_segments_of_what_is_ended_go_in_the_same_run(machine: Machine, tmp_path: Path, how: str) -> None:
    segment, other = tmp_path / "vllm_offload_a", tmp_path / "vllm_offload_b"
    segment.write_text("x")
    other.write_text("x")
    scope: Dict[str, Any] = {"clean_shm": True, "timeout": 10.0, "settle": 0.1, "grace": 2.0}
    if how == "orphan":
        machine.spawn(holds(segment), **ORPHAN)
    else:
        server, engine = machine.spawn(holds(segment), gpus=()), machine.spawn(vllm=True)  # the server itself is on no GPU
        in_unit(machine, "vllm-a.service", server, after=0.0)
        in_unit(machine, "vllm-a.service", engine, after=0.0)
        machine.systemd.on_stopped = lambda unit: kill_members(machine, [server, engine])
        scope.update(scope="services", services=("vllm-a",))
    machine.spawn(holds(other), gpus=())  # nobody asked for this one
    ports = machine.ports(shm_root=str(tmp_path))
    planned = reclaim(ReclaimRequest(**scope), ports, check_mode=True)
    assert [each.path for each in planned.shm_removed] == [str(segment)] and segment.exists()
    result = reclaim(ReclaimRequest(**scope), ports)
    assert result.freed and [each.path for each in result.shm_removed] == [str(segment)]
    assert not segment.exists() and other.exists()
    assert not reclaim(ReclaimRequest(**scope), ports).changed, "a second run finds nothing"


def test_segments_of_what_ends_during_the_proof_are_seen_twice_as_well(machine: Machine, tmp_path: Path) -> None:
    segment = tmp_path / "vllm_offload_a"
    segment.write_text("x")
    orphan, server = machine.spawn(**ORPHAN), machine.spawn(holds(segment), gpus=())
    real = machine.reading

    def reading() -> Snapshot:
        if not machine.alive(orphan):
            kill_members(machine, [server])
        return real()

    machine.reading = reading  # type: ignore[method-assign]
    result = reclaim(ReclaimRequest(clean_shm=True, timeout=10.0, settle=0.1, grace=2.0), machine.ports(shm_root=str(tmp_path)))
    assert result.freed and [each.path for each in result.shm_removed] == [str(segment)]


@pytest.mark.parametrize(
    ("protect", "builtin", "whole"),
    [((), "", True), (("process:python*",), "", True), (("user:root",), "", True), (("unit:train",), "", True),
     *[((), reason, False) for reason in sorted(rules.QUIET)], (("process:python*",), rules.MONITORING, False),
     ((), "job scheduler", True), ((), "MPS: it owns its clients' memory and always keeps some", True),
     ((), "virtual machine or vGPU tenant", True), ((), "container runtime", True)],
)
def test_only_beside_what_serves_the_host_a_short_settle_time_is_enough(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, protect: Sequence[str], builtin: str, whole: bool
) -> None:
    """What the caller protects may be a server that loads, as may a scheduler's job; it takes more at any moment."""
    pid = machine.spawn(mib=100)
    in_unit(machine, "train.service", pid)
    real = rules.protected_reason
    monkeypatch.setattr(
        unit_views, "protected_reason", lambda info, *more: builtin if builtin and info.pid == pid else real(info, *more)
    )
    result = do(machine, protect=tuple(protect), settle=0.6)
    assert result.freed and not result.changed and machine.alive(pid)
    assert (result.timings.settle >= 0.6) is whole


@pytest.mark.parametrize("check_mode", [True, False])
def test_a_name_that_is_not_on_this_host_is_a_warning(machine: Machine, check_mode: bool) -> None:
    request = ReclaimRequest(scope="services", services=("vllm-kmi",), users=("alcie",), settle=0.1)
    said = "Unit vllm-kmi.service: there is no such unit on this host"
    assert [each.split(":")[0] for each in reclaim(request, machine.ports(), check_mode).warnings] == said.split(":")[:1] + ["User alcie"]
    machine.spawn()
    if not check_mode:
        with pytest.raises(GpuFleetError) as caught:
            do(machine, scope="services", services=("vllm-kmi",), timeout=1.0)
        assert said in caught.value.msg
