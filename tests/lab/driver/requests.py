# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What clients ask of the driver, and what tests ask of it beside that: words in, words out."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Callable

from . import codes
from .faults import Caller, Faults
from .machine import Machine, Refused, Target
from .nvml import CALLS, Nvml, Session
from .scenario import Failure, dump

# CUDA's calls as far as failures can be bound to them.
_CUDA_CALLS = {"alloc": "cuMemAlloc", "resize": "cuMemAlloc", "nodes": "cuInit", "memory": "cuMemGetInfo"}


class Requests:
    """Answers requests on a machine. reload reads the scenario file again and returns what is wrong with it;
    others tells whether anybody but this session has NVML open, as a monitoring program has.
    """

    def __init__(self, machine: Machine, reload: Callable[[], str | None], others: Callable[[Session], bool]) -> None:
        self._others = others
        self.machine = machine
        self.nvml = Nvml(machine)
        self._reload = reload
        self._calls: Counter[str] = Counter()

    def failure(self, faults: Faults, session: Session, request: list[str]) -> Failure | None:
        """Count the call that a request is, and find the scenario's failure for it."""
        verb = request[0]
        if len(request) < 2:
            return None  # not a whole request: its answer will say so
        if verb == "nvml":
            call, client = request[1], session.client
            if call.startswith("nvmlInit") and len(request) > 2:
                session.client = client = request[2]
            index = self._index(session, call, request[2] if len(request) > 2 else "")
        elif verb in _CUDA_CALLS:
            call, client = _CUDA_CALLS[verb], "cuda"
            index = self._gpu_index(request[1]) if verb != "resize" else None
        else:
            return None
        if call != "visible":
            self._calls[call] += 1
        if request[-1] == "null" and self.machine.scenario.null_handle == "crash":
            return Failure(call, code=codes.INVALID_ARGUMENT, crash=True)
        return faults.match(self.machine.scenario, call, index, Caller(client, session.uid))

    def answer(self, session: Session, allocations: list[int], request: list[str], now: float) -> list[object]:
        """The words of a successful answer. Raises Refused, or ValueError for a malformed request."""
        verb, arguments = request[0], request[1:]
        if verb == "nvml":
            if arguments[0] not in CALLS and not arguments[0].startswith("nvmlDeviceGet"):
                raise Refused(codes.FUNCTION_NOT_FOUND)
            return self.nvml.answer(session, arguments[0], arguments[1:], now)
        if verb == "nodes":
            return self._nodes(arguments[0])
        if verb == "memory":
            memory = self.machine.memory(self.machine.find(arguments[0]), now)
            return [memory.free, memory.total - memory.reserved]
        if verb == "resize":
            number = int(arguments[0])
            if number not in allocations:
                raise Refused(codes.NOT_FOUND, f"allocation {number} is not this connection's")
            self.machine.resize(number, int(arguments[1]), now)
            return []
        if verb == "smi":
            scenario = self.machine.scenario
            return [json.dumps(dump(scenario.smi)), scenario.kernel_version, scenario.driver_version, scenario.platform]
        if verb == "bus_ids":
            gpus = self.machine.scenario.gpus
            return [gpus[position].nvml_bus_id for position in self.nvml.shown(session)]
        if verb == "reset":
            return self._reset(session, arguments[0])
        if verb == "control":
            return [json.dumps(self._control(arguments[0], json.loads(arguments[1]), now))]
        raise Refused(codes.INVALID_ARGUMENT, f"unknown request {verb}")

    def _nodes(self, spec: str) -> list[object]:
        """The device nodes that a CUDA process opens for a GPU."""
        if not self.machine.scenario.device_nodes:
            return []
        gpu = self.machine.gpu(self.machine.find(spec).gpu)
        return ["nvidiactl", "nvidia-uvm", f"nvidia{gpu.minor}"]

    def _reset(self, session: Session, bus_id: str) -> list[object]:
        if session.uid != 0:
            raise Refused(codes.NO_PERMISSION)
        target = self.machine.find(bus_id)
        if self._others(session):
            raise Refused(codes.IN_USE)
        self.machine.reset(target.gpu)
        return []

    def _index(self, session: Session, call: str, word: str) -> int | None:
        """The GPU that an NVML call is about, by the index that a scenario's failure names."""
        if "HandleBy" in call and not call.endswith("MigDeviceHandleByIndex"):
            return self._gpu_index(word)
        if call.startswith("nvmlDevice") and not call.startswith("nvmlDeviceGetCount"):
            return self.nvml.index_of(word)
        return None

    def _gpu_index(self, spec: str) -> int | None:
        try:
            return self.machine.scenario.shown.index(self.machine.find(spec).gpu)
        except (Refused, ValueError):
            return None

    # --- what tests ask

    def _control(self, verb: str, argument: object, now: float) -> object:
        wrong = self._reload()
        if wrong is not None:
            return {"error": wrong}
        if verb == "reload":
            return {}
        if verb == "rearm":
            for position in argument if isinstance(argument, list) else [None]:
                self.machine.rearm(position)
            return {}
        if verb == "state":
            return {"gpus": [self._state(position, now) for position in range(len(self.machine.scenario.gpus))]}
        if verb == "calls":
            return {"calls": dict(self._calls)}
        if verb == "reset_calls":
            self._calls.clear()
            return {}
        if verb == "releases":
            return {"releases": self._releases(now)}
        if verb == "power_cycle":
            self.machine.power_cycle()
            return {}
        if verb == "forget":
            self.machine.rearm()
            self.machine.power_cycle()
            self.machine.forget_history()
            self._calls.clear()
            return {}
        if verb == "gpu_reset":
            self.machine.reset(int(str(argument)))
            return {}
        raise Refused(codes.INVALID_ARGUMENT, f"unknown control request {verb}")

    def _state(self, position: int, now: float) -> dict[str, object]:
        gpu = self.machine.gpu(position)
        memory = self.machine.memory(Target(position), now)
        ledger = self.machine.ledger(position)
        return {
            "index": self.machine.scenario.shown.index(position) if gpu.visible else None,
            "uuid": gpu.uuid,
            "pci_bus_id": gpu.pci_bus_id,
            "state": gpu.state,
            "total_mib": memory.total,
            "reserved_mib": memory.reserved,
            "used_mib": memory.used,
            "free_mib": memory.free,
            "held_mib": gpu.held_mib,
            "leaked_mib": ledger.leaked_mib,
            "releasing_mib": sum(mib for release in ledger.releases for _when, mib in release.stages),
            "allocations": [
                {
                    "pid": each.pids[-1],
                    "pids": list(each.pids),
                    "mib": each.mib,
                    "kind": "+".join(sorted(each.kinds)),
                    "mig": each.mig,
                    "alive": each.alive,
                    "listed": each.listed and each.alive and not gpu.unlisted,
                }
                for each in ledger.allocations.values()
            ],
        }

    def _releases(self, now: float) -> list[dict[str, object]]:
        offset = time.time() - time.monotonic()
        out: list[dict[str, object]] = []
        for position, ledger in self.machine.ledgers():
            ledger.settle(now)
            for each in ledger.history:
                out.append(
                    {
                        "gpu": position,
                        "mib": each.mib,
                        "pid": each.pids[-1],
                        "released_at": each.released_at,
                        "freed_at": each.freed_at,
                        "freed_at_wall": each.freed_at + offset,
                    }
                )
        return sorted(out, key=lambda each: float(str(each["freed_at"])))
