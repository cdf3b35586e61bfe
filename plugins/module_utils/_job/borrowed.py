# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A borrowing as the job carries it out: forward, or back at once where it was interrupted in a way that nothing can follow.

The command's unit lives by itself: a job that was killed finds it running, or finds what became of it, and goes on. After a reboot
it is gone, and so it is when the job dies again and again: then what served before is brought back, and nothing is tried any more.
"""

from __future__ import annotations

from typing import Any, Callable, Dict, Mapping, Optional

from .._borrow.borrowing import BORROWING, Borrowing
from .._borrow.hidden import forget_secrets, secrets_of
from .._borrow.request import to_borrow
from .._core.errors import GpuFleetError
from .._core.scrub import scrubber
from .._gpu.reader import GpuReader
from .._service.brief import brief_gpus
from .._service.change_log import ROLLING_BACK
from .._service.interrupts import Interrupted
from .._service.ports import Ports
from .job_log import JobLog
from .record import BEGUN, Record
from .recovery import TOO_MANY


def carry_out(
    record: Record, ports: Ports, reader: GpuReader, log: JobLog, boot: str, unwritable: Optional[str] = None
) -> Dict[str, Any]:
    """Bring the borrowing to its end; what the module returns. ``unwritable`` says why the record can't be written any more."""
    told: Dict[str, Any] = dict(record.more.get("told") or record.prepared.get("told") or {})
    # A boot ends whatever was there of a command.
    handed = record.stage in (BORROWING, ROLLING_BACK) and bool(record.more.get("handed")) and record.boot_id == boot
    request = to_borrow(record.params)
    hide = _hiding(secrets_of(record.unit, ports.paths.run, request.secret_names))
    one = Borrowing(request, record.unit, ports, reader, log, record.undo, told, handed, hide)
    why = _why_not_on(record, boot, unwritable)
    failure: Optional[str] = why
    if why is None and record.stage != ROLLING_BACK:
        try:
            with log.heard():
                one.run()
        except (GpuFleetError, Interrupted) as exc:  # whatever it was: what was stopped has to be put back
            failure = exc.msg
    if failure is not None and record.stage == BEGUN:
        ended = told.get("ended_processes") or []
        touched = bool(record.prepared.get("touched")) or bool(ended)
        but = ", but these vLLM processes of nobody were ended: %s" % ", ".join(str(each.get("pid")) for each in ended) if ended else ""
        told.update(failed=True, changed=touched, put_back=True, msg="%s No service was stopped%s." % (_sentence(failure), but))
    else:
        one.put_back(failure)
        told["changed"] = True
        if not told["failed"]:
            record.more["stands"] = _stands_on(record, ports, boot)
    if told["failed"]:  # Ansible prints all of a failure
        told.update({name: brief_gpus(told.get(name) or []) for name in ("gpus_before", "gpus_after")})
    try:
        forget_secrets(record.unit, ports.paths.run)
    except GpuFleetError as exc:
        told["warnings"].append(exc.msg)
    told["timings"]["total"] = round(max(0.0, ports.clock.time() - record.at), 3)
    told.pop("failure", None)
    return told


def _hiding(secrets: Optional[Mapping[str, str]]) -> Callable[[str], str]:
    """What takes the secrets out of a text: all of it where somebody has removed the file that says what they are."""
    return _not_told if secrets is None else scrubber(secrets.values()).text


def _not_told(text: str) -> str:
    return "(not told, as it isn't known any more which secrets would have to be taken out of it)\n" if text else ""


def _stands_on(record: Record, ports: Ports, boot: str) -> Optional[Dict[str, Any]]:
    """What has to be the same for the result to stand: this boot, and these runs of what gave its GPUs away. None where it isn't known."""
    units = [stopped.service.unit for stopped in record.undo.stopped]
    try:
        return {"boot_id": boot, "runs": {unit: status.invocation_id for unit, status in ports.systemd.statuses(units).items()}}
    except GpuFleetError:
        return None


def _why_not_on(record: Record, boot: str, unwritable: Optional[str]) -> Optional[str]:
    """Why nothing more of it is tried; None when it goes on, or was on its way back already."""
    if record.stage == ROLLING_BACK:
        return None
    stage = record.stage.replace("_", " ")
    if record.boot_id != boot:
        return "The host went down while its GPUs were borrowed (%s)." % stage
    if record.attempts >= TOO_MANY:
        return "The job of this borrowing was killed again and again (%s)." % stage
    return unwritable


def _sentence(text: str) -> str:
    return text if text.rstrip().endswith((".", "!", "?")) else text.rstrip() + "."
