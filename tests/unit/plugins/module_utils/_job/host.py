# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A host that can die at any moment: real files in a directory, units that remember, and a count of everything that changes.

Every change of the host, be it a unit's or a file's, is a mutation. A host that is told to die at number k is dead from
just before its k-th mutation on: what was done stays, nothing more happens. It lives again after revive(), with the same boot or another.
"""

from __future__ import annotations

import os
import shutil
import time
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.gpufleet.vllm.plugins.module_utils._core.files import WantedFile
from ansible_collections.gpufleet.vllm.plugins.module_utils._gpu.types import Snapshot
from ansible_collections.gpufleet.vllm.plugins.module_utils._job.job import Job
from ansible_collections.gpufleet.vllm.plugins.module_utils._job.record import Record, digest_of
from ansible_collections.gpufleet.vllm.plugins.module_utils._job.signals import Signals
from ansible_collections.gpufleet.vllm.plugins.module_utils._job.store import Store
from ansible_collections.gpufleet.vllm.plugins.module_utils._service import look as look_module
from ansible_collections.gpufleet.vllm.plugins.module_utils._service.parameters import to_request
from ansible_collections.gpufleet.vllm.plugins.module_utils._service.ports import Paths, Ports
from ansible_collections.gpufleet.vllm.plugins.module_utils._systemd.show import UnitStatus
from ansible_collections.gpufleet.vllm.plugins.module_utils._unit.change_unit import CHANGE_UNIT
from ansible_collections.gpufleet.vllm.plugins.module_utils._unit.render import wanted_files
from ansible_collections.gpufleet.vllm.plugins.module_utils._unit.spec import ServiceSpec
from ansible_collections.gpufleet.vllm.tests.unit.plugins.module_utils._service.world import (
    Behaviour,
    FakeReader,
    World,
    gpu,
    status,
)

NEW, OLD = "vllm-new.service", "vllm-old.service"
MODEL = {"old": "/models/old", "new": "/models/new"}
PARAMS: dict[str, Any] = {
    "name": "new", "state": "started", "model": MODEL["new"], "gpus": ["0", "1", "2", "3"], "user": "root", "group": "root",
    "replace": "conflicting", "preflight": "skip", "stop_timeout": 5, "ready_timeout": 60, "smoke": True, "rollback": True,
}  # fmt: skip


class Death(BaseException):
    """SIGKILL, or the power cut."""


class Quiet:
    """A runner of commands that answer nothing."""

    stopping = False

    def run(self, argv: Any, timeout: float = 30.0, stdin: Any = None, env: Any = None) -> Any:
        from ansible_collections.gpufleet.vllm.plugins.module_utils._core.runner import Completed

        word = "stopping" if self.stopping and "is-system-running" in argv else "running"
        return Completed(tuple(argv), 0, word + "\n", "")


class NoJournal:
    def lines(self, unit: str, invocation_id: str | None = None, limit: int = 2000) -> list[Any]:
        return []


class Units(World):
    """Units whose changes count, and which serve what their files said when they were started."""

    host: "Host"

    def _now(self, unit: str) -> UnitStatus:
        found = super()._now(unit)
        there = Path(self.host.paths.units, unit).exists() or found.running
        return replace(found, load_state="loaded" if there else "not-found")

    def start(self, unit: str, no_block: bool = True, timeout: float = 30.0) -> None:
        self.host.mutation("start " + unit)
        self.bring_up(unit)

    def bring_up(self, unit: str) -> None:
        super().start(unit)
        self.units[unit] = replace(self.units[unit], main_start=time.time())
        self.host.started_with[unit] = text = self.host.definition(unit)
        self.behaviours[unit] = Behaviour(load=1.0, dies=0.5 if b"broken" in text else None)

    def stop(self, unit: str, no_block: bool = True, timeout: float = 30.0) -> None:
        self.host.mutation("stop " + unit)
        super().stop(unit)

    def kill(self, unit: str, signal: str = "SIGKILL", whom: str = "all") -> None:
        self.host.mutation("kill " + unit)
        super().kill(unit)

    def enable(self, unit: str) -> None:
        self.host.mutation("enable " + unit)
        super().enable(unit)

    def disable(self, unit: str) -> None:
        self.host.mutation("disable " + unit)
        super().disable(unit)

    def daemon_reload(self) -> None:
        self.host.mutation("daemon-reload")


def patch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the core see the files of the last host that was made, and that host see every change of them."""
    monkeypatch.setattr(Host, "current", None)
    monkeypatch.setattr(look_module, "wanted_files", lambda spec: _current().files_of(spec))
    monkeypatch.setattr(look_module, "build_guard", lambda: b"guard")
    monkeypatch.setattr(look_module, "runner_files", lambda paths: [_current().file(paths.program, b"program")])
    monkeypatch.setattr(os, "fsync", lambda fd: None)
    for name in ("rename", "unlink", "link", "rmdir", "mkdir", "utime"):
        monkeypatch.setattr(os, name, _counted(name, getattr(os, name)))


def _current() -> "Host":
    assert Host.current is not None
    return Host.current


def _counted(name: str, real: Any) -> Any:
    def call(*arguments: Any, **more: Any) -> Any:
        paths = [os.fspath(each) for each in arguments if isinstance(each, (str, os.PathLike))]
        host = Host.current
        if host is None:
            return real(*arguments, **more)
        watched = tuple(str(host.root / each) for each in ("etc", "lib", "var"))
        if paths and paths[-1].startswith(watched) and ".gpufleet-" not in paths[-1] and ".new-" not in paths[-1]:
            host.mutation("%s %s" % (name, os.path.relpath(paths[-1], host.root)))
        return real(*arguments, **more)

    return call


class Reader(FakeReader):
    """A driver that does not always answer."""

    def __init__(self, host: "Host") -> None:
        super().__init__(lambda: [gpu(index) for index in range(4)])
        self._host = host

    def snapshot(self, gpus: Any = None, processes: bool = True) -> Snapshot:
        if not self._host.driver_answers:
            return Snapshot(False, reason="no_driver", reason_detail="it is still being loaded")
        return super().snapshot(gpus, processes)


class Host:
    """One host in a directory. ``boots`` counts; ``die_at`` is the mutation before which it dies."""

    current: "Host | None" = None

    def __init__(self, root: Path) -> None:
        Host.current = self
        self.root = root
        self.paths = Paths(
            units=str(root / "etc/systemd/system"), config=str(root / "etc/vllm"), guard=str(root / "lib/guard.pyz"),
            program=str(root / "lib/change.pyz"), home=str(root / "home"), records=str(root / "var"), change=str(root / "var/change"),
            run=str(root / "run"),
        )  # fmt: skip
        self.units = Units()
        self.units.host = self
        self.started_with: dict[str, bytes] = {}
        self.boots = 1
        self.count = 0
        self.die_at: int | None = None
        self.done: list[str] = []
        self.dead = False
        self.runner = Quiet()
        self.driver_answers = True
        for directory in (self.paths.units, self.paths.config, self.paths.home):
            os.makedirs(directory)

    def mutation(self, what: str) -> None:
        """Something is about to change for good."""
        if self.dead:
            raise Death  # a finally of the dead: it does nothing
        self.count += 1
        if self.count == self.die_at:
            self.dead = True
            raise Death
        self.done.append(what)

    # -- its files -------------------------------------------------------------------------------------------------

    def file(self, path: str, content: bytes | None, mode: int = 0o644, secret: bool = False) -> WantedFile:
        """A file as it should be, whoever runs the tests."""
        return WantedFile(path, content, mode, os.getuid(), os.getgid(), secret)

    def files_of(self, spec: ServiceSpec) -> list[WantedFile]:
        """A service's files, in this host's directory."""
        return [self.file(str(self.root) + each.path, each.content, each.mode, each.secret) for each in wanted_files(spec)]

    def definition(self, unit: str) -> bytes:
        """Everything that a server of this unit reads when it starts."""
        slug = unit[len("vllm-") : -len(".service")]
        paths = [Path(self.paths.units, unit), Path(self.paths.config, slug + ".yaml"), Path(self.paths.config, slug + ".env")]
        return b"|".join(path.read_bytes() if path.exists() else b"-" for path in paths)

    def snapshot(self) -> dict[str, tuple[bytes, int, int]]:
        """All files of /etc: content, mode, time of change."""
        return {
            str(path.relative_to(self.root)): (path.read_bytes(), path.stat().st_mode, path.stat().st_mtime_ns)
            for path in sorted((self.root / "etc").rglob("*")) if path.is_file()
        }

    def install(self, name: str, enabled: bool = True, gpus: tuple[int, ...] = (0, 1, 2, 3), port: int = 8000, **args: Any) -> None:
        """A service that has been declared before, and serves."""
        spec = ServiceSpec(name, MODEL[name], name, gpus, port=port, user="root", group="root", args=args)
        self.units.ports[spec.unit] = port
        for each in self.files_of(spec):
            if each.content is not None:
                Path(each.path).write_bytes(each.content)
                os.chmod(each.path, each.mode)
                os.utime(each.path, ns=(10**18, 10**18))  # long before
        self.units.units[spec.unit] = status(spec.unit, "inactive", unit_file_state="enabled" if enabled else "disabled")
        self.units.bring_up(spec.unit)

    # -- its life --------------------------------------------------------------------------------------------------

    def ports(self) -> Ports:
        units: Any = self.units
        runner: Any = self.runner
        return Ports(runner=runner, clock=units.clock, systemd=units, journal=NoJournal(), server=units.server,  # type: ignore[arg-type]
                     open_reader=lambda: Reader(self), paths=self.paths)

    @property
    def store(self) -> Store:
        return Store(self.paths.change, self.paths.run)

    def begin(self, **params: Any) -> None:
        """What the module does before it starts the job."""
        asked = {**PARAMS, **params}
        request = to_request(asked)
        clock = self.units.clock
        record = Record("id-%d" % len(self.done), digest_of(request), asked, "vllm_service started new", NEW, "anna from 192.0.2.7",
                        clock.time(), clock.monotonic(), "boot-%d" % self.boots)
        assert self.store.create(record.to_json())

    def job(self) -> Job:
        """The job as it is started now."""
        runner: Any = self.runner
        return Job(self.ports(), self.store, Signals(runner), "boot-%d" % self.boots, str(self.root / "run" / "progress.json"))

    def live(self, die_at: int | None = None) -> int:
        """Run the job; how many mutations it made. It dies before number ``die_at``."""
        self.count, self.die_at = 0, die_at
        try:
            self.job().run()
        except Death:
            pass
        self.die_at = None
        return self.count

    def revive(self, reboot: bool) -> None:
        """After a death: the job was killed, or the host."""
        self.dead = False
        if not reboot:
            return
        self.boots += 1
        shutil.rmtree(self.root / "run", ignore_errors=True)
        self.units.clock.now += 100.0
        for unit, state in list(self.units.units.items()):
            self.units.units[unit] = replace(state, active_state="inactive", sub_state="dead", main_pid=0, result="success")
            self.units.started_at.pop(unit, None)
        for unit, state in list(self.units.units.items()):
            if state.unit_file_state == "enabled" and unit != CHANGE_UNIT and Path(self.paths.units, unit).exists():
                self.units.bring_up(unit)

    # -- how it is -------------------------------------------------------------------------------------------------

    def serving(self) -> list[str]:
        """The units that serve, after a while."""
        self.units.clock.now += 5.0
        return [unit for unit in (NEW, OLD) if self.units.status(unit).running]

    def at_boot(self) -> list[str]:
        """The units that start at boot."""
        return [unit for unit in (NEW, OLD) if self.units.status(unit).enabled]

    def result(self) -> dict[str, Any]:
        """What came of the last change."""
        last = self.store.last()
        assert last is not None
        return dict(last["result"])

    def describe(self) -> dict[str, Any]:
        """For the message of a test that fails."""
        return {"done": self.done[-40:], "units": {unit: asdict(state)["active_state"] for unit, state in self.units.units.items()}}
