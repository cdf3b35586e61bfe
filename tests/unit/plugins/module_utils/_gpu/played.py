# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Children that read a machine's GPUs, played on a clock of their own: several are at work at the same time, and each has to start the
library first."""

from __future__ import annotations

import math
from typing import Any, Callable, FrozenSet, List, Optional, Set, Tuple

from ansible_collections.gpufleet.vllm.plugins.module_utils._gpu import raw
from ansible_collections.gpufleet.vllm.plugins.module_utils._gpu.driver import Driver
from ansible_collections.gpufleet.vllm.plugins.module_utils._gpu.nvml import Skips
from ansible_collections.gpufleet.vllm.plugins.module_utils._gpu.worker import WorkerGone

INIT, COUNT = "nvmlInit_v2", "nvmlDeviceGetCount_v2"
HANDLE, UUID, MEMORY = "nvmlDeviceGetHandleByIndex_v2", "nvmlDeviceGetUUID", "nvmlDeviceGetMemoryInfo_v2"
RECOVERY, UTILIZATION, MODE = "nvmlDeviceGetFieldValues", "nvmlDeviceGetUtilizationRates", "nvmlDeviceGetComputeMode"
LISTS = "nvmlDeviceGetComputeRunningProcesses_v3"
# What a GPU that is half dead does not answer any more.
DEAD = {MEMORY, RECOVERY, UTILIZATION, LISTS}
QUICK = 0.002


class Machine:
    """GPUs, and how long each call takes: ``takes`` says it in seconds, infinite for one that never returns, negative for a crash."""

    def __init__(self, count: int, takes: Callable[[str, Optional[int]], float]) -> None:
        self.count = count
        self.takes = takes
        self.now = 1000.0
        self.started = 0
        self.alive: Set[int] = set()

    def child(self, *_arguments: object) -> "Child":
        """What start_child() returns."""
        self.started += 1
        self.alive.add(self.started)
        return Child(self, self.started)

    def read(
        self, timeout: float, only: Optional[FrozenSet[int]] = None, processes: bool = True, within: float = math.inf
    ) -> Tuple[raw.RawReading, float]:
        """One reading, and the seconds that it took."""
        begin = self.now
        driver = Driver("nvml", timeout, None, "/nonexistent", "/dev")
        reading = driver.read(only, processes, raw.FULL, None, within)
        driver.close()
        assert not self.alive  # nobody is left behind
        return reading, self.now - begin


class Child:
    """Plays worker.Worker."""

    pid = 2**22 + 1

    def __init__(self, machine: Machine, number: int) -> None:
        self.machine = machine
        self.number = number
        self.at = machine.now
        self.slowest = 0.0
        self.connected = False
        self.known: Set[int] = set()
        self.requests: List[Any] = []

    def ask(self, request: Any, timeout: float, meanwhile: object = None, until: float = math.inf) -> raw.RawReading:
        """As Worker.ask()."""
        self.begin(request)
        return self.finish(timeout, until)

    def begin(self, *requests: Any) -> None:
        """As Worker.begin()."""
        self.at, self.slowest = self.machine.now, 0.0
        self.requests = list(requests)

    def close(self) -> None:
        """As Worker.close()."""
        self.machine.alive.discard(self.number)

    def finish(self, timeout: float, until: float = math.inf, on_which: Optional[float] = None) -> raw.RawReading:
        """As Worker.finish()."""
        _kind, only, processes, depth, skips = self.requests.pop(0)
        limits = timeout, timeout if on_which is None else on_which, until
        if not self.connected:
            self.step(INIT, None, limits)
            self.connected = True
        self.step(COUNT, None, limits)
        reading = raw.RawReading("nvml", count=self.machine.count)
        for index in range(self.machine.count):
            if only is None or index in only:
                reading.gpus.append(self.gpu(index, processes, depth, Skips(skips), limits))
        self.machine.now = max(self.machine.now, self.at)
        return reading

    def gpu(self, index: int, processes: bool, depth: int, skips: Skips, limits: Tuple[float, float, float]) -> raw.RawGpu:
        """One GPU, in the order of nvml.py."""
        gpu = raw.RawGpu(index)

        def lost(function: str) -> int:
            code = skips.code(function, index)
            if code == raw.SUCCESS:
                self.step(function, index, limits)
            return code

        gpu.code = raw.SUCCESS if index in self.known else lost(HANDLE)
        if gpu.code != raw.SUCCESS:
            return gpu
        self.known.add(index)
        gpu.uuid = None if lost(UUID) else "GPU-%d" % index
        if depth >= raw.MEMORY:
            gpu.memory_code = lost(MEMORY)
            gpu.memory = None if gpu.memory_code else raw.RawMemory(1 << 30, 0, 1 << 30)
            lost(RECOVERY)
        if depth == raw.FULL:
            code = lost(UTILIZATION)
            gpu.utilization_percent = None if code else 0
            gpu.unread.update({"utilization_percent": code} if code else {})
            lost(MODE)
        if processes:
            gpu.processes_code = lost(LISTS)
            gpu.processes = None if gpu.processes_code else []
        return gpu

    def step(self, function: str, index: Optional[int], limits: Tuple[float, float, float]) -> None:
        """One call."""
        took, step = self.machine.takes(function, index), function if index is None else "%s on GPU %d" % (function, index)
        limit, until = limits[index is not None], limits[2]
        end = min(self.at + limit, until)
        if took < 0 or self.at + took > end:
            self.machine.now = max(self.machine.now, self.at if took < 0 else end)
            self.close()
            raise WorkerGone(step, took >= 0, "%s is lost" % step, self.slowest, took >= 0 and until < self.at + limit)
        self.at += took
        if index is not None:
            self.slowest = max(self.slowest, took)
