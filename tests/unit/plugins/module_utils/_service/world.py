# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A small world for the tests of a service: a clock that only moves when somebody waits, units, servers, GPUs."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple

from ansible_collections.gpufleet.vllm.plugins.module_utils._core.clock import Clock
from ansible_collections.gpufleet.vllm.plugins.module_utils._core.errors import GpuFleetError
from ansible_collections.gpufleet.vllm.plugins.module_utils._gpu.reader import GpuReader
from ansible_collections.gpufleet.vllm.plugins.module_utils._gpu.types import Gpu, GpuProcess, Snapshot
from ansible_collections.gpufleet.vllm.plugins.module_utils._server.http import CompletionResult, ServerError
from ansible_collections.gpufleet.vllm.plugins.module_utils._systemd.show import UnitStatus
from ansible_collections.gpufleet.vllm.plugins.module_utils._unit.found import ManagedService

TOTAL_MIB = 97887


class FakeClock(Clock):
    """Time passes only in sleep()."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now

    def time(self) -> float:
        return 1_800_000_000.0 + self.now

    def sleep(self, seconds: float) -> None:
        self.now += max(seconds, 0.001)


def status(unit: str, state: str = "inactive", **more: Any) -> UnitStatus:
    """A unit's status in one of the states that matter."""
    sub = {"active": "running", "inactive": "dead", "failed": "failed", "activating": "start-pre", "deactivating": "stop-sigterm"}
    pid = 100 if state == "active" else 0
    values: Dict[str, Any] = {"load_state": "loaded", "active_state": state, "sub_state": sub[state], "main_pid": pid}
    values.update(more)
    return UnitStatus(unit=unit, **values)


def managed(name: str, gpus: Sequence[int] = (0, 1, 2, 3), port: int = 8000, **more: Any) -> ManagedService:
    """A service as its files on the host declare it."""
    unit = "vllm-%s.service" % name
    return ManagedService(unit, name, "/models/" + name, name, tuple(gpus), port, name, "/etc/systemd/system/" + unit, **more)


def gpu(index: int, used: Optional[int] = 0, processes: Sequence[GpuProcess] = (), **more: Any) -> Gpu:
    """One GPU of the default kind."""
    free = None if used is None else TOTAL_MIB - used
    values: Dict[str, Any] = {"total_mib": TOTAL_MIB, "used_mib": used, "free_mib": free, "processes": tuple(processes)}
    values.update(more)
    return Gpu(index, "GPU-%d" % index, "00000000:%02X:00.0" % (index + 1), "NVIDIA RTX PRO 6000", **values)


def snapshot(gpus: Sequence[Gpu]) -> Snapshot:
    """A reading that succeeded."""
    return Snapshot(True, backend="nvml", count=len(gpus), gpus=tuple(gpus))


@dataclass
class Behaviour:
    """What a unit does when it is started: after ``load`` seconds it serves, or it fails after ``dies`` seconds.

    Without ``completes`` a completion ends with the HTTP status ``says``, or in silence. Its engine makes ``rate`` tokens a second, and
    ``refuses`` is the HTTP status that asking for its models ends with.
    """

    load: float = 1.0
    dies: Optional[float] = None
    served: Optional[str] = None
    completes: bool = True
    says: Optional[int] = None
    rate: float = 0.0
    refuses: Optional[int] = None
    stubborn: bool = False


@dataclass
class World:
    """Units on one host. ``log`` is everything that was done, in order."""

    clock: FakeClock = field(default_factory=FakeClock)
    units: Dict[str, UnitStatus] = field(default_factory=dict)
    behaviours: Dict[str, Behaviour] = field(default_factory=dict)
    started_at: Dict[str, float] = field(default_factory=dict)
    ports: Dict[str, int] = field(default_factory=dict)  # where a unit's server listens, 8000 by default
    requests: Dict[int, int] = field(default_factory=dict)
    log: List[str] = field(default_factory=list)
    on_stop: Optional[Callable[[str], None]] = None

    # -- what systemd answers --------------------------------------------------------------------------------------

    def status(self, unit: str) -> UnitStatus:
        return self.statuses([unit])[unit]

    def statuses(self, units: Sequence[str]) -> Dict[str, UnitStatus]:
        return {unit: self._now(unit) for unit in units}

    def _now(self, unit: str) -> UnitStatus:
        found = self.units.get(unit, UnitStatus(unit, "not-found", "inactive", "dead"))
        behaviour = self.behaviours.get(unit, Behaviour())
        began = self.started_at.get(unit)
        if began is not None and behaviour.dies is not None and self.clock.now - began >= behaviour.dies:
            return replace(found, active_state="failed", sub_state="failed", result="exit-code", main_pid=0, exec_main_status=1,
                           exec_main_code="exited")
        return found

    def start(self, unit: str, no_block: bool = True, timeout: float = 30.0) -> None:
        self.log.append("start " + unit)
        self.units[unit] = replace(self._now(unit), load_state="loaded", active_state="active", sub_state="running", main_pid=100,
                                   result="success", n_restarts=0)
        self.started_at[unit] = self.clock.now

    def stop(self, unit: str, no_block: bool = True, timeout: float = 30.0) -> None:
        self.log.append("stop " + unit)
        if self.behaviours.get(unit, Behaviour()).stubborn:
            return
        self._end(unit)

    def _end(self, unit: str) -> None:
        self.units[unit] = replace(self._now(unit), active_state="inactive", sub_state="dead", main_pid=0)
        self.started_at.pop(unit, None)
        if self.on_stop is not None:
            self.on_stop(unit)

    def kill(self, unit: str, signal: str = "SIGKILL", whom: str = "all") -> None:
        self.log.append("kill " + unit)
        self._end(unit)

    def enable(self, unit: str) -> None:
        self.log.append("enable " + unit)
        self.units[unit] = replace(self._now(unit), unit_file_state="enabled")

    def disable(self, unit: str) -> None:
        self.log.append("disable " + unit)
        self.units[unit] = replace(self._now(unit), unit_file_state="disabled")

    def daemon_reload(self) -> None:
        self.log.append("daemon-reload")

    def reset_failed(self, unit: str) -> None:
        if self._now(unit).failed:
            self._end(unit)

    def cgroup_pids(self, unit: str, status: Optional[UnitStatus] = None) -> List[int]:
        return []

    def available(self) -> Optional[str]:
        return None

    # -- servers ---------------------------------------------------------------------------------------------------

    def server(self, host: str, port: int, api_key: Optional[str] = None, tls: bool = False) -> "FakeServer":
        return FakeServer(self, port)


class FakeServer:
    """The HTTP side of whatever unit serves on a port."""

    def __init__(self, world: World, port: int) -> None:
        self._world = world
        self._port = port
        self.url = "http://127.0.0.1:%d" % port

    def _unit(self) -> Optional[Tuple[str, str, Behaviour]]:
        for candidate in sorted(self._world.behaviours):
            if self._world.ports.get(candidate, 8000) != self._port:
                continue
            behaviour = self._world.behaviours.get(candidate, Behaviour())
            began = self._world.started_at.get(candidate)
            if began is None or not self._world.status(candidate).running:
                continue
            if self._world.clock.now - began >= behaviour.load:
                return candidate, behaviour.served or candidate[len("vllm-"):-len(".service")], behaviour
        return None

    def listens(self, timeout: float = 1.0) -> bool:
        return self._unit() is not None

    def health(self, timeout: float = 5.0) -> Optional[int]:
        return None if self._unit() is None else 200

    def models(self, timeout: float = 5.0) -> List[str]:
        found = self._unit()
        if found is None:
            raise ServerError("nothing listens")
        if found[2].refuses is not None:
            raise ServerError("%s/v1/models answered HTTP %d: Unauthorized" % (self.url, found[2].refuses), found[2].refuses)
        return [found[1]]

    def version(self, timeout: float = 5.0) -> str:
        raise ServerError("%s/version answered HTTP 404: Not Found" % self.url, 404)

    def complete(self, model: str, timeout: float = 60.0) -> CompletionResult:
        found = self._unit()
        ok = found is not None and found[2].completes
        if found is not None and found[2].says is not None:
            return CompletionResult(False, "completion", found[2].says, 0.0, "HTTP %d: said so" % found[2].says)
        if not ok:
            self._world.clock.sleep(timeout)
        return CompletionResult(ok, "completion", 200 if ok else None, 0.0, "" if ok else "nothing within %g s" % timeout)

    def metrics(self, timeout: float = 5.0) -> Dict[str, float]:
        found = self._unit()
        if found is None:
            raise GpuFleetError("nothing listens")
        left = self._world.requests.get(self._port, 0)
        self._world.requests[self._port] = max(0, left - 1)
        made = found[2].rate * self._world.clock.now
        return {"num_requests_running": float(left), "num_requests_waiting": 0.0, "generation_tokens_total": made}


class FakeReader(GpuReader):
    """A driver that answers from a function of the selected indices."""

    def __init__(self, read: Callable[[], Sequence[Gpu]]) -> None:
        self._read = read

    def snapshot(self, gpus: Optional[Sequence[str]] = None, processes: bool = True) -> Snapshot:
        found = [one for one in self._read() if gpus is None or str(one.index) in gpus]
        return snapshot(found)

    def close(self) -> None:
        """Nothing to close."""

    def __enter__(self) -> "FakeReader":
        return self

    def __exit__(self, *_exc: Any) -> None:
        self.close()
