# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A host that can die at any moment, with what a borrowed command is to it: a unit that begins, runs for a while and ends."""

from __future__ import annotations

import os
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.gpufleet.vllm.plugins.module_utils._borrow import borrowing
from ansible_collections.gpufleet.vllm.plugins.module_utils._borrow.hidden import PREFIX
from ansible_collections.gpufleet.vllm.plugins.module_utils._borrow.request import to_borrow
from ansible_collections.gpufleet.vllm.plugins.module_utils._core.files import WantedFile
from ansible_collections.gpufleet.vllm.plugins.module_utils._core.runner import Completed
from ansible_collections.gpufleet.vllm.plugins.module_utils._gpu.types import Gpu, GpuProcess
from ansible_collections.gpufleet.vllm.plugins.module_utils._job import borrow as borrow_module
from ansible_collections.gpufleet.vllm.plugins.module_utils._job.borrow import borrow
from ansible_collections.gpufleet.vllm.plugins.module_utils._process.types import ProcessInfo
from ansible_collections.gpufleet.vllm.plugins.module_utils._systemd.journal import JournalLine
from ansible_collections.gpufleet.vllm.plugins.module_utils._systemd.show import UnitStatus
from ansible_collections.gpufleet.vllm.plugins.module_utils._unit.change_unit import CHANGE_UNIT
from ansible_collections.gpufleet.vllm.tests.unit.plugins.module_utils._job import host as base
from ansible_collections.gpufleet.vllm.tests.unit.plugins.module_utils._job.host import OLD, Death, Host, Reader
from ansible_collections.gpufleet.vllm.tests.unit.plugins.module_utils._service.world import gpu

ASKED: dict[str, Any] = {"command": "bench --all", "gpus": ["0", "1"], "timeout": 60, "stop_timeout": 5, "grace": 2}


@dataclass
class Program:
    """The borrowed command: how long it runs, how it ends, and what it leaves behind."""

    seconds: float = 5.0
    rc: int = 0
    signal: int = 0
    leaves: tuple[int, ...] = ()
    hangs: bool = False
    writes: tuple[str, ...] = ("working", "187.21 GB/s")
    begin_rc: int = 0  # what systemd-run ends with
    starts: list[list[str]] = field(default_factory=list)


class Place(Host):
    """The host, where systemd-run begins the one program that is meant."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.program = Program()
        self.strangers: tuple[GpuProcess, ...] = ()
        self.strangers_after: tuple[GpuProcess, ...] = ()  # who come with the command
        self.gives_up = False
        self.along: tuple[str, ...] = ()  # what systemd stops with a service
        self.given: list[tuple[str, int]] = []  # the environment files that systemd has read
        self.unlisted_mib = 0  # in use on GPU 1 by nobody that the driver shows
        self.runner = _Runner(self)
        self.began: float | None = None
        units: Any = self.units
        units.__class__ = _Units

    @classmethod
    def that_serves(cls, root: Path) -> Place:
        """One service serves on all of its four GPUs."""
        found = cls(root)
        found.install("old")
        found.serving()
        return found

    def ports(self) -> Any:
        return replace(super().ports(), journal=_Journal(self), open_reader=lambda: _Reader(self))  # type: ignore[arg-type]

    def run_job(self) -> None:
        """What systemd does when the module has it start the job."""
        self.job().run()

    def asks(self, check: bool = False, **more: Any) -> dict[str, Any]:
        """The module, from its parameters to its result."""
        params = {**ASKED, **more}
        force, wait = params.pop("force", False), params.pop("wait", True)
        return borrow(params, to_borrow(params), self.ports(), check, wait, force)

    def dies_while_it_runs(self, **more: Any) -> None:
        """The module asks, and its job is killed when the command has begun. The host lives on."""
        clock, real = self.units.clock, self.units.clock.sleep

        def sleep(seconds: float) -> None:
            if self.program.starts and not self.dead:
                self.dead = True
                raise Death
            real(seconds)

        clock.sleep = sleep  # type: ignore[method-assign]
        try:
            with pytest.raises(Death):
                self.asks(**more)
        finally:
            clock.sleep, self.dead = real, False  # type: ignore[method-assign]

    def dies_at(self, number: int, **more: Any) -> bool:
        """The module asks, and whoever is at work dies before the ``number``-th change of the host; False when it came to its end."""
        self.count, self.die_at = 0, number
        try:
            self.asks(**more)
        except Death:
            return True
        finally:
            self.die_at, self.dead = None, False
        return False

    def hidden(self) -> list[str]:
        """The files that hold what the command was given in confidence."""
        return sorted(path.name for path in (self.root / "run").glob("gpufleet-borrow-*"))

    def unit(self) -> str:
        return next((name for name in self.units.units if name.startswith(PREFIX)), "")

    def revive(self, reboot: bool) -> None:
        if reboot:
            for name in [name for name in self.units.units if name.startswith(PREFIX)]:
                del self.units.units[name]
            self.began = None
        super().revive(reboot)


class _Units(base.Units):
    """Transient units are there only as long as they run, or as what became of them stands."""

    def _now(self, unit: str) -> UnitStatus:
        host: Any = self.host
        if not unit.startswith(PREFIX):
            return super()._now(unit)
        found = self.units.get(unit)
        if found is None or host.began is None:
            return UnitStatus(unit, "not-found", "inactive", "dead")
        program, ran = host.program, self.clock.now - host.began
        limit = float(ASKED["timeout"])
        if program.hangs and ran >= limit:
            return replace(found, active_state="failed", sub_state="failed", result="timeout", main_pid=0, exec_main_code="killed",
                           exec_main_status=15)
        if program.hangs or ran < program.seconds:
            return found
        if program.signal:
            return replace(found, active_state="failed", sub_state="failed", result="signal", main_pid=0, exec_main_code="killed",
                           exec_main_status=program.signal)
        if program.rc:
            return replace(found, active_state="failed", sub_state="failed", result="exit-code", main_pid=0, exec_main_code="exited",
                           exec_main_status=program.rc)
        return replace(found, sub_state="exited", main_pid=0, exec_main_code="exited", exec_main_status=0)

    def start(self, unit: str, no_block: bool = True, timeout: float = 30.0) -> None:
        if unit == CHANGE_UNIT:
            host: Any = self.host
            host.run_job()
        else:
            super().start(unit)

    def bring_up(self, unit: str) -> None:
        super().bring_up(unit)
        host: Any = self.host
        host.runs = getattr(host, "runs", 0) + 1
        self.units[unit] = replace(self.units[unit], invocation_id="%032x" % host.runs)

    def stop(self, unit: str, no_block: bool = True, timeout: float = 30.0) -> None:
        if not unit.startswith(PREFIX):
            super().stop(unit)
            return
        self.host.mutation("stop the command")
        self.log.append("stop " + unit)
        self.units.pop(unit, None)

    def reset_failed(self, unit: str) -> None:
        if unit.startswith(PREFIX):
            self.units.pop(unit, None)
        else:
            super().reset_failed(unit)

    def stopped_with(self, unit: str) -> list[str]:
        host: Any = self.host
        return list(host.along)

    def cgroup_pids(self, unit: str, status: UnitStatus | None = None) -> list[int]:
        host: Any = self.host
        return list(host.program.leaves) if unit.startswith(PREFIX) and unit in self.units else []


class _Runner(base.Quiet):
    def __init__(self, host: Place) -> None:
        self.host = host

    def run(self, argv: Any, timeout: float = 30.0, stdin: Any = None, env: Any = None) -> Any:
        if argv[0] == "systemd-run":
            self.host.mutation("begin the command")
            unit = next(word.partition("=")[2] for word in argv if word.startswith("--unit="))
            self.host.program.starts.append(list(argv))
            for word in argv:
                if word.startswith("--property=EnvironmentFile="):
                    path = Path(word.partition("=")[2].partition("=")[2])
                    self.host.given.append((path.read_text(encoding="utf-8"), path.stat().st_mode & 0o777))
            self.host.began = self.host.units.clock.now
            self.host.units.units[unit] = UnitStatus(unit, "loaded", "active", "running", main_pid=4000, invocation_id="a" * 32)
            self.host.units.log.append("begin the command")
            return Completed(tuple(argv), self.host.program.begin_rc, "", "")
        return super().run(argv, timeout, stdin, env)


class _Journal:
    def __init__(self, host: Place) -> None:
        self._host = host

    def lines(self, unit: str, invocation_id: str | None = None, limit: int = 2000) -> list[JournalLine]:
        said = [JournalLine(1.0, 1, "systemd", "Started."), *(JournalLine(2.0, 4000, "bench", text) for text in self._host.program.writes)]
        return said if unit.startswith(PREFIX) else []


class _Reader(Reader):
    """What serves holds its memory, what the program has left holds some, and so do strangers."""

    def __init__(self, host: Place) -> None:
        super().__init__(host)
        self._place = host
        self._read = self._gpus

    def _gpus(self) -> list[Gpu]:
        found = []
        for index in range(4):
            processes: list[GpuProcess] = []
            if self._place.units.status(OLD).running:
                processes.append(GpuProcess(100, "C", 90000, name="VLLM::Worker", unit=OLD, vllm=True))
            if self._place.unit() and index == 1:
                processes += [GpuProcess(pid, "C", 4096, name="bench", unit=self._place.unit()) for pid in self._place.program.leaves]
            processes += self._place.strangers if index == 1 else ()
            processes += self._place.strangers_after if index == 1 and self._place.program.starts else ()
            used = sum(process.used_mib or 0 for process in processes) + (self._place.unlisted_mib if index == 1 else 0)
            found.append(gpu(index, used, processes))
        return found


def patch(monkeypatch: pytest.MonkeyPatch) -> None:
    """The base's, and what this room sees of the host."""
    base.patch(monkeypatch)

    def programs(paths: Any) -> list[WantedFile]:
        return [WantedFile(paths.program, b"program", 0o755, os.getuid(), os.getgid())]

    def process(pid: int, root: str = "/proc", title: bool = True) -> ProcessInfo:
        return ProcessInfo(pid, 1, "bench", "S", 1, None, 0, "root", "bench --all")

    def boot() -> str:
        assert Host.current is not None
        return "boot-%d" % Host.current.boots

    monkeypatch.setattr(borrow_module, "runner_files", programs)
    monkeypatch.setattr(borrow_module, "current_boot", boot)
    monkeypatch.setattr(borrowing, "read_process", process)


__all__ = ["ASKED", "OLD", "Death", "Place", "Program", "patch"]
