# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The job: carries out the change whose record it finds, or brings one to an end that was interrupted.

What is found tells what happened. A record that was never tried is a change that begins. One that was tried is a change
whose job died: by SIGKILL (systemd has started it again), or with the host (this is the next boot).

* The new server was seen to serve: the rest is done.
* The job died once and the host did not: the change is tried once more, from a fresh look.
* Otherwise (it died again; the host went down, perhaps because of what was being tried; it was being undone): it is undone.

Whatever fails then is undone to the state before the *first* attempt: that is in the record. The record is removed only
when the host is at rest again, so that dying here leads here again.
"""

from __future__ import annotations

import sys
import traceback
from contextlib import ExitStack
from dataclasses import replace
from typing import Any, Dict, Mapping, Optional

from .._borrow.hidden import secrets_of
from .._borrow.request import to_borrow
from .._core.errors import GpuFleetError
from .._core.host_lock import HostLock
from .._core.scrub import Scrub, scrubber
from .._gpu.reader import GpuReader, open_reader
from .._service.change_log import COMMITTING
from .._service.interrupts import Interrupted
from .._service.parameters import to_request
from .._service.ports import Ports
from .._service.request import Request
from .._service.run import Run
from .._service.transaction import switch_boot
from .job_log import JobLog
from .patient_lock import PatientLock
from .progress import PATH, Progress
from .record import BORROW, Record
from .recovery import Recovery
from .signals import Leave, Signals
from .store import Store
from .watch import Watch

# A module that has just begun this change, or refuses another, holds the lock for a moment.
_LOCK_S = 60.0
# At boot the driver comes when it comes.
_DRIVER_S = 120.0
_DRIVER_PAUSE_S = 2.0
_WATCH_TIMEOUT_S = 5.0


def run() -> int:
    """The program's ``run``; the exit status: 0 whatever came of the change, as long as it was brought to an end."""
    ports = Ports()
    signals = Signals(ports.runner)
    try:
        with signals.handled():
            Job(ports, Store(ports.paths.change, ports.paths.run), signals, current_boot(), PATH).run()
    except Leave as leave:
        sys.stderr.write("Left as it is, for the next boot to go on: %s.\n" % leave)
    except (GpuFleetError, Interrupted) as exc:
        sys.stderr.write("%s\n" % exc.msg)
        return 1
    return 0


def current_boot() -> str:
    """The kernel's name for this boot."""
    with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as handle:
        return handle.read().strip()


class Job:
    """One run of the job. ``boot`` names this boot of the host."""

    def __init__(self, ports: Ports, store: Store, signals: Signals, boot: str, progress: str) -> None:
        self._ports = ports
        self._store = store
        self._signals = signals
        self._boot = boot
        self._path = progress

    def run(self) -> None:
        """Bring the change to an end. Raises GpuFleetError when that could not even be tried; the record stays then."""
        self._signals.listening = False  # until it is known what there is to put back
        if not self._store.exists():
            return
        with self._lock():
            found = self._store.load()
            if found is None:
                return
            record = Record.from_json(found)
            progress = self._progress(record)
            last = self._store.last()
            if last is not None and last["id"] == record.id and last["result"].get("put_back"):
                # The job of this borrowing died after it had told the end, or couldn't forget it. What is over is not begun again.
                result = last["result"]
                self._store.discard()
            else:
                result = self._attempt(record, progress)
        word = "rolled back" if result.get("rolled_back") else "failed" if result.get("failed") else "done"
        progress.tell(phase="done", phase_since=self._ports.clock.time(), done=True, outcome=word)
        sys.stderr.write("%s: %s\n" % (record.purpose, word))

    def _attempt(self, record: Record, progress: Progress) -> Dict[str, Any]:
        """One more attempt at it; what came of it, which is kept for whoever waits."""
        record.attempts += 1
        unwritable: Optional[str] = None
        try:
            self._store.save(record.to_json())
        except GpuFleetError as exc:
            unwritable = exc.msg
            sys.stderr.write("%s\n" % unwritable)
        scrub = scrubber(self._secrets(record).values())
        try:
            result: Dict[str, Any] = scrub(self._result(record, progress, scrub, unwritable))
        except Exception as exc:
            # Not even the roll-back knew of this. Started again, the job finds the record and tries again.
            raise GpuFleetError("An unforeseen fault: %s" % scrub.text(traceback.format_exc())) from exc
        last = {"id": record.id, "digest": record.digest, "ended": self._ports.clock.time(), "result": result}
        if record.kind == BORROW:
            last["stands"] = record.more.get("stands")
        try:
            self._store.finish(last)
        except GpuFleetError as exc:
            sys.stderr.write("%s\n" % exc.msg)
            if self._store.last() != last:
                raise  # nobody could learn of it
        return result

    def _secrets(self, record: Record) -> Mapping[str, str]:
        """What nothing may tell. Those of a borrowing are not in its record."""
        if record.kind != BORROW:
            return to_request(record.params).secrets
        return secrets_of(record.unit, self._ports.paths.run, to_borrow(record.params).secret_names) or {}

    # -- what is done ----------------------------------------------------------------------------------------------

    def _result(
        self, record: Record, progress: Progress, scrub: Scrub, unwritable: Optional[str]
    ) -> Dict[str, Any]:
        with ExitStack() as stack:
            reader = stack.enter_context(self._ports.open_reader())
            log = JobLog(record, self._store, progress, self._signals, scrub, self._ports)
            if record.kind == BORROW:
                from .borrowed import carry_out

                return carry_out(record, self._ports, reader, log, self._boot, unwritable)
            request = to_request(record.params)
            recovery = Recovery(record, request, self._ports, reader, log, self._boot, unwritable)
            why = recovery.reason
            if why is not None:
                return recovery.roll_back(why)
            try:
                with log.heard():
                    return self._forward(record, request, reader, log, recovery, stack)
            except Interrupted as asked:
                return recovery.end(asked)

    def _forward(
        self, record: Record, request: Request, reader: GpuReader, log: JobLog, recovery: Recovery, stack: ExitStack
    ) -> Dict[str, Any]:
        again = record.attempts > 1
        self._as_of_this_boot(record)
        if again and record.stage == COMMITTING:
            switch_boot(record.more["enable"], record.more["disable"], self._ports)
        request = self._still_asked(record, request)
        # An attempt after the first counts for itself: what was before is in the record, as far as it was written down.
        one = Run(request, self._ports, reader, self._ports.clock.monotonic() if again else self._begun(record))
        one.outcome.timings.update(record.timings)
        try:
            log.phase("preflight")
            self._examine(one, patient=record.boot_id != self._boot)
        except GpuFleetError as exc:
            if record.undo.empty or record.stage == COMMITTING:
                return recovery.told(dict(exc.result, msg=exc.msg, failed=True))
            return recovery.roll_back("%s, and then: %s" % (recovery.interrupted, exc.msg))
        if again:
            one.outcome.timings.update(record.timings_until(self._ports.clock.time()))
        log.time(one.outcome.timings)
        for entry in record.more.get("replaced", []):
            one.outcome.replace(entry["unit"], entry["name"], entry["result"], entry["seconds"])
        for each in record.undo.stopped:
            if each.service.unit not in [record.unit] + one.plan.targets("stop"):
                one.outcome.replace(each.service.unit, each.service.name, "stopped", 0.0)
        watch = Watch(one.seen.view.gpus, _watching_reader, self._ports.runner, self._ports.clock)
        stack.callback(watch.close)
        log.watch(watch)
        if record.told is None:
            record.told = one.result(False, planned=True).to_result(diff=True)
        try:
            done = one.carry_out(log, record.undo)
        except GpuFleetError as exc:
            return recovery.told(dict(exc.result, msg=exc.msg, failed=True))
        return recovery.told(dict(done.to_result(diff=True), warnings=list(done.warnings)))

    def _examine(self, one: Run, patient: bool) -> None:
        end = self._ports.clock.monotonic() + (_DRIVER_S if patient else 0.0)
        while True:
            try:
                one.examine(remember=True)
                return
            except GpuFleetError:
                if self._ports.clock.monotonic() >= end:
                    raise
            self._ports.clock.sleep(_DRIVER_PAUSE_S)

    def _still_asked(self, record: Record, request: Request) -> Request:
        """What is left of the request: the checks have been made by whoever began it, and an earlier attempt may have come far."""
        request = replace(request, preflight="skip")
        if record.undo.started is not None:
            # It has been started with its new files: what runs now, if anything does, is what was asked for.
            return replace(request, state="started")
        if any(change.what != "mode" and change.wanted.path != self._ports.paths.guard for change in record.undo.changes):
            return replace(request, state="restarted")  # the files are new already, and what runs has not read them
        return request

    # -- around it -------------------------------------------------------------------------------------------------

    def _begun(self, record: Record) -> float:
        """When it began, on the monotonic clock of this boot."""
        if record.boot_id == self._boot:
            return record.monotonic
        return self._ports.clock.monotonic() - max(0.0, self._ports.clock.time() - record.at)

    def _as_of_this_boot(self, record: Record) -> None:
        """Since when nothing serves, on this boot's clock. What the new server had already ended stays as it was measured."""
        undo, clock = record.undo, self._ports.clock
        if record.boot_id != self._boot and undo.down_at is not None:
            since = clock.monotonic() - max(0.0, clock.time() - undo.down_at)
            undo.down_since = None if record.stage == COMMITTING else since

    def _progress(self, record: Record) -> Progress:
        fixed = {
            "service": "" if record.kind == BORROW else to_request(record.params).name, "unit": record.unit, "purpose": record.purpose,
            "by": record.by, "since": record.at, "done": False,
        }
        return Progress(self._path, record.id, **fixed)

    def _lock(self) -> HostLock:
        """The lock, as soon as it can be had."""
        record = self._store.load() or {}
        end = self._ports.clock.monotonic() + _LOCK_S
        return PatientLock(self._ports.paths.run, str(record.get("purpose", "a change")), end, self._ports.clock)


def _watching_reader() -> GpuReader:
    return open_reader(timeout=_WATCH_TIMEOUT_S, quick=True)
