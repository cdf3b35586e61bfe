# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Random trees of real processes against random scopes. What must hold is decided here a second time, from the scope alone.

No process outside the scope is ever signalled, and each one inside is gone or reported.
"""

from __future__ import annotations

import fnmatch
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Dict, FrozenSet, List, Optional, Set
from unittest import mock

from ansible_collections.gpufleet.vllm.plugins.module_utils._core.clock import Clock
from ansible_collections.gpufleet.vllm.plugins.module_utils._core.errors import GpuFleetError
from ansible_collections.gpufleet.vllm.plugins.module_utils._process.procfs import read_process
from ansible_collections.gpufleet.vllm.plugins.module_utils._reclaim import look as looking
from ansible_collections.gpufleet.vllm.plugins.module_utils._reclaim import unit_views, units
from ansible_collections.gpufleet.vllm.plugins.module_utils._reclaim.request import Candidate, ReclaimRequest
from ansible_collections.gpufleet.vllm.plugins.module_utils._reclaim.run import reclaim
from ansible_collections.gpufleet.vllm.tests.unit.plugins.module_utils._reclaim.machine import Machine
from ansible_collections.gpufleet.vllm.tests.unit.plugins.module_utils._reclaim.world import (
    Behaviour,
    FakeSystemd,
    active,
)

GPUS = 4
# Names that the built-in table protects, and names that it doesn't.
PROTECTED_NAMES = ("Xorg", "nvidia-persiste", "nvidia-smi", "sshd", "containerd-shim")
NAMES = ("VLLM::EngineCor", "VLLM::Worker_TP", "python3", "train", "ray::RayWorkerWr") + PROTECTED_NAMES[:2]
UNITS = ("vllm-a.service", "train.service", "sshd.service")
HOST_UNIT = "sshd.service"
# A unit of a user's own manager; no request names it, since `services` are the system's.
USER_UNIT = "notebook.service"
USER_UID = 4242
# What the nursery is told of a process.
_PLANTED = ("parent", "name", "deaf", "reaps", "session", "threads", "forks", "stopped", "leaves", "zombie")


@dataclass
class Member:
    """One process of a tree, and what the test makes of it."""

    parent: Optional[int]
    name: str
    deaf: bool
    reaps: bool
    gpus: FrozenSet[int]
    orphan: bool
    vllm: bool
    unit: Optional[str]
    container: bool
    proven: bool
    session: bool = False
    threads: int = 0
    forks: bool = False
    stopped: bool = False
    leaves: Optional[float] = None
    nested: str = ""
    zombie: bool = False
    reused: bool = False
    pid: int = 0
    ticks: int = 0

    @property
    def alive(self) -> bool:
        """Whether it still runs."""
        info = read_process(self.pid)
        return info is not None and not info.zombie and info.start_ticks == self.ticks

    @property
    def unreaped(self) -> bool:
        """Whether it has ended and is still there."""
        info = read_process(self.pid)
        return info is not None and info.zombie and info.start_ticks == self.ticks


@dataclass
class Case:
    """One tree with one request."""

    members: List[Member]
    down: Set[str]
    request: ReclaimRequest
    chosen: Optional[Set[int]] = field(default=None)


def make_case(rng: random.Random) -> Case:
    """A random tree and a random request."""
    members: List[Member] = []
    for index in range(rng.randint(1, 7)):
        parent = rng.choice([None] + list(range(index))) if index else None
        unit = rng.choice([None, None, None] + list(UNITS))
        orphan = rng.random() < 0.5
        members.append(Member(
            parent=parent,
            name=rng.choice(NAMES),
            deaf=rng.random() < 0.15,
            reaps=rng.random() < 0.7,
            gpus=frozenset(index for index in range(GPUS) if rng.random() < 0.35),
            orphan=orphan,
            vllm=orphan or rng.random() < 0.5,
            unit=unit,
            container=rng.random() < 0.1,
            proven=rng.random() < 0.9,
        ))
    down = {unit for unit in UNITS if rng.random() < 0.4}
    scope = rng.choice(["orphans", "services", "all"])
    request = ReclaimRequest(
        gpus=tuple(str(index) for index in range(GPUS) if rng.random() < 0.6),
        scope=scope,
        services=tuple(rng.sample(UNITS, rng.randint(1, 2))) if scope == "services" else (),
        protect=rng.choice([(), (), ("process:train",), ("unit:train.service",), ("user:*",)]),
        max_used_mib=10**6 if rng.random() < 0.95 else 1024,
        grace=rng.choice([0.0, 0.05]),
        timeout=4.0,
        settle=0.0,
        min_age=rng.choice([0.0] * 9 + [3600.0]),
        users=rng.choice([()] * 5 + [("nobody-has-this-name",)]),
        accept=rng.choice(["nothing", "anything"]),
    )
    case = Case(members, down, request)
    if rng.random() < 0.2:
        case.chosen = {index for index in range(len(members)) if rng.random() < 0.6}
    _vary(rng, members)
    _vary_more(rng, case)
    _vary_units(rng, case)
    return case


def _vary(rng: random.Random, members: List[Member]) -> None:
    """What else real processes do. Drawn last, so that a seed of before still grows the same tree."""
    for member in members:
        member.session = rng.random() < 0.3
        member.threads = rng.choice([0, 0, 0, 3])
        member.forks = rng.random() < 0.2
        member.stopped = rng.random() < 0.1
        member.leaves = rng.uniform(0.0, 0.05) if rng.random() < 0.1 else None
        member.nested = rng.choice(["", "", "/payload", "/a.slice/worker-1.scope"])


def _vary_more(rng: random.Random, case: Case) -> None:
    """Users' units, zombies that the driver still lists, and pids that mean another process than the one the driver saw."""
    if rng.random() < 0.5:
        case.down.add(USER_UNIT)
    for index, member in enumerate(case.members):
        kind = rng.random()
        has_children = any(other.parent == index for other in case.members)
        if kind < 0.25 and member.unit is None:
            member.unit = USER_UNIT
        elif kind < 0.35 and member.parent is not None and not has_children:
            keeper = case.members[member.parent]
            # A parent that leaves, or stops before it could, would have it reaped in the middle of the run.
            if keeper.leaves is None and not keeper.zombie:
                keeper.reaps = False
                member.zombie, member.leaves, member.stopped = True, None, False
        elif kind < 0.42 and member.leaves is None:
            member.reused = True


def _vary_units(rng: random.Random, case: Case) -> None:
    """In some trees a unit that runs on the GPUs, mostly such that the scope covers it: chance alone makes few of them."""
    if rng.random() >= 0.3 or any(inside_scope(case, member) for member in case.members):
        return
    unit = rng.choice([*UNITS[:2], USER_UNIT])
    case.down.discard(unit)
    for member in rng.sample(case.members, rng.randint(1, len(case.members))):
        member.unit = unit
        if rng.random() < 0.9:
            member.name, member.proven, member.container, member.reused = rng.choice(NAMES[:5]), True, False, False
            member.gpus |= {rng.randrange(GPUS)}
    if rng.random() < 0.8:
        case.chosen = None
        named = case.request.scope == "services" and unit != USER_UNIT
        case.request = _changed(
            case.request, scope="services" if named else "all", services=(unit,) if named else (), users=(), min_age=0.0
        )


# What must hold, from the contract's words alone.


def untouchable(case: Case, member: Member) -> bool:
    """Never to be ended, whatever the scope: protected, in a container, or not proven."""
    request = case.request
    if member.name in PROTECTED_NAMES or not member.proven or member.reused:
        return True
    for pattern in request.protect:
        kind, _colon, glob = pattern.partition(":")
        value = {"process": member.name, "unit": member.unit or "", "user": "anybody"}[kind]
        if fnmatch.fnmatchcase(value, glob):
            return True
    return False


def filtered(case: Case, member: Member) -> bool:
    """Left out by the caller's own filters."""
    index = case.members.index(member)
    return bool(case.request.users) or case.request.min_age > 0 or (case.chosen is not None and index not in case.chosen)


def unit_may_be_stopped(case: Case, unit: str) -> bool:
    """Whether the scope covers a unit that runs: named or all, and nothing in it speaks against it."""
    request = case.request
    if unit in case.down or unit == HOST_UNIT or request.scope == "orphans":
        return False
    # One that leaves by itself speaks for its unit only as long as it is there.
    staying = [member for member in case.members if member.leaves is None and not member.zombie and not member.reused]
    inside = [member for member in staying if member.unit == unit]
    if any(member.name in PROTECTED_NAMES for member in inside):
        return False
    if any(untouchable(case, member) and member.proven for member in inside):
        return False
    if any(filtered(case, member) for member in inside if member.gpus):
        return False
    if request.scope == "services":
        return unit in request.units
    return not any(member.container for member in inside if member.gpus)


def inside_scope(case: Case, member: Member) -> bool:
    """Whether this process itself is to be ended by a signal."""
    if member.zombie or not member.gpus & selected(case) or untouchable(case, member) or member.container or filtered(case, member):
        return False
    runs = member.unit is not None and member.unit not in case.down
    if case.request.scope == "all":
        return not runs or member.unit == HOST_UNIT
    return member.orphan and not runs


def selected(case: Case) -> Set[int]:
    """The GPUs asked for."""
    return {int(index) for index in case.request.gpus} or set(range(GPUS))


class Forest:
    """Runs cases one after the other on one nursery."""

    def __init__(self) -> None:
        self._directory = tempfile.TemporaryDirectory(prefix="gpufleet-trees-")
        self.log = Path(self._directory.name) / "signals"
        script = str(Path(__file__).with_name("nursery.py"))
        self._nursery = subprocess.Popen(
            [sys.executable, "-S", script, str(self.log)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self.ended = self.spared = self.units = self.left = 0
        self.zombies = self.reused = self.users_units = 0

    def close(self) -> None:
        """End everything."""
        self._ask("end")
        assert self._nursery.stdin is not None and self._nursery.stdout is not None
        self._nursery.stdin.close()
        self._nursery.wait(10)
        self._nursery.stdout.close()
        self._directory.cleanup()

    def run(self, case: Case) -> None:
        """Plant the tree, reclaim, and hold what happened against the scope."""
        self.log.write_text("")
        tree = [{key: getattr(each, key) for key in _PLANTED} for each in case.members]
        for member, pid in zip(case.members, self._ask(json.dumps(tree)), strict=True):
            info = read_process(pid)
            # One that has left already keeps its number, and a start that no process has.
            member.pid, member.ticks = pid, -1 if info is None else info.start_ticks
        deadline = time.monotonic() + 5
        while not all(member.unreaped for member in case.members if member.zombie):
            assert time.monotonic() < deadline  # it tells its pid a moment before it ends
            time.sleep(0.001)
        try:
            self._judge(case, self._reclaim(case))
        finally:
            self._ask("end")

    def _ask(self, line: str) -> List[int]:
        assert self._nursery.stdin is not None and self._nursery.stdout is not None
        self._nursery.stdin.write(line + "\n")
        self._nursery.stdin.flush()
        answer: List[int] = json.loads(self._nursery.stdout.readline())
        return answer

    def _reclaim(self, case: Case) -> Dict[str, Any]:
        machine = Machine(gpus=GPUS, systemd=FakeSystemd(Clock()))
        by_pid = {member.pid: member for member in case.members}
        for member in case.members:
            for index in member.gpus:
                # A process of before had the pid; it started seven ticks earlier.
                listed_for = member.ticks - 7 if member.reused else member.ticks if member.zombie else None
                machine.claim(
                    member.pid, index, 100, member.ticks, listed_for,
                    vllm=member.vllm, orphan=member.orphan, proven=member.proven, name=member.name,
                )
        users = FakeSystemd(Clock())
        for unit in (*UNITS, USER_UNIT):
            manager = users if unit == USER_UNIT else machine.systemd
            if unit not in case.down:
                manager.units[unit] = active(unit, main_pid=1_000_000)
                manager.behaviours[unit] = Behaviour(after=0.0)
            manager.members[unit] = [member.pid for member in case.members if member.unit == unit]
            manager.on_stopped = lambda name: self._stopped(case, name)
        request = case.request
        if case.chosen is not None:
            chosen = [case.members[index] for index in sorted(case.chosen)]
            starts = [(member.pid, read_process(member.pid)) for member in chosen]
            request = _changed(
                request, candidates=tuple(Candidate(pid, info.start_time or 0.0) for pid, info in starts if info)
            )

        def cgroup(pid: int, root: str = "/proc") -> str:
            member = by_pid.get(pid)
            if member is None:
                return "0::/\n"
            path = "/system.slice/%s%s" % (member.unit, member.nested) if member.unit else ""
            if member.unit == USER_UNIT:
                path = "/user.slice/user-%d.slice/user@%d.service/app.slice/%s%s" % (USER_UID, USER_UID, member.unit, member.nested)
            return "0::%s/%s\n" % (path, "docker-%s.scope" % ("ab" * 32) if member.container else "")

        with mock.patch.object(looking, "cgroup_text", cgroup), mock.patch.object(unit_views, "cgroup_text", cgroup), \
                mock.patch.object(units, "cgroup_text", cgroup), mock.patch.object(os, "geteuid", lambda: 0):
            try:
                return reclaim(request, machine.ports(user_systemd=lambda uid: users)).to_result()
            except GpuFleetError as exc:
                return dict(exc.result, msg=exc.msg)
            finally:
                machine.end()

    @staticmethod
    def _stopped(case: Case, unit: str) -> None:
        """systemd ends a unit's processes, all of them."""
        for member in case.members:
            if member.unit == unit and member.alive:
                os.kill(member.pid, signal.SIGKILL)
        deadline = time.monotonic() + 5
        while any(member.alive for member in case.members if member.unit == unit):
            assert time.monotonic() < deadline
            time.sleep(0.001)

    def _judge(self, case: Case, result: Dict[str, Any]) -> None:
        told = {int(line.split()[0]) for line in self.log.read_text().splitlines()}
        stopped = {each["unit"] for each in result["stopped_units"]}
        allowed = {unit for unit in (*UNITS, USER_UNIT) if unit_may_be_stopped(case, unit)}
        assert stopped <= allowed, "units stopped outside the scope: %s" % (stopped - allowed)
        signalled = {each["pid"] for each in result["signalled"]}
        named = {each["pid"] for each in result["left_alone"] + result["unkillable"]}
        stray = told - {member.pid for member in case.members}
        assert not stray, "%s, forked by a process that was told to end and on no GPU, were told as well" % sorted(stray)
        for member in case.members:
            if member.unit in stopped:
                continue
            if member.zombie:
                assert member.pid not in told | signalled, "pid %d, a zombie, was signalled" % member.pid
                # One that is still there at the end was there all the time, and was on a GPU that was asked for.
                if member.unreaped and member.gpus & selected(case):
                    assert member.pid in named, "pid %d, a zombie, was not named" % member.pid
                    self.zombies += 1
            elif member.leaves is not None:
                # It may have gone before the look, between look and signal, or not yet: only who is outside is spared for sure.
                assert inside_scope(case, member) or member.pid not in told | signalled
                self.left += 1
            elif inside_scope(case, member):
                assert not member.alive or member.pid in named, "pid %d (%s) was left and not named" % (member.pid, member.name)
                self.ended += not member.alive
            else:
                assert member.alive, "pid %d (%s) outside the scope is gone" % (member.pid, member.name)
                assert member.pid not in told, "pid %d (%s) outside the scope was signalled" % (member.pid, member.name)
                assert member.pid not in signalled
                self.spared += 1
                self.reused += member.reused
        for unit in stopped:
            self.units += 1
            self.users_units += unit == USER_UNIT
            speaking = [member for member in case.members if member.unit == unit and not member.zombie and not member.reused]
            assert any(member.gpus & selected(case) for member in speaking), "%s was stopped and is on no GPU asked for" % unit


def _changed(request: ReclaimRequest, **values: Any) -> ReclaimRequest:
    return ReclaimRequest(**{**vars(request), **values})


def grow(count: int, seed: int) -> Forest:
    """Run so many cases; an AssertionError names the seed of the one that failed."""
    forest = Forest()
    try:
        for number in range(count):
            case = make_case(random.Random(seed * 1_000_003 + number))
            try:
                forest.run(case)
            except AssertionError as exc:
                raise AssertionError("tree %d of seed %d: %s\n%s" % (number, seed, exc, case)) from exc
    finally:
        forest.close()
    return forest
