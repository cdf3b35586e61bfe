# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Reading the GPUs of this host: the one port through which everything else learns about GPU memory."""

from __future__ import annotations

import math
import os
from dataclasses import replace
from types import TracebackType
from typing import TYPE_CHECKING, Callable, Dict, FrozenSet, List, Optional, Sequence, Tuple, Type

from .._core.errors import GpuFleetError
from . import host, raw
from .driver import Driver

if TYPE_CHECKING:
    from .._core.runner import Runner
    from .assemble import OnGpu
    from .types import Gpu, Snapshot
    from .worker import Worker

BACKENDS = ("auto", "nvml", "nvidia_smi")
# No call of a driver is worth more than a day, and the system's own timers end not far beyond.
LONGEST_CALL_S = 86400

_NOT_ROOT = "not read as root: who holds a GPU without being listed can't be seen for other users' processes"
_NO_MINOR = "who holds a GPU without being listed can't be seen where the number of its device node is unknown: GPU %s"


class GpuReader:
    """The port. Tests put their own in its place. ``within`` says at the start of each reading how many seconds its caller has left,
    where that may be less than a reading takes at most."""

    within: Optional[Callable[[], float]] = None

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
    unit_state: Optional[Callable[[str], str]] = None,
    proc_root: str = "/proc",
    sys_root: str = "/sys",
    dev_root: str = "/dev",
    run_root: str = "/run",
    protect: Sequence[str] = (),
    quick: bool = False,
    child: Optional[Worker] = None,
) -> GpuReader:
    """A reader of this host. ``timeout`` is the limit of every single driver call, in seconds, at most a day; that of a reading as a
    whole, however many GPUs hang and however long the library takes to start, follows from it (limits.reading_limit()).

    ``auto`` takes NVML where the ``pynvml`` package is installed, else nvidia-smi; ``nvml`` needs the driver's library only.
    ``unit_state`` answers a unit's ActiveState; by default systemctl is asked, and only when a vLLM process was seen.
    ``protect`` are additional patterns of what must never be signalled. ``quick`` leaves out of readings without processes what
    says nothing about memory (CUDA version, utilisation, compute mode). ``child`` is one that was started before (see child.py); the
    reader closes it.
    """
    if backend not in BACKENDS:
        raise GpuFleetError("Unknown backend '%s': use one of %s." % (backend, ", ".join(BACKENDS)))
    if not 0 < timeout <= LONGEST_CALL_S:
        raise GpuFleetError("timeout must be over 0 and at most %d seconds, not %s." % (LONGEST_CALL_S, timeout))
    driver = Driver(backend, timeout, runner, proc_root, dev_root, child)
    places = _Places(proc_root, sys_root, dev_root, run_root)
    return _HostReader(driver, unit_state or _systemctl(runner), places, protect, quick)


class _Places:
    """Where the host's pseudo file systems are."""

    def __init__(self, proc: str, sys: str, dev: str, run: str) -> None:
        self.proc, self.sys, self.dev, self.run = proc, sys, dev, run


class _HostReader(GpuReader):
    def __init__(
        self,
        driver: Driver,
        unit_state: Callable[[str], str],
        places: _Places,
        protect: Sequence[str],
        quick: bool,
    ) -> None:
        self._driver = driver
        self._unit_state = unit_state
        self._places = places
        self._protect = protect
        self._quick = quick
        self._pci: Optional[List[str]] = None
        self._pci_known = False
        self._identities: List[Gpu] = []

    def snapshot(self, gpus: Optional[Sequence[str]] = None, processes: bool = True) -> Snapshot:
        only = self._indices(gpus)
        reading, on_gpu = self._with_processes(only) if processes else (self._memory(only), None)
        from .assemble import assemble  # here, so that it is loaded while the driver is at work

        snapshot = assemble(reading, self._pci_gpus(), host.meminfo(self._places.proc), on_gpu, self._others(reading))
        if not gpus or not snapshot.available:
            return snapshot
        from .select import resolve  # a reading of all GPUs needs no selection

        if only is not None and len(snapshot.gpus) < len(only):
            resolve(gpus, self._known_gpus())  # raises, and names what there is
        return _narrowed(snapshot, resolve(gpus, snapshot.gpus))

    def close(self) -> None:
        self._driver.close()

    def _memory(self, only: Optional[FrozenSet[int]]) -> raw.RawReading:
        return self._read(only, False, raw.MEMORY if self._quick else raw.FULL)

    def _with_processes(self, only: Optional[FrozenSet[int]]) -> Tuple[raw.RawReading, Optional[OnGpu]]:
        """A reading, and who is on its GPUs."""
        holders: Dict[int, FrozenSet[str]] = {}

        def meanwhile() -> None:
            # here, because now the driver is at work; and a loop that only watches memory needs no holders
            from .._process.holders import device_holders
            from .assemble import assemble as _loaded  # noqa: F401 - needed next

            holders.update(device_holders(self._places.proc, self._places.dev))
            self._pci_gpus()

        reading = self._read(only, True, raw.FULL, meanwhile)
        if reading.failure is not None:
            return reading, None
        if os.geteuid() != 0:
            reading.notes += (_NOT_ROOT,)
        for pid in self._driver.helpers:
            holders.pop(pid, None)
        nameless = _fill_minors(reading, self._places.proc)
        if holders and nameless:
            reading.notes += (_NO_MINOR % ", ".join(map(str, nameless)),)
        if not holders and not any(gpu.processes for gpu in reading.gpus):
            return reading, None  # nobody there, and nothing to load for it
        from .look import look

        roots = self._places.proc, self._places.run
        try:
            return reading, look(reading, holders, self._driver, roots, self._unit_state, self._protect).on
        except GpuFleetError as exc:
            # the memory was read all the same; who holds it is unknown, which is not nobody
            reading.notes += (exc.msg,)
            for gpu in reading.gpus:
                gpu.processes, gpu.processes_code = None, raw.HUNG
            return reading, None

    def _read(
        self,
        only: Optional[FrozenSet[int]],
        processes: bool,
        depth: int,
        meanwhile: Optional[Callable[[], None]] = None,
    ) -> raw.RawReading:
        within = math.inf if self.within is None else self.within()
        reading = self._driver.read(only, processes, depth, meanwhile, within)
        _fill_addresses(reading, self._pci_gpus(), self._places.proc)
        return reading

    def _indices(self, gpus: Optional[Sequence[str]]) -> Optional[FrozenSet[int]]:
        """The indices to read; None for all. What is no index needs the identities first, which do not change."""
        words = [str(word).strip() for word in gpus or ()]
        if not words or "all" in [word.lower() for word in words]:
            return None
        indices = [host.natural(word) for word in words]
        if None not in indices:
            return frozenset(index for index in indices if index is not None)
        from .select import resolve

        known = self._known_gpus()
        return frozenset(gpu.index for gpu in resolve(words, known)) if known else None

    def _others(self, reading: raw.RawReading) -> List[str]:
        """The addresses of what the driver shows besides what was read, without asking it about GPUs that nobody wants to know of."""
        if reading.count is None or len(reading.gpus) == reading.count:
            return []
        addresses = [gpu.pci_bus_id for gpu in self._identities if gpu.pci_bus_id] or host.driver_gpus(self._places.proc) or []
        return addresses if len(addresses) == reading.count else []

    def _known_gpus(self) -> List[Gpu]:
        """Who is there; read once, as it does not change. Empty when nothing can be read."""
        if not self._identities:
            from .assemble import assemble

            self._identities = list(assemble(self._read(None, False, raw.IDENTITY)).gpus)
        return self._identities

    def _pci_gpus(self) -> Optional[List[str]]:
        """The GPUs on the bus: looked for once, since a big machine has hundreds of devices there."""
        if not self._pci_known:
            self._pci, self._pci_known = host.pci_gpus(self._places.sys), True
        return self._pci


def _systemctl(runner: Optional[Runner]) -> Callable[[str], str]:
    """Asks systemd for a unit's ActiveState; an empty text when it can't be asked, which counts as active."""

    def state(unit: str) -> str:
        from .._core.runner import Runner

        return (runner or Runner()).run(["systemctl", "is-active", "--", unit], timeout=10.0).stdout.strip()

    return state


def _fill_addresses(reading: raw.RawReading, pci: Optional[Sequence[str]], proc_root: str) -> None:
    """A GPU that can't be asked for its address still has one: the bus order is the driver's order, when none is missing."""
    if all(gpu.pci_bus_id is not None for gpu in reading.gpus):
        return
    # NVML counts what it shows; nvidia-smi may leave one out and keep the numbers of the others, and then no place is certain
    if reading.backend != "nvml" and [gpu.index for gpu in reading.gpus] != list(range(reading.count or 0)):
        return
    for addresses in (host.driver_gpus(proc_root), pci):
        if addresses is not None and len(addresses) == reading.count:
            for gpu in reading.gpus:
                gpu.pci_bus_id = gpu.pci_bus_id or addresses[gpu.index]
            return


def _fill_minors(reading: raw.RawReading, proc_root: str) -> List[int]:
    """Ask the module for the numbers of device nodes that the driver does not tell; the readable GPUs whose number stays unknown."""
    for gpu in reading.gpus:
        if gpu.minor is None and gpu.pci_bus_id is not None:
            gpu.minor = host.driver_minor(gpu.pci_bus_id, proc_root)
    return [gpu.index for gpu in reading.gpus if gpu.minor is None and gpu.code == raw.SUCCESS]


def _narrowed(snapshot: Snapshot, chosen: Sequence[Gpu]) -> Snapshot:
    """The snapshot of a selection, with the sums of what is left."""
    from .types import memory_sums

    whole = {gpu.index for gpu in chosen if gpu.divided}
    # what belongs to a part belongs to the whole too, and counts once
    total, used, free = memory_sums(gpu for gpu in chosen if gpu.divided or gpu.index not in whole)
    return replace(snapshot, gpus=tuple(chosen), total_mib=total, used_mib=used, free_mib=free)
