# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The guard before a vLLM service: it lets the server start when the memory that it will ask for is free.

Runs as ``ExecStartPre`` of the unit, as the unit's user, inside the unit's sandbox. It looks at the unit's own GPUs only, waits
for memory that comes back late, says in the journal what it waits for and who holds it, and ends with an exit status of
its own (exit_codes.py) when it has waited long enough or can never pass.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Callable, List, Optional, Sequence, TypeVar

from .._core.clock import Clock, Deadline
from .._core.errors import GpuFleetError
from .._gpu.host import natural, normal_pci
from .._gpu.reader import GpuReader, open_reader
from .._gpu.types import Gpu, Snapshot
from . import exit_codes
from .leftovers import leftovers
from .options import Options, read_options
from .port import port_trouble
from .wait import Waiting, holders

if TYPE_CHECKING:
    from .lock import StartLock

T = TypeVar("T")

# How often the driver is asked, and how often the journal hears of it.
_POLL_S = 0.05
_REPORT_S = 5.0
# The remains of an earlier run and its port go within moments or not at all: they were killed before the guard began.
_REMAINS_S = 10.0
# So long may a reading that hangs make it last beyond its time, and at the very end each still gets a little: a unit's TimeoutStartSec
# leaves it a minute.
_OVERTIME_S = 45.0
_LAST_WORDS_S = 5.0
_ADVICE = "gpufleet.vllm.gpu_reclaim frees it, or says what can't be freed"


class Ports:
    """What the guard touches; tests put their own in its place."""

    def __init__(
        self,
        clock: Optional[Clock] = None,
        open_backend: Optional[Callable[[str, float], GpuReader]] = None,
        say: Optional[Callable[[str], None]] = None,
        taken: Callable[[str, int], Optional[str]] = port_trouble,
        remains: Callable[[str], Sequence[object]] = leftovers,
    ) -> None:
        self.clock = clock or Clock()
        self.open_backend = open_backend or _open_backend
        out = say or _say
        self.say: Callable[[str], None] = lambda text: out(one_line(text))
        self.taken = taken
        self.remains = remains


def main(argv: Sequence[str], ports: Optional[Ports] = None) -> int:
    """Run the guard; its exit status (see exit_codes.py)."""
    ports = ports or Ports()
    try:
        options = read_options(argv)
    except SystemExit as exc:
        if exc.code in (None, 0):
            return exit_codes.PASS
        return _refuse(ports, "the service", exit_codes.USAGE, "the guard does not take these arguments, see above")
    try:
        return _Guard(options, ports).run()
    except Exception:  # noqa: BLE001 - the unit must end with a status that says whose fault it was
        import traceback

        traceback.print_exc()
        return _refuse(ports, options.unit, exit_codes.INTERNAL, "the guard itself failed, see the traceback above")


def _refuse(ports: Ports, unit: str, code: int, why: str) -> int:
    """The guard's last words, and its exit status. Whoever reads the journal finds the status's name in them."""
    ports.say("%s is not started (%s): %s" % (unit, exit_codes.NAMES[code], why))
    return code


class _Guard:
    def __init__(self, options: Options, ports: Ports) -> None:
        self._options = options
        self._ports = ports
        self._deadline = Deadline(ports.clock, options.timeout)
        self._reported: Optional[float] = None
        self._lock: Optional[StartLock] = None
        self._claimed = options.lock_dir is None

    def run(self) -> int:
        """The checks, cheapest first; the memory last, because it is what changes."""
        code = self._remains() or self._port()
        if code:
            return code
        code = exit_codes.INTERNAL
        try:
            with _Driver(self._options, self._ports, self._deadline) as driver:
                code = self._memory(driver)
        finally:
            self._unlock(code)
        return code

    def _remains(self) -> int:
        unit = self._options.unit
        left = self._wait_out(lambda: self._ports.remains(unit), "for processes of an earlier run of %s to end" % unit)
        if not left:
            return exit_codes.PASS
        names = ["pid %s %s" % (getattr(info, "pid", "?"), getattr(info, "cmdline", "") or getattr(info, "comm", "?")) for info in left]
        return self._fail(exit_codes.CGROUP, "processes of an earlier run are still in the unit's cgroup: %s; "
                          "systemctl kill -s KILL %s ends them" % ("; ".join(names), unit))

    def _port(self) -> int:
        port, host = self._options.port, self._options.host
        if port is None:
            return exit_codes.PASS
        trouble = self._wait_out(lambda: self._ports.taken(host, port), "for port %d to come free" % port)
        if not trouble:
            return exit_codes.PASS
        return self._fail(exit_codes.PORT, "port %d on %s %s" % (port, host or "all addresses", trouble))

    def _wait_out(self, look: Callable[[], T], what: str) -> T:
        """Look again until what is found is nothing, for a short while; what was found last."""
        clock = self._ports.clock
        limit = Deadline(clock, min(_REMAINS_S, self._options.timeout))
        found = look()
        if found:
            self._ports.say("waiting %s" % what)
        while found and not limit.expired:
            clock.sleep(min(0.1, limit.remaining))
            found = look()
        return found

    def _memory(self, driver: _Driver) -> int:
        options, clock = self._options, self._ports.clock
        waiting = Waiting(options.need, options.settle)
        settled_by: Optional[float] = None
        while True:
            started = clock.monotonic()
            try:
                snapshot = driver.read(processes=False)
            except GpuFleetError as exc:
                return self._fail(exit_codes.ABSENT, exc.msg)
            now = clock.monotonic()
            moved = _moved(snapshot, options) if snapshot.available else ""
            if moved:
                return self._fail(exit_codes.ABSENT, moved)
            verdict = waiting.judge(snapshot, now)
            if verdict.code is not None and verdict.code != exit_codes.PASS:
                return self._fail(verdict.code, verdict.text)
            busy = self._claim(snapshot) if snapshot.available and not self._claimed else None
            if busy is not None:
                if self._deadline.expired:
                    return self._fail(exit_codes.LOCKED, "%s, after %g s of waiting" % (busy, options.timeout))
                self._tell("waits: %s" % busy, now)
                clock.sleep(min(_POLL_S, self._deadline.remaining + 0.001))
                waiting = Waiting(options.need, options.settle)  # what was seen while another one loaded says nothing
                continue
            if verdict.code == exit_codes.PASS:
                if self._reported is not None:
                    self._ports.say("the memory is free after %.1f s" % self._deadline.elapsed)
                return exit_codes.PASS
            # what came free, or was unlocked, at the last moment still has the time to settle, once
            left = self._deadline.remaining
            if snapshot.available and not verdict.short:
                settled_by = now + options.settle if settled_by is None and not left else settled_by
                left = left if settled_by is None else settled_by - now
            if left <= 0:
                return self._timed_out(driver, snapshot, verdict.text, verdict.short)
            if self._tell("waits: %s" % verdict.text, now):
                for line in self._held(driver, verdict.short):
                    self._ports.say("  held by %s" % line)
                continue  # naming the holders took its time: look again at once
            # nvidia-smi takes longer than the pause between two looks: then the pause is over when it answers
            spent = clock.monotonic() - started
            clock.sleep(min(_POLL_S - spent, left + 0.001))

    def _claim(self, snapshot: Snapshot) -> Optional[str]:
        """Claim the GPUs; None when they are claimed (or can't be), else who is to be waited for."""
        from .claims import Unusable  # only where it is asked for
        from .lock import StartLock

        options = self._options
        names = {gpu.uuid or "GPU %d" % gpu.index: "GPU %d" % gpu.index for gpu in snapshot.gpus}
        if self._lock is None:
            self._lock = StartLock(options.lock_dir or "", options.unit, self._ports.clock.monotonic)
        try:
            busy = self._lock.take(list(names), options.host, options.port)
        except Unusable as exc:
            self._ports.say("warning: starts on these GPUs are not kept apart: %s" % exc)
            busy = None
            self._lock = None
        if busy is None:
            self._claimed = True
            return None
        unit, shared = busy
        return "%s is still starting on %s" % (unit, ", ".join(names[each] for each in shared))

    def _unlock(self, code: int) -> None:
        """Leave the claim to the server that starts now, or take it back."""
        if self._lock is None:
            return
        if code != exit_codes.PASS:
            self._lock.drop()
            return
        problem = self._lock.passed()
        if problem is not None:
            self._ports.say("warning: starts on these GPUs are not kept apart: %s" % problem)

    def _tell(self, text: str, now: float) -> bool:
        """Say what is waited for, at once and then every few seconds; whether it was said."""
        if self._reported is not None and now - self._reported < _REPORT_S:
            return False
        spent = "%.0f of %g s" % (self._deadline.elapsed, self._options.timeout)
        self._ports.say("%s %s (%s)" % (self._options.unit, text, spent))
        self._reported = now
        return True

    def _timed_out(self, driver: _Driver, snapshot: Snapshot, text: str, short: Sequence[int]) -> int:
        if not snapshot.available:
            return self._fail(exit_codes.DRIVER, "%s, for %g s" % (text, self._options.timeout))
        unknown = [gpu for gpu in snapshot.gpus if gpu.index in short and gpu.free_mib is None]
        if unknown:
            return self._fail(exit_codes.DRIVER, "the driver does not say how much memory is free: %s" % text)
        for line in self._held(driver, short or [gpu.index for gpu in snapshot.gpus]):
            self._ports.say("  held by %s" % line)
        if not short:
            return self._fail(exit_codes.MEMORY, "enough memory is free, but after %.0f s it still moves and did not stay as it was for "
                              "%g s: another program takes or frees some" % (self._deadline.elapsed, self._options.settle))
        return self._fail(exit_codes.MEMORY, "the memory did not come free within %g s: %s; %s"
                          % (self._options.timeout, text, _ADVICE))

    def _held(self, driver: _Driver, short: Sequence[int]) -> List[str]:
        if not short:
            return []
        return holders(driver.read(processes=True).gpus, short)

    def _fail(self, code: int, why: str) -> int:
        return _refuse(self._ports, self._options.unit, code, why)


class _Driver:
    """The driver through the quickest road there is: the library itself where it can be loaded, else nvidia-smi."""

    def __init__(self, options: Options, ports: Ports, deadline: Deadline) -> None:
        self._options = options
        self._ports = ports
        self._deadline = deadline
        self._backends = ["nvml", "nvidia_smi"] if options.backend == "auto" else [options.backend]
        self._reader: Optional[GpuReader] = None

    def read(self, processes: bool) -> Snapshot:
        """One reading of the unit's GPUs. Raises GpuFleetError when one of them does not exist."""
        if self._reader is None:
            self._reader = self._ports.open_backend(self._backends[0], self._options.call_timeout)
            self._reader.within = self._within
        snapshot = self._reader.snapshot(self._options.gpus, processes=processes)
        if not snapshot.available and len(self._backends) > 1 and snapshot.reason in ("library_missing", "error", "no_driver"):
            with self._ports.open_backend(self._backends[1], self._options.call_timeout) as other:
                other.within = self._within
                second = other.snapshot(self._options.gpus, processes=processes)
            if second.available:
                self._backends = self._backends[1:]
                self.close()
                return second
        return snapshot

    def _within(self) -> float:
        """Seconds that a reading may take: systemd must not end the guard before it has said its last words."""
        return max(_LAST_WORDS_S, self._options.timeout + _OVERTIME_S - self._deadline.elapsed)

    def close(self) -> None:
        if self._reader is not None:
            self._reader.close()
            self._reader = None

    def __enter__(self) -> _Driver:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.close()


def _open_backend(backend: str, timeout: float) -> GpuReader:
    # whether a holder is an orphan is not the guard's question, so that nobody asks systemd from inside the sandbox
    return open_reader(backend, timeout, unit_state=lambda unit: "", quick=True)


def _moved(snapshot: Snapshot, options: Options) -> str:
    """In words, which of the unit's GPUs has another index than the server is given; "" when none has."""
    wrong: List[str] = []
    for word, index in zip(options.gpus, options.indices):
        # word by word: a GPU that is named twice is read once, and one that may be meant and does not say so has not moved
        found = [gpu.index for gpu in snapshot.gpus if _names(word, gpu)]
        if found and index not in found:
            said = "%s is GPU %d now, not GPU %d" % (word, found[0], index)
            wrong += [said] if said not in wrong else []
    if not wrong:
        return ""
    return "%s, and the unit would give the server another one in its place; deploy the service again" % "; ".join(wrong)


def _names(word: str, gpu: Gpu) -> bool:
    """Whether one of a selection's words, of which the reading has found every one, means this GPU."""
    if word.isdigit():
        return gpu.index == natural(word)
    if normal_pci(word) is not None:
        return gpu.pci_bus_id is not None and normal_pci(gpu.pci_bus_id) == normal_pci(word)
    return gpu.uuid is not None and gpu.uuid.lower().startswith(word.lower())


def one_line(text: str) -> str:
    """The text without line breaks and control characters: a process names itself as it likes, also in the guard's own words."""
    return " ".join("".join(char if char.isprintable() else " " for char in text).split()) if not text.isprintable() else text


def _say(text: str) -> None:
    sys.stdout.write("gpu-guard: %s\n" % text)
    sys.stdout.flush()
