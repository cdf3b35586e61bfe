# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The state of one machine's GPUs: the scenario, and what real processes did to it. No input or output of its own."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from . import codes
from .ledger import Allocation, Ledger, ReleaseSchedule
from .scenario import Gpu, MigDevice, Process, Scenario

KINDS = frozenset("CGM")


class Refused(Exception):
    """A request that the driver refuses: an NVML return code and what to say."""

    def __init__(self, code: int, *words: object) -> None:
        super().__init__(code, *words)
        self.code = code
        self.words = words or (codes.text_of(code),)


@dataclass(frozen=True)
class Target:
    """A GPU by its position in the scenario, or one of its MIG devices by its number there."""

    gpu: int
    mig: int | None = None

    @property
    def token(self) -> str:
        """The handle that clients hold."""
        return f"g{self.gpu}" if self.mig is None else f"m{self.gpu}.{self.mig}"

    @classmethod
    def parse(cls, token: str) -> Target:
        """The target of a handle. Raises Refused for anything else."""
        try:
            if token.startswith("g"):
                return cls(int(token[1:]))
            gpu, mig = token[1:].split(".")
            return cls(int(gpu), int(mig))
        except ValueError:
            raise Refused(codes.INVALID_ARGUMENT, f"no such handle: {token}") from None


@dataclass(frozen=True)
class Memory:
    """A memory reading, MiB: total = reserved + used + free."""

    total: int
    reserved: int
    used: int

    @property
    def free(self) -> int:
        """What can still be allocated."""
        return self.total - self.reserved - self.used


@dataclass(frozen=True)
class Listed:
    """One entry of a process list; `pids` as in ledger.Allocation, or one number that is told to everybody."""

    pids: tuple[int, ...]
    used_mib: int | None
    gpu_instance_id: int | None
    compute_instance_id: int | None


class Machine:
    """The GPUs of one host."""

    def __init__(self, scenario: Scenario) -> None:
        self.scenario = scenario
        self._ledgers: dict[int, Ledger] = {}
        self._overrides: dict[int, dict[str, Any]] = {}
        self._numbers = itertools.count(1)
        self._where: dict[int, int] = {}  # allocation number -> GPU position

    # --- the scenario

    def load(self, scenario: Scenario, now: float) -> None:
        """Take a changed scenario over; memory on its way back follows a changed release schedule."""
        before = self.scenario
        self.scenario = scenario
        for position, ledger in self._ledgers.items():
            old = before.gpus[position] if position < len(before.gpus) else None
            new = scenario.gpus[position] if position < len(scenario.gpus) else None
            if new is not None and (old is None or old.schedule != new.schedule):
                ledger.reschedule(now, new.schedule)

    def override(self, position: int, **changes: Any) -> None:
        """Change a GPU at run time, over what the scenario says (a reset, nvidia-smi -pm)."""
        self._overrides.setdefault(position, {}).update(changes)

    def rearm(self, position: int | None = None) -> None:
        """Let the scenario's own values hold again, on one GPU or all."""
        if position is None:
            self._overrides.clear()
        else:
            self._overrides.pop(position, None)

    def gpu(self, position: int) -> Gpu:
        """A GPU as it is now. Raises Refused when the scenario has none at this position."""
        if not 0 <= position < len(self.scenario.gpus):
            raise Refused(codes.INVALID_ARGUMENT, f"no GPU {position}")
        gpu = self.scenario.gpus[position]
        changes = self._overrides.get(position)
        return dataclasses.replace(gpu, **changes) if changes else gpu

    def mig_device(self, target: Target) -> MigDevice:
        """The MIG device of a handle. Raises Refused."""
        mig = self.gpu(target.gpu).mig
        if target.mig is None or mig is None or not mig.enabled or not 0 <= target.mig < len(mig.devices):
            raise Refused(codes.NOT_FOUND, f"no MIG device {target.token}")
        return mig.devices[target.mig]

    def ledger(self, position: int) -> Ledger:
        """The memory book of a GPU."""
        return self._ledgers.setdefault(position, Ledger())

    def ledgers(self) -> Iterator[tuple[int, Ledger]]:
        """All memory books that were ever opened, with their GPU's position."""
        yield from self._ledgers.items()

    def find(self, spec: str) -> Target:
        """The target of an index, UUID, MIG UUID or PCI id (with 4 or 8 digits of domain). Raises Refused."""
        shown = self.scenario.shown
        if spec.isdigit():
            if int(spec) >= len(shown):
                raise Refused(codes.INVALID_ARGUMENT, f"no GPU {spec}")
            return Target(shown[int(spec)])
        for position in shown:
            gpu = self.gpu(position)
            if spec == gpu.uuid or same_bus_id(spec, str(gpu.pci_bus_id)):
                return Target(position)
            for number, device in enumerate(gpu.mig.devices if gpu.mig and gpu.mig.enabled else ()):
                if spec == device.uuid:
                    return Target(position, number)
        raise Refused(codes.NOT_FOUND, f"no GPU {spec}")

    # --- memory

    def memory(self, target: Target, now: float) -> Memory:
        """What the driver counts on a GPU or a MIG device now."""
        gpu = self.gpu(target.gpu)
        ledger = self.ledger(target.gpu)
        ledger.settle(now)
        ghosts = [each for each in gpu.processes if each.counts]
        if target.mig is not None:
            device = self.mig_device(target)
            used = device.min_used_mib + ledger.in_use_mib(target.mig, whole=False)
            used += sum(each.used_mib or 0 for each in ghosts if _is_on(each, device))
            return _bounded(device.total_mib, device.reserved_mib, used)
        used = gpu.min_used_mib + gpu.held_mib + ledger.in_use_mib() + sum(each.used_mib or 0 for each in ghosts)
        if gpu.mig is not None and gpu.mig.enabled:
            used += sum(device.min_used_mib for device in gpu.mig.devices)
        return _bounded(gpu.total_mib, gpu.reserved_mib, used)

    def allocate(
        self,
        target: Target,
        mib: int,
        kinds: frozenset[str],
        pids: tuple[int, ...],
        now: float,
        *,
        listed: bool = True,
        as_pid: int | None = None,
    ) -> int:
        """Give a process memory; returns the allocation's number. Raises Refused: 20 and the free MiB when it's full."""
        gpu = self.gpu(target.gpu)
        if not kinds or not kinds <= KINDS or mib < 0:
            raise Refused(codes.INVALID_ARGUMENT, f"{mib} MiB of kind {'+'.join(sorted(kinds))}")
        if gpu.state == "lost":
            raise Refused(codes.GPU_IS_LOST)
        if gpu.state != "ok":
            raise Refused(codes.RESET_REQUIRED if gpu.state == "reset_required" else gpu.error_code)
        ledger = self.ledger(target.gpu)
        others = [each for each in ledger.allocations.values() if each.alive and each.pids != pids]
        if "C" in kinds and gpu.compute_mode != "default" and (gpu.compute_mode == "prohibited" or others):
            raise Refused(codes.IN_USE, "CUDA-capable device(s) is/are busy or unavailable")
        self._refuse_beyond_free(target, mib, now)
        number = next(self._numbers)
        ledger.allocations[number] = Allocation(number, mib, kinds, pids, target.mig, listed, as_pid)
        self._where[number] = target.gpu
        return number

    def resize(self, number: int, mib: int, now: float) -> None:
        """Grow or shrink an allocation. Raises Refused as allocate does."""
        allocation = self._allocation(number)
        if mib > allocation.mib:
            self._refuse_beyond_free(Target(self._where[number], allocation.mig), mib - allocation.mib, now)
        elif mib < 0:
            raise Refused(codes.INVALID_ARGUMENT, f"{mib} MiB")
        allocation.mib = mib

    def release(self, number: int, now: float) -> None:
        """The last copy of an allocation's connection is closed: its memory begins to come back."""
        position = self._where.pop(number)
        if position < len(self.scenario.gpus):
            gpu = self.gpu(position)
            self.ledger(position).release(number, now, gpu.schedule, gpu.leak_mib)
        else:  # the scenario has taken the GPU away meanwhile
            self.ledger(position).release(number, now, ReleaseSchedule(), leak_mib=0)

    def died(self, number: int) -> None:
        """The allocating process has ended; what others still hold is used, but not listed any more."""
        self._allocation(number).alive = False

    def reset(self, position: int) -> None:
        """Reset a GPU. Raises Refused 19 while somebody holds memory on it."""
        ledger = self.ledger(position)
        if ledger.allocations or self.scenario.smi.reset_fails:
            raise Refused(codes.IN_USE)
        ledger.reset()
        self.override(position, held_mib=0, state="ok", recovery_action=0)

    def power_cycle(self) -> None:
        """What a power failure leaves: nothing on its way back, nothing leaked. Scenario values stay."""
        for ledger in self._ledgers.values():
            ledger.reset()

    def forget_history(self) -> None:
        """Drop what was noted of memory that came back."""
        for ledger in self._ledgers.values():
            ledger.history.clear()

    def _allocation(self, number: int) -> Allocation:
        if number not in self._where:
            raise Refused(codes.NOT_FOUND, f"no allocation {number}")
        return self.ledger(self._where[number]).allocations[number]

    def _refuse_beyond_free(self, target: Target, mib: int, now: float) -> None:
        free = self.memory(target, now).free
        if target.mig is not None:
            free = min(free, self.memory(Target(target.gpu), now).free)
        if mib > free:
            raise Refused(codes.MEMORY, f"out of memory: tried to allocate {mib} MiB, {free} MiB free", free)

    # --- processes

    def processes(self, target: Target, kind: str) -> list[Listed]:
        """The entries of one list, "C", "G" or "M", as the driver knows them."""
        gpu = self.gpu(target.gpu)
        merged: dict[tuple[tuple[int, ...], int | None], int] = {}
        if not gpu.unlisted:
            for each in self.ledger(target.gpu).allocations.values():
                if kind in each.kinds and each.listed and each.alive and target.mig in (None, each.mig):
                    pids = (each.as_pid,) if each.as_pid is not None else each.pids
                    merged[pids, each.mig] = merged.get((pids, each.mig), 0) + each.mib
        found = []
        for (pids, number), mib in merged.items():
            devices = gpu.mig.devices if gpu.mig is not None else ()
            device = devices[number] if number is not None and number < len(devices) else None
            pids = next(((gpu.list_as[str(pid)],) for pid in pids if str(pid) in gpu.list_as), pids)
            found.append(
                Listed(
                    pids,
                    mib if gpu.process_memory == "reported" else None,
                    device.gpu_instance_id if device else None,
                    device.compute_instance_id if device else None,
                )
            )
        within = self.mig_device(target) if target.mig is not None else None
        for ghost in gpu.processes:
            if kind in ghost.type.split("+") and (within is None or _is_on(ghost, within)):
                used = ghost.used_mib if gpu.process_memory == "reported" else None
                found.append(Listed((ghost.pid,), used, ghost.gpu_instance_id, ghost.compute_instance_id))
        return found


def same_bus_id(one: str, other: str) -> bool:
    """Whether two PCI ids mean the same device: case, and 4 or 8 or no digits of domain, make no difference."""
    return _bus_parts(one) is not None and _bus_parts(one) == _bus_parts(other)


def _bus_parts(text: str) -> tuple[int, ...] | None:
    fields = text.replace(".", ":").split(":")
    if len(fields) == 3:
        fields = ["0", *fields]
    try:
        return tuple(int(each, 16) for each in fields) if len(fields) == 4 else None
    except ValueError:
        return None


def _is_on(process: Process, device: MigDevice) -> bool:
    return (process.gpu_instance_id, process.compute_instance_id) == (
        device.gpu_instance_id,
        device.compute_instance_id,
    )


def _bounded(total: int, reserved: int, used: int) -> Memory:
    reserved = min(reserved, total)
    return Memory(total, reserved, min(used, total - reserved))
