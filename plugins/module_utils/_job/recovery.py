# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Undoing a change that was interrupted, with nothing but its record: the host may have been rebooted since."""

from __future__ import annotations

import os
from typing import Any, Dict, Optional

from .._core.errors import GpuFleetError
from .._core.files import read_bytes
from .._gpu.reader import GpuReader
from .._gpu.select import resolve
from .._service.brief import brief_gpus
from .._service.change_log import COMMITTING, ROLLING_BACK
from .._service.interrupts import Interrupted
from .._service.ports import Ports
from .._service.request import Request
from .._service.rollback import Rollback, Scene
from .._unit.found import ManagedService, parse_managed
from .job_log import JobLog
from .record import Record

# A job that is killed twice is not killed by chance.
TOO_MANY = 3


class Recovery:
    """What becomes of one record."""

    def __init__(
        self, record: Record, request: Request, ports: Ports, reader: GpuReader, log: JobLog, boot: str, unwritable: Optional[str] = None
    ) -> None:
        """``unwritable`` says why the record can't be written any more: then nothing new is begun."""
        self._unwritable = unwritable
        self._record = record
        self._request = request
        self._ports = ports
        self._reader = reader
        self._log = log
        self._rebooted = record.boot_id != boot

    @property
    def interrupted(self) -> str:
        """What happened to it, as a sentence without its end."""
        if self._unwritable is not None and self._record.attempts == 1:
            return self._unwritable.rstrip(".")
        stage = self._record.stage.replace("_", " ")
        if self._rebooted:
            return "The host went down while this change was under way (%s)" % stage
        return "The job of this change was killed while it was under way (%s)" % stage

    @property
    def reason(self) -> Optional[str]:
        """Why it has to be undone now; None when it goes forward."""
        record = self._record
        if record.stage == COMMITTING:
            return None  # the new server was seen to serve
        if record.stage == ROLLING_BACK:
            return self.interrupted
        if self._unwritable is not None and record.undo.empty:
            return self.interrupted
        if not self._request.rollback:
            return None
        if self._unwritable is not None:
            return "%s, and now: %s" % (self.interrupted, self._unwritable.rstrip("."))
        if self._rebooted or record.attempts >= TOO_MANY:
            return self.interrupted
        return None

    def roll_back(self, why: str) -> Dict[str, Any]:
        """Undo it; the result to return for it."""
        record, undo = self._record, self._record.undo
        if undo.empty:
            return self.told({
                "failed": True, "changed": False, "rolled_back": False,
                "msg": "%s, before anything was touched. Run again to carry it out." % why,
            })
        self._log.may_undo()
        failure: Dict[str, Any] = record.more.get("failure") or {"msg": "%s." % why.rstrip(".")}
        self._as_after_boot()
        self._log.phase("rollback")
        timings = record.timings_until(self._ports.clock.time())
        unsaid = self._log.try_to_intend(ROLLING_BACK, undo, {"failure": failure})
        undone = Rollback(self._request, self._scene(), self._ports, self._reader, undo, self._log).run()
        return self.told(dict(
            failure,
            failed=True,
            changed=True,
            rolled_back=undone.complete,
            msg="%s\n%s" % (failure["msg"], undone.text),
            warnings=unsaid + undone.warnings,
            ready=False,
            served_models=[],
            replaced=record.more.get("replaced", []),
            timings=dict(timings, downtime=self._downtime() if undone.serves else None),
        ))

    def end(self, asked: Interrupted) -> Dict[str, Any]:
        """Somebody asked the change to end where nobody else has seen to it."""
        if self._request.rollback or self._record.undo.empty:
            why = asked.msg.rstrip(".")
            return self.roll_back(why if self._record.attempts == 1 else "%s, and then: %s" % (self.interrupted, why))
        return self.told({"failed": True, "changed": True, "msg": asked.msg + "\nNothing was put back, as rollback is off."})

    def told(self, result: Dict[str, Any]) -> Dict[str, Any]:
        """The result for the whole change: what it set out to do, with what the module had prepared, and what came of it."""
        record = self._record
        first = record.told or {}
        whole: Dict[str, Any] = dict(first, **result)
        for name in ("actions", "files", "diff", "serving_before", "gpus_before", "preflight"):
            if name in first:
                whole[name] = first[name]
        if result.get("failed") and "gpus_before" in whole:
            whole["gpus_before"] = brief_gpus(whole["gpus_before"])
        whole["timings"] = dict(first.get("timings") or {}, **(result.get("timings") or {}))
        whole["timings"]["total"] = round(max(0.0, self._ports.clock.time() - record.at), 3)
        if record.stage == COMMITTING and result.get("failed") and "status" not in result:
            whole["msg"] = "%s; the new server had served, and what starts at boot is set. But: %s" % (self.interrupted, whole["msg"])
        if "status" not in result:
            whole["status"] = self._status()
        whole.setdefault("unit", record.unit)
        whole.setdefault("warnings", [])
        if record.attempts > 1 and not result.get("failed"):
            whole["changed"] = True
        for name, before in record.prepared.items():
            if isinstance(before, list):
                whole[name] = before + list(whole.get(name) or [])
            elif before is not None:
                whole[name] = before
        if record.prepared.get("actions"):
            whole["changed"] = True
        return whole

    # -- the host as it is -----------------------------------------------------------------------------------------

    def _as_after_boot(self) -> None:
        """A service whose files were changed, and which the boot has started from them, has to be started again from the old ones."""
        undo, unit = self._record.undo, self._record.unit
        if undo.unit_text or any(change.wanted.path.startswith(self._ports.paths.units + "/") for change in undo.changes):
            undo.unit_text = True  # somebody may have had systemd read them meanwhile
        if not self._rebooted:
            return
        if undo.changes and not self._ports.systemd.status(unit).inactive:
            before = self._own_before()
            if before is not None:
                undo.will_stop(before, served=True)
            undo.started = unit
        elif not undo.changes and all(each.service.unit == unit for each in undo.stopped):
            undo.started = None  # only a restart: what the boot has started is as good

    def _own_before(self) -> Optional[ManagedService]:
        """The service itself as its files declared it before this change; None when there was none."""
        path = os.path.join(self._ports.paths.units, self._record.unit)
        text = next((change.before for change in self._record.undo.changes if change.wanted.path == path), read_bytes(path))
        return None if text is None else parse_managed(text.decode("utf-8", "replace"), path)

    def _scene(self) -> Scene:
        """The host as it is now; without GPUs when the driver does not say: the old services have guards of their own."""
        unit = self._record.unit
        try:
            snapshot = self._reader.snapshot()
            host = snapshot.gpus if snapshot.available else ()
        except (GpuFleetError, OSError, RuntimeError):
            return Scene(unit)
        try:
            return Scene(unit, tuple(resolve(self._request.gpus, host)) if host else (), host=host)
        except GpuFleetError:
            return Scene(unit, host=host)  # those of the service that failed are gone; the old one's may be there

    def _status(self) -> Dict[str, Any]:
        try:
            return self._ports.systemd.status(self._record.unit).to_result()
        except GpuFleetError as exc:
            return {"active_state": "unknown", "sub_state": exc.msg}

    def _downtime(self) -> Optional[float]:
        """Wall-clock time: a reboot may lie in between."""
        down = self._record.undo.down_at
        return None if down is None else round(max(0.0, self._ports.clock.time() - down), 3)
