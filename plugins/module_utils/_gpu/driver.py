# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The driver read without ever hanging: backends chosen, calls that do not return left out the next time."""

from __future__ import annotations

import re
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
# How many calls may hang or crash in one reading before the driver as a whole is given up.
_MAX_LOSSES = 4

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
        skips: List[_Skip] = []
        notes: List[str] = []
        slowest = 0.0
        while True:
            # once something hung, the rest is asked with less patience: one slow GPU must not cost the time-out eight times
            patience = self._timeout if not skips else min(self._timeout, IMPATIENT_S + _TIMES_SLOWEST * slowest)
            try:
                reading = cast(raw.RawReading, self._ask(("nvml", only, processes, depth, skips), patience, meanwhile))
            except WorkerGone as gone:
                meanwhile = None
                slowest = max(slowest, gone.slowest)
                notes.append(gone.detail)
                if not _lose(skips, gone) or len(notes) > _MAX_LOSSES:
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


def _lose(skips: List[_Skip], gone: WorkerGone) -> bool:
    """Note a call that did not return as one not to make again; False when nothing can be read without it."""
    match = re.match(_STEP, gone.step)
    if match is None or match.group("index") is None:
        return False
    function, index = match.group("function"), int(match.group("index"))
    code = raw.HUNG if gone.hung else raw.CRASHED
    if any(name == function for name, _gpu, _code in skips):
        skips.append((function, None, code))  # it is the function, not the GPU
    elif any(gpu == index for _name, gpu, _code in skips):
        skips.append((None, index, code))  # it is the GPU, not the function
    else:
        skips.append((function, index, code))
    return True
