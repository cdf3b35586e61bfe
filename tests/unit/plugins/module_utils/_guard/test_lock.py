# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""One start at a time on each GPU."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Dict, List, Optional

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ansible_collections.gpufleet.vllm.plugins.module_utils._guard import claims, lock
from ansible_collections.gpufleet.vllm.plugins.module_utils._guard.claims import MOST_TICKET, Unusable, parse_claim
from ansible_collections.gpufleet.vllm.plugins.module_utils._guard.lock import StartLock

BELONGS = StartLock._belongs
COLLECTIONS = Path(__file__).resolve().parents[5] / "collections"


class World:
    """A directory of claims, with time, cgroups and ports in hand."""

    def __init__(self, root: Path) -> None:
        self.directory = root / "locks"
        self.directory.mkdir()
        self.cgroups = root / "cgroup"
        self.now = 1000.0
        self.listening: List[int] = []

    def lock(self, unit: str) -> StartLock:
        """The lock of one unit, whose directory systemd has made."""
        (self.directory / unit).mkdir(exist_ok=True)
        return StartLock(str(self.directory), unit, lambda: self.now, cgroup_root=str(self.cgroups),
                         answers=lambda host, port: port in self.listening)

    def claim(self, unit: str) -> Dict[str, Any]:
        """What a unit claimed."""
        claim: Dict[str, Any] = json.loads((self.directory / unit / "claim").read_text())
        return claim

    def change(self, unit: str, **changes: Any) -> None:
        """Change a claim."""
        (self.directory / unit / "claim").write_text(json.dumps({**self.claim(unit), **changes}))

    def put(self, unit: str, text: str) -> None:
        """Put a text where a unit's claim is expected."""
        (self.directory / unit).mkdir(exist_ok=True)
        (self.directory / unit / "claim").write_text(text)

    def run(self, unit: str, *pids: int) -> None:
        """Put processes into a unit's cgroup, and make its claim say that it lives there."""
        base = self.cgroups / "system.slice" / unit
        base.mkdir(parents=True, exist_ok=True)
        (base / "cgroup.procs").write_text("".join("%d\n" % pid for pid in pids))
        self.change(unit, cgroup="0::/system.slice/%s\n" % unit)


@pytest.fixture(autouse=True)
def _anywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """Here claims are made by processes of the tests, which run in no unit."""
    monkeypatch.setattr(StartLock, "_belongs", lambda lock, claim: True)


@pytest.fixture
def world(tmp_path: Path) -> World:
    """An empty directory of claims."""
    return World(tmp_path)


def test_the_second_waits_until_the_first_is_ready(world: World) -> None:
    first, second = world.lock("vllm-a.service"), world.lock("vllm-b.service")
    assert first.take(["GPU-0", "GPU-1"], "0.0.0.0", 8000) is None
    assert second.take(["GPU-1", "GPU-2"], "0.0.0.0", 8001) == ("vllm-a.service", ["GPU-1"])
    first.passed()
    world.run("vllm-a.service", 4711)
    assert second.take(["GPU-1"], "0.0.0.0", 8001) == ("vllm-a.service", ["GPU-1"])  # it loads
    world.listening.append(8000)
    assert second.take(["GPU-1"], "0.0.0.0", 8001) is None


def test_other_gpus_are_nobodys_business(world: World) -> None:
    assert world.lock("vllm-a.service").take(["GPU-0"], "0.0.0.0", 8000) is None
    assert world.lock("vllm-b.service").take(["GPU-1"], "0.0.0.0", 8001) is None


def test_a_guard_that_was_killed_holds_nobody_up(world: World) -> None:
    assert world.lock("vllm-a.service").take(["GPU-0"], "0.0.0.0", 8000) is None
    other = world.lock("vllm-b.service")
    assert other.take(["GPU-0"], "0.0.0.0", 8001) is not None
    world.change("vllm-a.service", start_ticks=1)  # the pid means another process by now
    assert other.take(["GPU-0"], "0.0.0.0", 8001) is None


def test_a_server_that_died_while_it_loaded_holds_nobody_up(world: World) -> None:
    first, second = world.lock("vllm-a.service"), world.lock("vllm-b.service")
    first.take(["GPU-0"], "0.0.0.0", 8000)
    first.passed()
    world.run("vllm-a.service")
    assert second.take(["GPU-0"], "0.0.0.0", 8001) is not None  # systemd is just about to start it
    world.now += 11
    assert second.take(["GPU-0"], "0.0.0.0", 8001) is None


def test_a_guard_that_fails_takes_its_claim_back(world: World) -> None:
    first = world.lock("vllm-a.service")
    first.take(["GPU-0"], "0.0.0.0", 8000)
    first.drop()
    first.drop()
    assert world.lock("vllm-b.service").take(["GPU-0"], "0.0.0.0", 8001) is None


def test_a_unit_does_not_wait_for_itself(world: World) -> None:
    first = world.lock("vllm-a.service")
    first.take(["GPU-0"], "0.0.0.0", 8000)
    first.passed()
    world.run("vllm-a.service", 4711)
    assert world.lock("vllm-a.service").take(["GPU-0"], "0.0.0.0", 8000) is None


def test_a_server_without_a_port_is_not_waited_for(world: World) -> None:
    first = world.lock("vllm-a.service")
    first.take(["GPU-0"], "0.0.0.0", None)
    first.passed()
    world.run("vllm-a.service", 4711)
    assert world.lock("vllm-b.service").take(["GPU-0"], "0.0.0.0", 8001) is None


def test_they_go_in_the_order_in_which_they_came(world: World) -> None:
    first, second, third = (world.lock("vllm-%s.service" % name) for name in "cba")
    assert first.take(["GPU-0"], "", 1) is None
    assert second.take(["GPU-0"], "", 2) == ("vllm-c.service", ["GPU-0"])
    first.drop()
    # it comes later and asks first
    assert third.take(["GPU-0"], "", 3) == ("vllm-b.service", ["GPU-0"])
    assert second.take(["GPU-0"], "", 2) is None


def test_one_who_is_about_to_draw_is_waited_for(world: World) -> None:
    assert world.lock("vllm-b.service").take(["GPU-0"], "", 1) is None
    world.change("vllm-b.service", ticket=None)
    assert world.lock("vllm-a.service").take(["GPU-0"], "", 2) == ("vllm-b.service", ["GPU-0"])
    world.change("vllm-b.service", start_ticks=1)  # killed while it drew
    assert world.lock("vllm-c.service").take(["GPU-0"], "", 3) == ("vllm-a.service", ["GPU-0"])


def test_a_guard_whose_process_is_hidden_is_found_in_its_cgroup(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """/proc mounted with hidepid shows other users' processes to nobody but root."""
    first, second = world.lock("vllm-a.service"), world.lock("vllm-b.service")
    assert first.take(["GPU-0"], "", 1) is None
    world.run("vllm-a.service", os.getpid())
    monkeypatch.setattr(lock, "_start_ticks", lambda pid, root: None)
    assert second.take(["GPU-0"], "", 2) is not None
    world.run("vllm-a.service", 1)
    assert second.take(["GPU-0"], "", 2) is None


RUBBISH = ["", "{", "[]", "[" * 30000, '{"unit": 1}', "\x00", '{"gpus": ["GPU-0"], "pid": -1}', '{"pid": 1e999}', "9" * 5000]


@pytest.mark.parametrize("text", RUBBISH)
def test_rubbish_holds_nobody_up(world: World, text: str) -> None:
    world.put("vllm-x.service", text)
    assert world.lock("vllm-b.service").take(["GPU-0"], "0.0.0.0", 8001) is None


def test_nothing_but_a_file_of_sensible_size_is_read(world: World, tmp_path: Path) -> None:
    """A link could lead anywhere, and a FIFO would be waited for without end."""
    assert world.lock("vllm-a.service").take(["GPU-0"], "", 1) is None
    honest = json.dumps(world.claim("vllm-a.service"))
    (tmp_path / "elsewhere").write_text(honest)
    for place in ("a", "linked", "piped", "foldered", "large", "unreadable"):
        (world.directory / ("vllm-%s.service" % place)).mkdir(exist_ok=True)
    (world.directory / "vllm-a.service" / "claim").unlink()
    (world.directory / "vllm-linked.service" / "claim").symlink_to(tmp_path / "elsewhere")
    os.mkfifo(world.directory / "vllm-piped.service" / "claim")
    (world.directory / "vllm-foldered.service" / "claim").mkdir()
    (world.directory / "vllm-large.service" / "claim").write_text(honest + " " * 70000)
    (world.directory / "a-file").write_text(honest)
    assert world.lock("vllm-b.service").take(["GPU-0"], "", 2) is None


def test_a_claim_speaks_for_its_own_unit_only(world: World) -> None:
    """Whatever it says inside: the directory's name is systemd's word."""
    world.lock("vllm-a.service").take(["GPU-0"], "", 1)
    assert world.lock("vllm-b.service").take(["GPU-0"], "", 2) == ("vllm-a.service", ["GPU-0"])
    world.put("vllm-a.service", json.dumps({**world.claim("vllm-a.service"), "unit": "vllm-z.service"}))
    assert world.lock("vllm-c.service").take(["GPU-0"], "", 3) == ("vllm-a.service", ["GPU-0"])


def test_no_link_is_written_through(world: World, tmp_path: Path) -> None:
    world.lock("vllm-a.service")
    target = tmp_path / "precious"
    target.write_text("kept")
    (world.directory / "vllm-a.service" / "claim.new").symlink_to(target)
    with pytest.raises(Unusable):
        world.lock("vllm-a.service").take(["GPU-0"], "", 1)
    assert target.read_text() == "kept"


VALUES = st.one_of(st.none(), st.integers(-5, 5), st.integers(), st.text(max_size=5), st.booleans(), st.floats(),
                   st.lists(st.text(max_size=3), max_size=2), st.sampled_from(["/../x", "a\x00b", "0::/system.slice/vllm-a.service"]))
KEYS = st.sampled_from(["gpus", "host", "port", "pid", "start_ticks", "cgroup", "passed", "ticket"])


@given(st.dictionaries(KEYS, VALUES))
def test_any_claim_is_judged_or_passed_over(changes: Dict[str, Any]) -> None:
    import tempfile

    with tempfile.TemporaryDirectory() as directory:
        world = World(Path(directory))
        other = world.lock("vllm-a.service")
        other.take(["GPU-0"], "127.0.0.1", 1)
        world.change("vllm-a.service", **changes)
        parsed = parse_claim("vllm-a.service", (world.directory / "vllm-a.service" / "claim").read_text())
        assert parsed is None or (parsed.pid > 0 and ".." not in parsed.cgroup.split("/"))
        mine = world.lock("vllm-b.service")
        found = mine.take(["GPU-0"], "127.0.0.1", 2)
        assert found in (None, ("vllm-a.service", ["GPU-0"]))
        assert 1 <= world.claim("vllm-b.service")["ticket"] <= MOST_TICKET


@pytest.mark.parametrize("made", ["", "locks"])
def test_a_directory_that_cannot_be_used_is_said(tmp_path: Path, made: str) -> None:
    (tmp_path / made).mkdir(exist_ok=True)
    with pytest.raises(Unusable, match="No such file or directory"):
        StartLock(str(tmp_path / "locks"), "a.service", time.monotonic).take(["GPU-0"], "", 1)
    with pytest.raises(Unusable, match="No such file or directory"):
        claims.read_claims(str(tmp_path / "nothing"), "a.service")


def test_the_files_can_be_read_by_other_users(world: World) -> None:
    before = os.umask(0o077)
    try:
        world.lock("vllm-a.service").take(["GPU-0"], "", 1)
    finally:
        os.umask(before)
    files = list((world.directory / "vllm-a.service").iterdir())
    assert [path.name for path in files] == ["claim"] and files[0].stat().st_mode & 0o777 == 0o644


def test_only_one_of_many_at_once_gets_it(world: World) -> None:
    code = """
import sys, time
from ansible_collections.gpufleet.vllm.plugins.module_utils._guard.lock import StartLock
StartLock._belongs = lambda its, claim: True  # the racers run in no unit
lock = StartLock(sys.argv[1], sys.argv[2], time.monotonic)
for line in sys.stdin:
    print(lock.take(["GPU-0"], "0.0.0.0", 8000) is None, flush=True)
"""
    env = {**os.environ, "PYTHONPATH": str(COLLECTIONS)}
    for number in range(6):
        world.lock("vllm-%d.service" % number)
    racers = [subprocess.Popen([sys.executable, "-c", code, str(world.directory), "vllm-%d.service" % number], env=env, text=True,
                               stdin=subprocess.PIPE, stdout=subprocess.PIPE) for number in range(6)]
    try:
        rounds = []
        for _round in range(3):
            for racer in racers:
                assert racer.stdin is not None
                racer.stdin.write("\n")
                racer.stdin.flush()
            rounds.append([racer.stdout.readline().strip() for racer in racers if racer.stdout is not None])
        # At first the one whose turn it is may see another that has no ticket yet, and waits for it; all have one when they ask again.
        first, second, third = rounds
        assert sorted(second) == ["False"] * 5 + ["True"] and third == second
        assert first in (second, ["False"] * 6)
    finally:
        for racer in racers:
            racer.kill()
            racer.communicate()


def test_a_port_answers_when_somebody_listens() -> None:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        number = server.getsockname()[1]
        assert not lock.port_answers("0.0.0.0", number)  # bound, as while it loads
        server.listen(1)
        assert lock.port_answers("0.0.0.0", number) and lock.port_answers("127.0.0.1", number)


def answer_of(found: "Optional[tuple[str, List[str]]]") -> str:
    """A short form of an answer."""
    return "ours" if found is None else found[0]


@given(st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from(["take", "drop", "pass"])), max_size=20))
def test_never_two_starters_on_one_gpu(steps: "List[tuple[str, str]]") -> None:
    import tempfile

    with tempfile.TemporaryDirectory() as directory:
        world = World(Path(directory))
        locks = {name: world.lock(name) for name in "abc"}
        queue: List[str] = []
        for name, step in steps:
            owner = queue[0] if queue else None
            if step == "take":
                got = answer_of(locks[name].take(["GPU-0"], "", 8000))
                queue += [name] if name not in queue else []
                assert got == "ours" if queue[0] == name else got in queue
            elif step == "drop" and name in queue:
                locks[name].drop()
                queue.remove(name)
            elif step == "pass" and owner == name:
                locks[name].passed()
                world.run(name, 4711)


def test_a_claim_for_a_process_of_elsewhere_holds_nobody_up(world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A unit's user writes the unit's claim as they like: the host's first process never ends, and is not the unit's."""
    monkeypatch.setattr(StartLock, "_belongs", BELONGS)
    proc = tmp_path / "proc"
    for pid, cgroup in ((1, "/init.scope"), (50, "/system.slice/vllm-a.service/guard"), (51, "/system.slice/vllm-b.service")):
        (proc / str(pid)).mkdir(parents=True)
        (proc / str(pid) / "stat").write_text("%d (x) S 1 %s 7 0\n" % (pid, " ".join(["0"] * 17)))
        (proc / str(pid) / "cgroup").write_text("0::%s\n" % cgroup)
    (world.directory / "vllm-c.service").mkdir()
    waiting = StartLock(str(world.directory), "vllm-c.service", lambda: world.now, proc_root=str(proc), cgroup_root=str(world.cgroups))
    for pid, holds in ((1, False), (50, True), (51, False)):
        claim = {"gpus": ["GPU-0"], "host": "", "port": 1, "pid": pid, "start_ticks": 7, "cgroup": "/", "ticket": 1, "passed": None}
        world.put("vllm-a.service", json.dumps(claim))
        assert (waiting.take(["GPU-0"], "", 8000) is not None) is holds


def test_a_claim_that_is_renewed_for_ever_holds_nobody_up_for_ever(world: World) -> None:
    """The moment that systemd needs to start a server is one moment, however often somebody says that it is now."""
    first, second = world.lock("vllm-a.service"), world.lock("vllm-b.service")
    first.take(["GPU-0"], "0.0.0.0", 8000)
    first.passed()
    world.change("vllm-a.service", cgroup="/")
    held = 0
    for _second in range(30):
        world.now += 1
        world.change("vllm-a.service", passed=world.now)
        held += second.take(["GPU-0"], "0.0.0.0", 8001) is not None
    assert 0 < held <= 11
