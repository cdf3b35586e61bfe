# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Reading the GPUs of this host: the one port through which everything else learns about GPU memory."""

from __future__ import annotations

import importlib.util
import os
import re
from dataclasses import replace
from types import TracebackType
from typing import TYPE_CHECKING, Callable, Dict, FrozenSet, List, Optional, Sequence, Set, Tuple, Type

from .._core.clock import Clock
from .._core.errors import GpuFleetError
from .._core.runner import Runner
from .._process.inspect import Inspection, inspect
from .._process.procfs import ancestors
from .._process.rules import serverless, vllm_reason
from .._process.sessions import session_state
from .._process.types import CgroupOwner, ProcessInfo
from . import host, raw
from .assemble import World, assemble
from .nvml import NvmlCollector, Skips
from .select import resolve
from .types import Gpu, Snapshot, memory_sums
from .worker import Beat, Handler, Worker, WorkerGone

if TYPE_CHECKING:
    from .smi import SmiCollector

BACKENDS = ("auto", "nvml", "nvidia_smi")

# Once a call has hung, how long the others may take: a healthy driver answers within milliseconds.
_IMPATIENT_S = 5.0
# How many calls may hang or crash in one reading before the driver as a whole is given up.
_MAX_LOSSES = 4

_STEP = re.compile(r"(?P<function>nvml\w+)(?: on GPU (?P<index>\d+))?$")
_Skip = Tuple[Optional[str], Optional[int], int]


class GpuReader:
    """The port. Tests put their own in its place."""

    def snapshot(self, gpus: Optional[Sequence[str]] = None, processes: bool = True) -> Snapshot:
        """Read the driver now. ``gpus`` selects (see select.py) and leaves the others untouched; without ``processes`` the
        reading is cheap enough to be repeated many times a second.

        A host that can't be read is a snapshot with ``available`` False, not an error. Raises GpuFleetError when the
        selection names a GPU that the host does not have.
        """
        raise NotImplementedError

    def close(self) -> None:
        """Let go of the driver."""

    def __enter__(self) -> GpuReader:
        return self

    def __exit__(
        self, kind: Optional[Type[BaseException]], value: Optional[BaseException], trace: Optional[TracebackType]
    ) -> None:
        self.close()


def open_reader(
    backend: str = "auto",
    timeout: float = 60.0,
    runner: Optional[Runner] = None,
    clock: Optional[Clock] = None,
    unit_state: Optional[Callable[[str], str]] = None,
    proc_root: str = "/proc",
    sys_root: str = "/sys",
    dev_root: str = "/dev",
    run_root: str = "/run",
    protect: Sequence[str] = (),
    quick: bool = False,
) -> GpuReader:
    """A reader of this host. ``timeout`` is the limit of every single driver call, in seconds.

    ``auto`` takes NVML where the ``pynvml`` package is installed, else nvidia-smi; ``nvml`` needs the driver's library only.
    ``unit_state`` answers a unit's ActiveState; by default systemctl is asked, and only when a vLLM process was seen.
    ``protect`` are additional patterns of what must never be signalled. ``quick`` leaves out of readings without processes what
    says nothing about memory (CUDA version, utilisation, compute mode).
    """
    if backend not in BACKENDS:
        raise GpuFleetError("Unknown backend '%s': use one of %s." % (backend, ", ".join(BACKENDS)))
    places = _Places(proc_root, sys_root, dev_root, run_root)
    return _HostReader(backend, timeout, runner or Runner(), clock or Clock(), unit_state, places, protect, quick)


class _Places:
    """Where the host's pseudo file systems are."""

    def __init__(self, proc: str, sys: str, dev: str, run: str) -> None:
        self.proc, self.sys, self.dev, self.run = proc, sys, dev, run


class _HostReader(GpuReader):
    def __init__(
        self,
        backend: str,
        timeout: float,
        runner: Runner,
        clock: Clock,
        unit_state: Optional[Callable[[str], str]],
        places: _Places,
        protect: Sequence[str],
        quick: bool,
    ) -> None:
        self._timeout = timeout
        self._runner = runner
        self._clock = clock
        self._ask_unit = unit_state or self._systemctl
        self._places = places
        self._protect = protect
        self._quick = quick
        self._pci: Optional[List[str]] = None
        self._pci_known = False
        self._worker: Optional[Worker] = None
        self._smi: Optional[SmiCollector] = None
        self._notes: Tuple[str, ...] = ()
        self._identities: List[Gpu] = []
        self._use_nvml = backend != "nvidia_smi"
        self._may_fall_back = backend == "auto"
        if backend == "auto" and importlib.util.find_spec("pynvml") is None:
            self._use_nvml = False
            self._notes = ("read through nvidia-smi: the Python package nvidia-ml-py (pynvml) is not installed",)

    def snapshot(self, gpus: Optional[Sequence[str]] = None, processes: bool = True) -> Snapshot:
        only = self._indices(gpus)
        reading = self._read(only, processes, raw.MEMORY if self._quick and not processes else raw.FULL)
        world = World(protect=self._protect, pci=self._pci_gpus())
        world.memory = host.meminfo(self._places.proc)
        _fill_addresses(reading, world.pci, self._places.proc)
        if processes and reading.failure is None:
            world.inspection = self._inspect(reading)
            world.own_pids = self._own_pids()
            world.belongs = _Belongs(self._ask_unit, world.inspection, self._places.run)
        snapshot = assemble(reading, world)
        if not gpus or not snapshot.available:
            return snapshot
        if only is not None and len(snapshot.gpus) < len(only):
            resolve(gpus, self._known_gpus())  # raises, and names what there is
        return _narrowed(snapshot, resolve(gpus, snapshot.gpus))

    def close(self) -> None:
        if self._worker is not None:
            self._worker.close()
            self._worker = None

    # --- the driver

    def _indices(self, gpus: Optional[Sequence[str]]) -> Optional[FrozenSet[int]]:
        """The indices to read; None for all. What is no index needs the identities first, which do not change."""
        words = [str(word).strip() for word in gpus or ()]
        if not words or "all" in [word.lower() for word in words]:
            return None
        if all(word.isdigit() for word in words):
            return frozenset(int(word) for word in words)
        known = self._known_gpus()
        return frozenset(gpu.index for gpu in resolve(words, known)) if known else None

    def _known_gpus(self) -> List[Gpu]:
        """Who is there; read once, as it does not change. Empty when nothing can be read."""
        if not self._identities:
            reading = self._read(None, False, raw.IDENTITY)
            _fill_addresses(reading, self._pci_gpus(), self._places.proc)
            self._identities = list(assemble(reading, World()).gpus)
        return self._identities

    def _pci_gpus(self) -> Optional[List[str]]:
        """The GPUs on the bus: looked for once, since a big machine has hundreds of devices there."""
        if not self._pci_known:
            self._pci, self._pci_known = host.pci_gpus(self._places.sys), True
        return self._pci

    def _read(self, only: Optional[FrozenSet[int]], processes: bool, depth: int) -> raw.RawReading:
        if self._use_nvml:
            reading = self._read_nvml(only, processes, depth)
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
        loaded = host.module_version(self._places.proc) if reading.driver_version is None else None
        reading.driver_version = reading.driver_version or loaded
        if failure is None:
            return reading
        if failure.absent and not host.module_loaded(self._places.proc):
            reading.failure = raw.Failure("no_driver", "no NVIDIA driver is installed or loaded (%s)" % failure.detail)
        elif failure.reason == "driver_library_mismatch":
            detail = "%s; loaded kernel module: %s; processes that run already go on; a reboot loads the new module"
            reading.failure = raw.Failure(failure.reason, detail % (failure.detail, loaded or "unknown"))
        return reading

    def _read_smi(self, only: Optional[FrozenSet[int]], processes: bool, depth: int) -> raw.RawReading:
        if self._smi is None:
            from .smi import SmiCollector  # not at the top: where NVML works, its parsers need not be loaded

            self._smi = SmiCollector(self._runner, self._timeout, self._places.proc)
        return self._smi.read(only, processes, depth)

    def _read_nvml(self, only: Optional[FrozenSet[int]], processes: bool, depth: int) -> raw.RawReading:
        skips: List[_Skip] = []
        notes: List[str] = []
        while True:
            # once something hung, the rest is asked with less patience: one slow GPU must not cost the time-out eight times
            patience = self._timeout if not skips else min(self._timeout, _IMPATIENT_S)
            try:
                reading: raw.RawReading = self._ask(("nvml", only, processes, depth, skips), patience)
            except WorkerGone as gone:
                self._worker = None
                notes.append(gone.detail)
                if not _lose(skips, gone) or len(notes) > _MAX_LOSSES:
                    reason = "driver_hung" if gone.hung else "error"
                    return raw.RawReading("nvml", raw.Failure(reason, "NVML: %s" % "; ".join(notes)))
                continue
            reading.notes += tuple(notes)
            if reading.failure is not None:
                self.close()  # the library keeps what it learnt at its first start: begin afresh next time
            return reading

    def _ask(self, request: object, timeout: float) -> "raw.RawReading":
        if self._worker is None:
            proc, dev = self._places.proc, self._places.dev
            self._worker = Worker(lambda beat: _handler(beat, proc, dev))
        answer: raw.RawReading = self._worker.ask(request, timeout)
        return answer

    # --- the processes

    def _inspect(self, reading: raw.RawReading) -> Inspection:
        pids = sorted({process.pid for gpu in reading.gpus for process in gpu.processes or ()})
        untitled: Set[int] = set()
        while True:
            try:
                answer = self._ask(("inspect", pids, frozenset(untitled)), min(self._timeout, _IMPATIENT_S))
            except WorkerGone as gone:
                self._worker = None
                match = re.match(r"/proc/(\d+)$", gone.step)
                if match is None or int(match.group(1)) in untitled or len(untitled) > 64:
                    raise GpuFleetError("Reading the host's processes failed: %s." % gone.detail) from gone
                untitled.add(int(match.group(1)))
                continue
            if not isinstance(answer, Inspection):
                raise AssertionError("the worker answered %r" % (answer,))
            return answer

    def _own_pids(self) -> FrozenSet[int]:
        own = ancestors(os.getpid(), self._places.proc)
        return frozenset(own + ([self._worker.pid] if self._worker is not None else []))

    def _systemctl(self, unit: str) -> str:
        """A unit's ActiveState; an empty text when systemd can't be asked, which counts as active."""
        done = self._runner.run(["systemctl", "is-active", "--", unit], timeout=10.0)
        return done.stdout.strip()


class _Belongs:
    """Whether somebody answers for a process: an active unit, or a login session."""

    def __init__(self, ask_unit: Callable[[str], str], inspection: Inspection, run_root: str) -> None:
        self._ask_unit = ask_unit
        self._inspection = inspection
        self._run_root = run_root
        self._states: Dict[str, str] = {}

    def __call__(self, info: ProcessInfo, owner: CgroupOwner) -> Optional[bool]:
        """None: its cgroup names neither, or it is not vLLM's, so that nobody needs to be asked."""
        family = self._inspection.family(info.pid)
        if vllm_reason(info, owner, family) is None:
            return None
        if owner.session is not None:
            if session_state(owner.session, self._run_root) == "closing":
                # the user has logged out: a whole server left running on purpose is theirs, workers without one are nobody's
                return not serverless(info, family)
            return owner.scope is None or self._active(owner.scope)
        if owner.unit is None:
            return None
        return self._active("user@%d.service" % (owner.uid or 0) if owner.user_unit else owner.unit)

    def _active(self, unit: str) -> bool:
        if unit not in self._states:
            self._states[unit] = self._ask_unit(unit)
        return self._states[unit] not in ("inactive", "failed")


def _handler(beat: Beat, proc: str, dev: str) -> Handler:
    """What the child does: read the driver, or look at processes."""
    collector = NvmlCollector(lambda function, index: beat(function if index is None else "%s on GPU %d" % (function, index)))

    def handle(request: Tuple[object, ...]) -> object:
        if request[0] == "nvml":
            _kind, only, processes, depth, skips = request
            return collector.read(only, processes, depth, Skips(skips))  # type: ignore[arg-type]
        _kind, pids, untitled = request
        return inspect(pids, proc, dev, untitled, beat)  # type: ignore[arg-type]

    return handle


def _lose(skips: List[_Skip], gone: WorkerGone) -> bool:
    """Note a call that did not return as one not to make again; False when nothing can be read without it."""
    match = _STEP.match(gone.step)
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


def _fill_addresses(reading: raw.RawReading, pci: Optional[Sequence[str]], proc_root: str) -> None:
    """A GPU that can't be asked for its address still has one: the bus order is the driver's order, when none is missing."""
    if all(gpu.pci_bus_id is not None for gpu in reading.gpus):
        return
    for addresses in (host.driver_gpus(proc_root), pci):
        if addresses is not None and len(addresses) == reading.count:
            for gpu in reading.gpus:
                gpu.pci_bus_id = gpu.pci_bus_id or addresses[gpu.index]
            return


def _narrowed(snapshot: Snapshot, chosen: Sequence[Gpu]) -> Snapshot:
    """The snapshot of a selection, with the sums of what is left."""
    total, used, free = memory_sums(chosen)
    return replace(snapshot, gpus=tuple(chosen), total_mib=total, used_mib=used, free_mib=free)
