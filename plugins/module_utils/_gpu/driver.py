# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The driver read without ever hanging: backends chosen, calls that do not return left out the next time."""

from __future__ import annotations

import re
import time
from typing import TYPE_CHECKING, Callable, Dict, FrozenSet, Iterable, List, Mapping, Optional, Tuple, cast

from . import host, raw
from .child import start_child, takes_nvml
from .worker import Worker, WorkerGone

if TYPE_CHECKING:
    from .._core.runner import Runner
    from .._process.inspect import Inspection
    from .smi import SmiCollector

# Once a call has hung, how long the others may take, besides several times the slowest that came back: a healthy driver answers
# within milliseconds, or, without persistence mode, within seconds.
IMPATIENT_S = 5.0
_TIMES_SLOWEST = 4
# Each further call that hangs shortens that to a quarter, down to this: that GPUs hang one after the other must not cost them all.
_LEAST_PATIENCE_S = 0.25
# After so many times the whole of that patience, one more call that is lost stands for all GPUs, and one more of a GPU for all of it.
_TIMES_PATIENCE = 3
# A GPU of which so many calls were lost is not asked anything more.
_LOSSES_OF_A_GPU = 3

_IN_CONTAINER = (
    "; in a container this comes of a `systemctl daemon-reload` on its host, which takes the GPUs away: restart the container"
)
_STEP = r"(?P<function>nvml\w+)(?: on GPU (?P<index>\d+))?$"
_Skip = Tuple[Optional[str], Optional[int], int]


class Driver:
    """The driver of this host through one of the backends. ``timeout`` is the limit of every single call, in seconds.

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
        """Look at processes (see _process/inspect.py). Raises WorkerGone."""
        request = ("inspect", sorted(pids), dict(holders), untitled)
        return cast("Inspection", self._ask(request, min(self._timeout, IMPATIENT_S)))

    def read(
        self,
        only: Optional[FrozenSet[int]],
        processes: bool,
        depth: int,
        meanwhile: Optional[Callable[[], None]] = None,
    ) -> raw.RawReading:
        """One reading; arguments as for the backends. ``meanwhile`` is called while the driver is being asked."""
        if not self._use_nvml and meanwhile is not None:
            meanwhile()
        if self._use_nvml:
            reading = self._read_nvml(only, processes, depth, meanwhile)
            failure = reading.failure
            if failure is None or not self._may_fall_back or failure.reason not in ("error", "library_missing"):
                return self._explain(reading)
            other = self._read_smi(only, processes, depth)
            if other.failure is not None:
                return self._explain(reading)
            self._use_nvml = False
            self._notes = ("read through nvidia-smi: %s" % failure.detail,)
            reading = other
        else:
            reading = self._read_smi(only, processes, depth)
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

    def _read_smi(self, only: Optional[FrozenSet[int]], processes: bool, depth: int) -> raw.RawReading:
        if self._smi is None:
            # not at the top: where NVML works, nothing of this need be loaded
            from .._core.runner import Runner
            from .smi import SmiCollector

            self._smi = SmiCollector(self._runner or Runner(), self._timeout, self._proc)
        return self._smi.read(only, processes, depth)

    def _read_nvml(
        self, only: Optional[FrozenSet[int]], processes: bool, depth: int, meanwhile: Optional[Callable[[], None]]
    ) -> raw.RawReading:
        losses = _Losses(self._timeout)
        notes: List[str] = []
        while True:
            try:
                reading = cast(raw.RawReading, self._ask(("nvml", only, processes, depth, losses.skips), losses.patience, meanwhile))
            except WorkerGone as gone:
                meanwhile = None
                notes.append(gone.detail)
                if not losses.add(gone):
                    reason = "driver_hung" if gone.hung else "error"
                    return raw.RawReading("nvml", raw.Failure(reason, "NVML: %s" % "; ".join(notes)))
                continue
            reading.notes += tuple(notes)
            if reading.failure is not None:
                self.close()  # the library keeps what it learnt at its first start: begin afresh next time
            return reading

    def _ask(self, request: object, timeout: float, meanwhile: Optional[Callable[[], None]] = None) -> object:
        if self._worker is None:
            self._worker = start_child(self._proc, self._dev, self._use_nvml)
        try:
            answer: object = self._worker.ask(request, timeout, meanwhile)
        except WorkerGone:
            from .._process.procfs import start_ticks

            ticks = start_ticks(self._worker.pid, self._proc)
            if ticks is not None:
                self._lost[self._worker.pid] = ticks
            self._worker = None
            raise
        return answer


class _Losses:
    """The calls of one reading that did not return, and what follows from them: what is not asked again, and how long the next
    call may take. A call is lost for one GPU, because the others may be well; only when that has taken too long, for all."""

    def __init__(self, timeout: float) -> None:
        self.skips: List[_Skip] = []
        self._timeout = timeout
        self._hung = 0
        self._slowest = 0.0
        self._since: Optional[float] = None

    @property
    def patience(self) -> float:
        """Seconds that the next call may take. Once something hung, the rest is asked with less of it."""
        if not self.skips:
            return self._timeout
        shorter = IMPATIENT_S / 4.0 ** max(0, self._hung - 1)
        return min(self._timeout, round(max(_LEAST_PATIENCE_S, shorter) + _TIMES_SLOWEST * self._slowest, 2))

    def add(self, gone: WorkerGone) -> bool:
        """Note a call that did not return as one not to make again; False when nothing can be read without it."""
        match = re.match(_STEP, gone.step)
        if match is None or match.group("index") is None:
            return False
        function, index = match.group("function"), int(match.group("index"))
        code = raw.HUNG if gone.hung else raw.CRASHED
        self._hung += gone.hung
        self._slowest = max(self._slowest, gone.slowest)
        now = time.monotonic()
        self._since = now if self._since is None else self._since
        late = now - self._since > _TIMES_PATIENCE * (IMPATIENT_S + _TIMES_SLOWEST * self._slowest)
        of_gpu = sum(gpu == index for _name, gpu, _code in self.skips)
        if late and any(name == function for name, _gpu, _code in self.skips):
            self.skips.append((function, None, code))
        elif of_gpu + 1 >= (2 if late else _LOSSES_OF_A_GPU):
            self.skips.append((None, index, code))
        else:
            self.skips.append((function, index, code))
        return True
