# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What speaks against stopping a unit, and which scope is stopped as a unit: on real processes."""

from __future__ import annotations

import os
import subprocess
from dataclasses import replace
from typing import Any, Dict, Iterator, List, Optional, Sequence, Tuple

import pytest

from ansible_collections.gpufleet.vllm.plugins.module_utils._core.clock import Clock
from ansible_collections.gpufleet.vllm.plugins.module_utils._process.procfs import read_process, user_name
from ansible_collections.gpufleet.vllm.plugins.module_utils._process.types import ProcessInfo
from ansible_collections.gpufleet.vllm.plugins.module_utils._reclaim import unit_views as views
from ansible_collections.gpufleet.vllm.plugins.module_utils._reclaim.ports import Ports
from ansible_collections.gpufleet.vllm.plugins.module_utils._reclaim.request import ReclaimRequest
from ansible_collections.gpufleet.vllm.plugins.module_utils._reclaim.seen import Holder, UnitView
from ansible_collections.gpufleet.vllm.plugins.module_utils._systemd.manager import Systemd
from ansible_collections.gpufleet.vllm.tests.unit.plugins.module_utils._reclaim.world import FakeSystemd, active, holder

Started = Tuple[int, int]


@pytest.fixture
def children() -> Iterator[List["subprocess.Popen[str]"]]:
    """Shells that the test started; ended afterwards with what they started."""
    started: List["subprocess.Popen[str]"] = []
    yield started
    for child in started:
        os.killpg(child.pid, 9)
        child.wait()
        assert child.stdout is not None
        child.stdout.close()


def start(children: List["subprocess.Popen[str]"]) -> Started:
    """A shell and the child that it started: (pid of the shell, pid of the child)."""
    child = subprocess.Popen(["sh", "-c", "sleep 60 & echo $!; wait; :"], stdout=subprocess.PIPE, text=True, start_new_session=True)
    children.append(child)
    assert child.stdout is not None
    return child.pid, int(child.stdout.readline())


def view_of(
    unit: str, pids: Sequence[int], on_gpu: Sequence[int], main_pid: int = 0, named: bool = False, **request: Any
) -> UnitView:
    """The unit as a look sees it."""
    systemd = FakeSystemd(Clock(), units={unit: active(unit, main_pid)}, members={unit: list(pids)})
    scope: Dict[str, Any] = {"scope": "services", "services": (unit,)} if named else {"scope": "all"}
    holders = [holder(pid, unit=(unit, None)) for pid in on_gpu]
    ports = Ports(systemd=systemd)  # type: ignore[arg-type]
    assert isinstance(Ports().systemd, Systemd)
    return views.unit_views(ReclaimRequest(**scope, **request), holders, ports)[unit, None]


def alike(monkeypatch: pytest.MonkeyPatch, pid: int, **fields: Any) -> None:
    """Let one process look like another program."""

    def read(asked: int, root: str = "/proc") -> "ProcessInfo | None":
        info = read_process(asked, root)
        return info if info is None or asked != pid else ProcessInfo(**{**vars(info), **fields})

    monkeypatch.setattr(views, "read_process", read)


def test_a_scope_is_stopped_where_a_process_off_the_gpu_would_start_its_like_again(children: Any) -> None:
    shell, child = start(children)
    found = view_of("run-r8.scope", [shell, child], [child])
    assert found.supervisor == "sh (pid %d)" % shell
    assert view_of("run-r8.scope", [shell, child], [child, shell]).supervisor is None, "both are ended"
    assert view_of("run-r8.scope", [child], [child]).supervisor is None, "who started it is elsewhere"
    assert view_of("run-r8.service", [shell, child], [child]).supervisor is None, "a service needs no such reason"


@pytest.mark.parametrize("unit", [
    "session-3.scope", "init.scope", "app-code-4711.scope", "vte-spawn-0a.scope", "tmux-spawn-0a.scope", "snap.firefox.firefox-1b2.scope",
    "tab(33).scope", "kitty-33-1.scope", "gnome-launched-foo.scope", "flatpak-org.x-1.scope",
])
def test_a_persons_scope_is_never_stopped_for_one_process_in_it(children: Any, unit: str) -> None:
    shell, child = start(children)
    assert view_of(unit, [shell, child], [child]).supervisor is None


def test_a_scope_with_somebodys_shell_or_a_protected_process_or_this_task_is_not_stopped(
    children: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    shell, child = start(children)
    assert view_of("job.scope", [shell, child, os.getpid()], [child]).supervisor is None
    alike(monkeypatch, shell, argv=("-bash",), comm="bash")
    assert view_of("job.scope", [shell, child], [child]).supervisor is None
    alike(monkeypatch, shell, argv=("tmux",), comm="tmux: server")
    assert view_of("job.scope", [shell, child], [child]).supervisor is not None
    alike(monkeypatch, shell, argv=("sudo", "-u", "alice"), comm="sudo")
    assert view_of("job.scope", [shell, child], [child]).supervisor is None
    alike(monkeypatch, shell, terminal=34816)
    for scope in ("job.scope", "run-r8.scope"):
        assert view_of(scope, [shell, child], [child]).supervisor is None, "somebody sits there"


def test_a_scope_with_a_name_that_somebody_chose_is_stopped_only_outside_sessions_and_users_managers(children: Any) -> None:
    shell, child = start(children)

    def supervisor(scope: str, uid: "int | None", of_slice: str) -> Optional[str]:
        systemd = FakeSystemd(Clock(), units={scope: active(scope, 0, slice=of_slice)}, members={scope: [shell, child]})
        ports = Ports(systemd=systemd, user_systemd=lambda _uid: systemd)  # type: ignore[arg-type,return-value]
        holders = [holder(child, unit=(scope, uid))]
        return views.unit_views(ReclaimRequest(scope="all"), holders, ports)[scope, uid].supervisor

    assert supervisor("job.scope", None, "system.slice") is not None
    assert supervisor("job.scope", None, "user-1000.slice") is None
    assert supervisor("job.scope", 1000, "app.slice") is None
    assert supervisor("run-r8.scope", 1000, "app.slice") is not None


def test_a_named_scope_is_held_against_its_processes_as_well() -> None:
    found = view_of("job.scope", [os.getpid()], [], named=True)
    assert found.protected_by is not None and "it runs this task" in found.protected_by


@pytest.mark.parametrize(("comm", "named", "locked"), [
    ("nvidia-smi", True, False), ("nvidia-smi", False, True), ("sudo", True, False), ("Xorg", True, True), ("sshd", True, True),
])
def test_a_helper_of_a_named_unit_ends_with_it(
    children: Any, monkeypatch: pytest.MonkeyPatch, comm: str, named: bool, locked: bool
) -> None:
    """A logger that a service starts beside its server is the service's own; what is the host's never is."""
    main, helper = start(children)
    alike(monkeypatch, helper, comm=comm, argv=(comm,), exe="/usr/bin/" + comm)
    found = view_of("vllm-a.service", [main, helper], [main], main, named)
    assert (found.protected_by is not None) is locked
    assert found.helpers == (frozenset() if locked else frozenset({helper}))
    if locked and comm == "nvidia-smi":
        assert "named in `services` the unit is stopped, and this ends with it" in str(found.protected_by)


def test_a_helper_that_the_caller_protects_or_that_somebody_else_started_locks_the_unit(
    children: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    main, helper = start(children)
    alike(monkeypatch, helper, comm="nvidia-smi", argv=("nvidia-smi",), exe="/usr/bin/nvidia-smi")
    assert view_of("vllm-a.service", [main, helper], [main], main, True, protect=("process:nvidia-smi",)).protected_by is not None
    stranger, _child = start(children)
    assert view_of("vllm-a.service", [stranger, helper], [stranger], stranger, True).protected_by is not None
    assert view_of("logger.service", [helper], [helper], helper, True).protected_by is not None, "what the unit is for is protected"


@pytest.mark.parametrize("named", [True, False])
def test_a_unit_with_a_process_of_another_user_is_no_ones_among_users_to_stop(
    children: Any, monkeypatch: pytest.MonkeyPatch, named: bool
) -> None:
    """A hub that root runs, with everybody's notebooks in it: the process that tells is on no GPU."""
    hub, notebook = start(children)
    alike(monkeypatch, notebook, user="alice", uid=4711)
    me, number = user_name(os.getuid()), str(os.getuid())
    users: Tuple[str, ...]
    for users in (("alice",), ("4711",)):
        found = view_of("jupyterhub.service", [hub, notebook], [notebook], hub, named, users=users)
        assert found.protected_by == "it also runs sh (pid %d): its user %s is not among `users`" % (hub, me)
    for users in (("alice", me), ("4711", number), ()):
        assert view_of("jupyterhub.service", [hub, notebook], [notebook], hub, named, users=users).protected_by is None
    assert view_of("run-r8.scope", [hub, notebook], [notebook], users=("alice",)).supervisor is None
    assert view_of("run-r8.scope", [hub, notebook], [notebook], users=("alice", me)).supervisor is not None


def test_the_change_of_user_around_a_named_units_server_is_not_another_users(children: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    main, server = start(children)
    seen: Dict[int, Dict[str, Any]] = {
        main: {"comm": "sudo", "argv": ("sudo",), "exe": "/usr/bin/sudo"}, server: {"user": "alice", "uid": 4711},
    }

    def read(pid: int, root: str = "/proc") -> "ProcessInfo | None":
        info = read_process(pid, root)
        return None if info is None else ProcessInfo(**{**vars(info), **seen.get(pid, {})})

    monkeypatch.setattr(views, "read_process", read)
    assert view_of("train.service", [main, server], [server], main, True, users=("alice",)).protected_by is None
    assert view_of("train.service", [main, server], [server], main, True, users=("bob",)).protected_by is not None


def test_a_unit_that_is_named_by_an_alias_is_the_one_that_its_processes_are_in(children: Any) -> None:
    """Known by the alias alone it would hold no GPU, be no unit of the host's, and be stopped beside itself."""
    main, server = start(children)
    real = active("ssh.service", main)
    systemd = FakeSystemd(Clock(), units={"ssh.service": real, "front-door.service": real}, members={"ssh.service": [main, server]})
    request = ReclaimRequest(scope="services", services=("front-door",))
    holders = [holder(server, unit=("ssh.service", None), gpus=(1,))]
    found = views.unit_views(request, holders, Ports(systemd=systemd))  # type: ignore[arg-type]
    assert found["front-door.service", None] is found["ssh.service", None]
    assert found["ssh.service", None].unit == "ssh.service" and found["ssh.service", None].host_unit is not None
    assert found["ssh.service", None].aliases == {"front-door.service"}


@pytest.mark.parametrize(("state", "rising"), [
    ({"active_state": "activating", "sub_state": "start-pre"}, True), ({"active_state": "activating", "sub_state": "auto-restart"}, True),
    ({"active_state": "deactivating"}, True), ({"job": 7}, True), ({}, False),
])
def test_a_named_unit_is_on_its_way_up_where_systemd_says_so(state: Any, rising: bool) -> None:
    status = replace(active("train.service", 0), **state)
    systemd = FakeSystemd(Clock(), units={"train.service": status})
    request = ReclaimRequest(scope="services", services=("train",))
    assert views.unit_views(request, [], Ports(systemd=systemd))["train.service", None].rising is rising  # type: ignore[arg-type]


def test_what_a_named_units_processes_hold_outside_its_cgroup_is_its_own(children: Any) -> None:
    server, worker = start(children)
    systemd = FakeSystemd(Clock(), units={"vllm-a.service": active("vllm-a.service", server)}, members={"vllm-a.service": [server]})
    request = ReclaimRequest(scope="services", services=("vllm-a",))

    def seen(*holders: Holder, **ports: Any) -> UnitView:
        return views.unit_views(request, holders, Ports(systemd=systemd, **ports))["vllm-a.service", None]  # type: ignore[arg-type]

    assert seen(holder(worker, [2, 3])).elsewhere == {2, 3}
    assert seen(holder(worker, [2], container="c0ffee")).elsewhere == seen(holder(worker, [2], unit=("b.service", None))).elsewhere == set()
    assert seen(holder(os.getpid(), [2])).elsewhere == set()
    assert not seen().opens_driver and not seen().loads
    assert seen(device_holders=lambda root: {server: frozenset({"/dev/nvidiactl"})}).opens_driver
    sleeper = "import time; print(flush=True); time.sleep(60)"
    with subprocess.Popen(["python3", "-c", sleeper, "vllm serve m"], stdout=subprocess.PIPE) as young:
        assert young.stdout is not None
        young.stdout.readline()  # only then is its command line its own
        systemd.units["vllm-a.service"] = active("vllm-a.service", young.pid)
        systemd.members["vllm-a.service"] = [young.pid]
        assert seen().loads
        young.kill()
