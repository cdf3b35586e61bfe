# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Whose the processes on a GPU are, also when one of them can't be looked at."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Dict, FrozenSet, Iterable, List, Mapping, Optional, Tuple, cast

import pytest

from ansible_collections.gpufleet.vllm.plugins.module_utils._core.errors import GpuFleetError
from ansible_collections.gpufleet.vllm.plugins.module_utils._gpu import raw
from ansible_collections.gpufleet.vllm.plugins.module_utils._gpu.driver import Driver
from ansible_collections.gpufleet.vllm.plugins.module_utils._gpu.look import Belongs, look
from ansible_collections.gpufleet.vllm.plugins.module_utils._gpu.worker import WorkerGone
from ansible_collections.gpufleet.vllm.plugins.module_utils._process.inspect import Inspection
from ansible_collections.gpufleet.vllm.plugins.module_utils._process.types import CgroupOwner, ProcessInfo


def process(pid: int, title: str, ppid: int = 1) -> ProcessInfo:
    """A process by its title."""
    return ProcessInfo(pid, ppid, title.split(" ")[0].rsplit("/", 1)[-1][:15], "S", 1, 1.0, 0, "root", title, tuple(title.split(" ")),
                       "/usr/bin/python3")


WORKER = process(50, "VLLM::Worker_TP0", 40)
ENGINE = process(40, "VLLM::EngineCore", 30)
SERVER = process(30, "/opt/vllm/bin/python3 /opt/vllm/bin/vllm serve x")
INIT = process(1, "/sbin/init", 0)
SCOPE = CgroupOwner(session="7", scope="session-7.scope", uid=1000)


def belongs(owner: CgroupOwner, states: Dict[str, str], family: Tuple[ProcessInfo, ...] = (ENGINE, SERVER, INIT), run: str = "/nowhere",
            info: ProcessInfo = WORKER) -> "Tuple[Optional[bool], List[str]]":
    """The answer, and which units were asked for."""
    asked: List[str] = []

    def ask(unit: str) -> str:
        asked.append(unit)
        return states.get(unit, "active")

    inspection = Inspection(infos={each.pid: each for each in (info, *family)})
    answer = Belongs(ask, inspection, run)
    answer(info, owner)
    return answer(info, owner), asked


@pytest.mark.parametrize(
    ("state", "answer"),
    [("active", True), ("activating", True), ("deactivating", True), ("reloading", True), ("inactive", False), ("failed", False),
     ("", True)],
)
def test_a_unit_answers_for_its_processes_unless_it_is_down(state: str, answer: bool) -> None:
    # what can't be asked counts as active: nobody's process is never guessed
    assert belongs(CgroupOwner(unit="vllm-a.service"), {"vllm-a.service": state}) == (answer, ["vllm-a.service"])


def test_a_users_unit_is_the_users_managers() -> None:
    owner = CgroupOwner(unit="vllm.service", user_unit=True, uid=1000)
    assert belongs(owner, {}) == (True, ["user@1000.service"])
    assert belongs(owner, {"user@1000.service": "inactive"})[0] is False


def test_nobody_is_asked_for_what_is_not_vllms() -> None:
    assert belongs(CgroupOwner(unit="ollama.service"), {}, (), info=process(60, "ollama serve")) == (None, [])
    assert belongs(CgroupOwner(), {}) == (None, [])


def test_a_login_session_answers_while_somebody_is_logged_in(tmp_path: Path) -> None:
    sessions = tmp_path / "systemd/sessions"
    sessions.mkdir(parents=True)
    (sessions / "7").write_text("STATE=active\n")
    assert belongs(SCOPE, {}, run=str(tmp_path)) == (True, ["session-7.scope"])
    (sessions / "7").write_text("STATE=closing\n")
    # logged out: a server that was left running belongs to its user, workers without a server to nobody
    assert belongs(SCOPE, {}, run=str(tmp_path))[0] is True
    assert belongs(SCOPE, {}, (ENGINE, INIT), run=str(tmp_path))[0] is False
    assert belongs(SCOPE, {"session-7.scope": "inactive"})[0] is False


class Stuck:
    """A driver whose child gets stuck at the titles of some processes."""

    def __init__(self, stuck: FrozenSet[int], step: str = "/proc/%d") -> None:
        self.stuck = stuck
        self.step = step
        self.looks: List[FrozenSet[int]] = []
        self.helpers: List[int] = []

    def look(self, pids: Iterable[int], holders: Mapping[int, Any], untitled: FrozenSet[int]) -> Inspection:
        """Looks, unless a title is in the way."""
        self.looks.append(untitled)
        for pid in pids:
            if pid in self.stuck - untitled:
                raise WorkerGone(self.step % pid if "%" in self.step else self.step, True, "stuck")
        return Inspection(infos={pid: process(pid, "" if pid in untitled else "python3 x.py") for pid in pids})


def titles(driver: Stuck) -> "List[Tuple[int, Optional[str]]]":
    """(pid, title) of the processes of a GPU with three."""
    gpu = raw.RawGpu(0, processes=[raw.RawProcess(pid, "C", 1 << 20) for pid in (50, 60, 70)])
    found = look(raw.RawReading(gpus=[gpu]), {}, cast(Driver, driver), ("/proc", "/nowhere"), lambda unit: "active", ())
    return [(each.pid, each.cmdline) for each in found.on(gpu)]


def test_a_process_whose_title_cannot_be_read_costs_only_its_title() -> None:
    driver = Stuck(frozenset({50, 70}))
    assert titles(driver) == [(50, None), (60, "python3 x.py"), (70, None)]
    assert driver.looks == [frozenset(), frozenset({50}), frozenset({50, 70})]


def test_a_look_that_fails_for_another_reason_fails() -> None:
    with pytest.raises(GpuFleetError, match="Reading the host's processes failed: stuck"):
        titles(Stuck(frozenset({50}), "the device holders"))
