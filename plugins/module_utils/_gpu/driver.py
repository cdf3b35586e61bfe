# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The driver read without ever hanging: backends chosen, calls that do not return left out the next time."""

from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING, Callable, Dict, FrozenSet, Iterable, List, Mapping, Optional, Tuple, cast

from . import host, raw
from .child import start_child, takes_nvml
from .limits import IMPATIENT_S, reading_limit
from .worker import Worker, WorkerGone

if TYPE_CHECKING:
    from .._core.runner import Runner
    from .._process.inspect import Inspection
    from .smi import SmiCollector

# What is asked of all GPUs at once has this part of a reading's time; the rest of it is left for asking one by one.
_WHOLE = 2.0 / 3.0

_IN_CONTAINER = (
    "; in a container this comes of a `systemctl daemon-reload` on its host, which takes the GPUs away: restart the container"
)


class Driver:
    """The driver of this host through one of the backends. ``timeout`` is the limit of every single call, in seconds; a reading as a
    whole takes at most limits.reading_limit() of it, and at most a second more for what does not let itself be ended.

    Owns the child process in which whatever may never return is done: the calls of NVML, and looks into other processes.
    """

    def __init__(
        self, backend: str, timeout: float, runner: Optional[Runner], proc_root: str, dev_root: str, child: Optional[Worker] = None
    ) -> None:
        self._timeout = timeout
        self._runner = runner
        self._proc = proc_root
        self._dev = dev_root
        self._worker = child
        # Children that did not even end when they were killed: pid -> when they started.
        self._lost: Dict[int, Optional[int]] = {}
        self._smi: Optional[SmiCollector] = None
        self._notes: Tuple[str, ...] = ()
        self._use_nvml = takes_nvml(backend)
        self._may_fall_back = backend == "auto"
        if self._may_fall_back and not self._use_nvml:
            self._notes = ("read through nvidia-smi: the Python package nvidia-ml-py (pynvml) is not installed",)

    @property
    def helpers(self) -> List[int]:
        """The pids that read on its behalf, also those that hang and were given up: they hold the GPUs' nodes, but no memory."""
        pids = [self._worker.pid] if self._worker is not None else []
        if self._lost:
            from .._process.procfs import start_ticks  # only where something failed, which is rare

            pids += [pid for pid, ticks in self._lost.items() if start_ticks(pid, self._proc) == ticks]
        return pids

    def close(self) -> None:
        """Let go of the driver."""
        if self._worker is not None:
            self._worker.close()
            self._worker = None

    def look(self, pids: Iterable[int], holders: Mapping[int, FrozenSet[str]], untitled: FrozenSet[int]) -> Inspection:
        """Look at processes (see _process/inspect.py), each of them for no more than a few seconds. Raises WorkerGone."""
        request = ("inspect", sorted(pids), dict(holders), untitled)
        return cast("Inspection", self._ask(request, min(self._timeout, IMPATIENT_S)))

    def read(
        self,
        only: Optional[FrozenSet[int]],
        processes: bool,
        depth: int,
        meanwhile: Optional[Callable[[], None]] = None,
        within: float = math.inf,
    ) -> raw.RawReading:
        """One reading; arguments as for the backends. ``meanwhile`` is called while the driver is being asked; ``within`` are the
        seconds that the caller has left, if that is less than a reading may take."""
        begin = time.monotonic()
        end = begin + min(within, reading_limit(self._timeout))
        if not self._use_nvml and meanwhile is not None:
            meanwhile()
        if self._use_nvml:
            reading = self._read_nvml(only, processes, depth, meanwhile, begin, end)
            failure = reading.failure
            if failure is None or not self._may_fall_back or failure.reason not in ("error", "library_missing"):
                return self._explain(reading)
            other = self._read_smi(only, processes, depth, end)
            if other.failure is not None:
                return self._explain(reading)
            self._use_nvml = False
            self._notes = ("read through nvidia-smi: %s" % failure.detail,)
            reading = other
        else:
            reading = self._read_smi(only, processes, depth, end)
        reading.notes = self._notes + reading.notes
        return self._explain(reading)

    def _explain(self, reading: raw.RawReading) -> raw.RawReading:
        """Add what the kernel knows: which version is loaded, and whether there is a driver at all."""
        failure = reading.failure
        loaded = host.module_version(self._proc) if reading.driver_version is None else None
        reading.driver_version = reading.driver_version or loaded
        if failure is None:
            return reading
        from .._process.procfs import in_initial_pid_namespace  # only where something failed, which is rare

        if failure.absent and not host.module_loaded(self._proc):
            reading.failure = raw.Failure("no_driver", "no NVIDIA driver is installed or loaded (%s)" % failure.detail)
        elif failure.reason == "driver_library_mismatch":
            detail = "%s; loaded kernel module: %s; processes that run already go on; a reboot loads the new module"
            reading.failure = raw.Failure(failure.reason, detail % (failure.detail, loaded or "unknown"))
        elif failure.reason == "error" and "unknown error" in failure.detail.lower() and not in_initial_pid_namespace(self._proc):
            reading.failure = raw.Failure(failure.reason, failure.detail + _IN_CONTAINER)
        return reading

    def _read_smi(self, only: Optional[FrozenSet[int]], processes: bool, depth: int, end: float) -> raw.RawReading:
        if self._smi is None:
            # not at the top: where NVML works, nothing of this need be loaded
            from .._core.runner import Runner
            from .smi import SmiCollector

            self._smi = SmiCollector(self._runner or Runner(), self._timeout, self._proc)
        return self._smi.read(only, processes, depth, end)

    def _read_nvml(
        self, only: Optional[FrozenSet[int]], processes: bool, depth: int, meanwhile: Optional[Callable[[], None]], begin: float, end: float
    ) -> raw.RawReading:
        """All at once; where a call does not return, GPU by GPU (see apart.py)."""
        try:
            request = ("nvml", only, processes, depth, ())
            reading = cast(raw.RawReading, self._ask(request, self._timeout, meanwhile, begin + _WHOLE * (end - begin)))
        except WorkerGone as gone:
            reading = self._apart(gone, only, processes, depth, begin, end)
        if reading.failure is not None:
            self.close()  # the library keeps what it learnt at its first start: begin afresh next time
        return reading

    def _apart(
        self, gone: WorkerGone, only: Optional[FrozenSet[int]], processes: bool, depth: int, begin: float, end: float
    ) -> raw.RawReading:
        from .apart import Apart, loss_of  # only where something failed, which is rare

        notes = [gone.detail]
        lost = loss_of(gone)
        if lost is not None or gone.late:
            # how many there are, from a child that asks none of them; while it lives the driver stays awake for the others
            try:
                reading = cast(raw.RawReading, self._ask(("nvml", frozenset(), False, depth, ()), self._timeout, None, end))
            except WorkerGone as again:
                gone = again
                notes.append(again.detail)
            else:
                if reading.failure is None:
                    indices = [index for index in range(reading.count or 0) if only is None or index in only]
                    apart = Apart(self._timeout, begin, end, gone.slowest, self._start, self._bury)
                    reading.gpus = apart.read(indices, processes, depth, lost)
                    notes += apart.notes
                reading.notes += tuple(notes)
                return reading
        return raw.RawReading("nvml", raw.Failure("driver_hung" if gone.hung else "error", "NVML: %s" % "; ".join(notes)))

    def _start(self) -> Worker:
        return start_child(self._proc, self._dev, self._use_nvml)

    def _bury(self, worker: Worker) -> None:
        """Remember a child that was lost, for as long as it does not end."""
        from .._process.procfs import start_ticks

        ticks = start_ticks(worker.pid, self._proc)
        if ticks is not None:
            self._lost[worker.pid] = ticks

    def _ask(
        self, request: object, timeout: float, meanwhile: Optional[Callable[[], None]] = None, until: float = math.inf
    ) -> object:
        if self._worker is None:
            self._worker = self._start()
        try:
            answer: object = self._worker.ask(request, timeout, meanwhile, until)
        except WorkerGone:
            self._bury(self._worker)
            self._worker = None
            raise
        return answer
