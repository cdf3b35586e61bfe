# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""GPUs whose memory follows real processes: what a process holds comes back some time after it has ended."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from typing import Dict, List, Optional, Sequence, Tuple

from ansible_collections.gpufleet.vllm.plugins.module_utils._core.clock import Clock
from ansible_collections.gpufleet.vllm.plugins.module_utils._gpu.reader import GpuReader
from ansible_collections.gpufleet.vllm.plugins.module_utils._gpu.select import resolve
from ansible_collections.gpufleet.vllm.plugins.module_utils._gpu.types import GpuProcess, Snapshot
from ansible_collections.gpufleet.vllm.plugins.module_utils._process.procfs import read_process
from ansible_collections.gpufleet.vllm.plugins.module_utils._reclaim.ports import Ports
from ansible_collections.gpufleet.vllm.tests.unit.plugins.module_utils._reclaim.world import FakeSystemd, gpu, snapshot

IDLE = "time.sleep(120)"
DEAF = "signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(120)"


@dataclass
class Claim:
    """Memory that a process holds on one GPU."""

    pid: int
    ticks: int
    gpu: int
    mib: int
    flags: Dict[str, object]
    listed_for: Optional[int] = None
    released_at: Optional[float] = None


@dataclass
class Machine:
    """One host: real processes, GPUs that follow them, and a manager of units."""

    gpus: int = 2
    delay: float = 0.0
    claims: List[Claim] = field(default_factory=list)
    leak: Dict[int, int] = field(default_factory=dict)
    systemd: FakeSystemd = field(default_factory=lambda: FakeSystemd(Clock()))
    children: List["subprocess.Popen[bytes]"] = field(default_factory=list)
    readers: int = 0
    run_root: str = field(default_factory=lambda: tempfile.mkdtemp(prefix="gpufleet-run-"))

    def spawn(self, code: str = IDLE, gpus: Sequence[int] = (0,), mib: int = 90000, **flags: object) -> int:
        """Start a process that holds memory; ``flags`` are fields of its GpuProcess. Returns its pid."""
        child = subprocess.Popen(
            [sys.executable, "-S", "-c", "import signal, sys, time; " + code.replace("time.sleep", "print(flush=True); time.sleep", 1)],
            stdout=subprocess.PIPE,
        )
        assert child.stdout is not None
        child.stdout.readline()
        self.children.append(child)
        for index in gpus:
            self.claim(child.pid, index, mib, None, None, **flags)
        return child.pid

    def claim(
        self, pid: int, index: int, mib: int, ticks: Optional[int] = None, listed_for: Optional[int] = None, **flags: object
    ) -> None:
        """Let a process hold memory: one that is there, or with ``ticks`` one that may have ended.

        With ``listed_for`` the driver goes on listing the pid as long as a process has it that started at ``ticks``, a zombie
        too; what it lists was a process that started at ``listed_for``.
        """
        if ticks is None:
            info = read_process(pid)
            assert info is not None
            ticks = info.start_ticks
        self.claims.append(Claim(pid, ticks, index, mib, flags, listed_for))

    def alive(self, pid: int) -> bool:
        """Whether one of our processes still runs."""
        info = read_process(pid)
        return info is not None and not info.zombie

    def reading(self) -> Snapshot:
        """What the driver says now."""
        now = time.monotonic()
        used = dict.fromkeys(range(self.gpus), 0)
        listed: Dict[int, List[GpuProcess]] = {index: [] for index in used}
        for claim in self.claims:
            info = read_process(claim.pid)
            there = info is not None and info.start_ticks == claim.ticks
            living = there and info is not None and (claim.listed_for is not None or not info.zombie)
            if not living and claim.released_at is None:
                claim.released_at = now + self.delay
            if claim.released_at is not None and now >= claim.released_at:
                continue
            used[claim.gpu] += claim.mib
            if living and info is not None:
                listed[claim.gpu].append(self._entry(claim, info.comm, info.uid))
        return snapshot(*[gpu(index, used[index] + self.leak.get(index, 0), listed[index]) for index in used])

    @staticmethod
    def _entry(claim: Claim, comm: str, uid: int) -> GpuProcess:
        values: Dict[str, object] = {"type": "C", "used_mib": claim.mib, "name": comm, "user": str(uid), "proven": True}
        values.update(claim.flags)
        ticks = claim.ticks if claim.listed_for is None else claim.listed_for
        return GpuProcess(pid=claim.pid, start_ticks=ticks, uid=uid, **values)  # type: ignore[arg-type]

    def released(self) -> float:
        """When the last memory came back (monotonic seconds)."""
        return max(claim.released_at or 0.0 for claim in self.claims)

    def ports(self, **more: object) -> Ports:
        """The ports of a reclaim on this machine."""
        values: Dict[str, object] = {
            "systemd": self.systemd,
            "open_reader": lambda: _Reader(self),
            "run_root": self.run_root,
            "holds_gpu": lambda pid, root: any(claim.pid == pid for claim in self.claims),
        }
        values.update(more)
        return Ports(**values)  # type: ignore[arg-type]

    def end(self) -> None:
        """End every process that this machine started."""
        for child in self.children:
            child.kill()
            child.wait()
            assert child.stdout is not None
            child.stdout.close()
        shutil.rmtree(self.run_root)


class _Reader(GpuReader):
    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        machine.readers += 1

    def snapshot(self, gpus: Optional[Sequence[str]] = None, processes: bool = True) -> Snapshot:
        found = self._machine.reading()
        if not gpus or not found.available:
            return found
        chosen: Tuple[object, ...] = tuple(resolve(gpus, found.gpus))
        return Snapshot(True, backend="nvml", count=len(found.gpus), gpus=chosen)  # type: ignore[arg-type]

    def close(self) -> None:
        self._machine.readers -= 1


def as_root() -> int:
    """Stands in for os.geteuid."""
    return 0
