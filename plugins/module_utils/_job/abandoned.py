# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Bringing somebody else's change to its end that nobody carries out any more, so that another one can begin."""

from __future__ import annotations

import os
from typing import Any, Dict, List, Mapping, Optional

from .._borrow.hidden import forget_secrets
from .._core.errors import GpuFleetError
from .._service.ports import Ports
from .._unit.change_unit import RECORD
from . import underway
from .patient_lock import PatientLock
from .record import BORROW
from .store import Store

# Another module that begins a change, or finds that it may not, holds the lock for no longer than this.
_LOCK_S = 3.0


def hand_over(found: Mapping[str, Any], ports: Ports, store: Store, first: List[Dict[str, str]]) -> None:
    """Start its job for whoever asks without waiting: raises GpuFleetError whose ``job`` has ``first`` and is to be followed to its end,
    then asked again. ``first`` is what this run has done, the start of the job with it.

    Returns where there is nothing to follow: nothing of it was ever carried out, or its end is told. ``clear`` is over in a moment then.
    """
    last = store.last()
    if found["attempts"] == 0 or (last is not None and last["id"] == found["id"]):
        return
    try:
        underway.start(ports)
    except GpuFleetError as exc:
        raise _with_those_down(exc, _down(found, ports)) from exc
    told = GpuFleetError(
        "Nothing of what is asked for was begun: a change that nobody carried out any more has to come to its end first, and its job was "
        "started again: %s. Wait until it has ended, then run again. `%s follow %s` on the host tells how far it is."
        % (underway.story(found, ports), ports.paths.program, found["id"]),
        changed=True, actions=list(first), job=dict(underway.job_entry(found["id"], True), first=True),
    )  # fmt: skip
    raise _with_those_down(told, _down(found, ports))


def clear(found: Mapping[str, Any], ports: Ports, store: Store) -> None:
    """Bring somebody else's change to an end whose job is gone, so that a look at the host means something.

    Raises GpuFleetError where that can't be done. The record of a borrowing stays as long as a service isn't put back.
    """
    if found["attempts"] > 0:
        try:
            underway.start(ports)
            underway.wait_for_end(found["id"], store, ports)
        except GpuFleetError as exc:
            down = _down(found, ports)
            if _is(found, store.load()) and down:
                raise _with_those_down(exc, down) from exc
            if _is(found, store.load()):
                raise
    # Nobody else begins a change meanwhile, whose record this would be.
    with PatientLock(ports.paths.run, "clearing up", ports.clock.monotonic() + _LOCK_S, ports.clock):
        left = store.load()
        begun_meanwhile = left is not None and found["attempts"] == 0 and left["attempts"] > 0
        if left is None or not _is(found, left) or begun_meanwhile or not underway.abandoned(left, ports):
            return
        down = _down(left, ports)
        if down:
            raise GpuFleetError(
                "GPUs were borrowed on this host, and these services were not put back: %s. Start them by hand with `systemctl start %s`, "
                "then run again; if they are not to come back, remove %s first."
                % (", ".join(down), " ".join(down), os.path.join(ports.paths.change, RECORD))
            )
        if left.get("kind") == BORROW:
            forget_secrets(left["unit"], ports.paths.run)
        store.discard()  # nothing of it was ever carried out, or it has ended and its job could not forget it


def _is(found: Mapping[str, Any], other: Optional[Mapping[str, Any]]) -> bool:
    return other is not None and other["id"] == found["id"]


def _down(record: Mapping[str, Any], ports: Ports) -> List[str]:
    """The services that gave their GPUs away for a borrowing, and do not run."""
    units = [each["service"]["unit"] for each in record["undo"]["stopped"]] if record.get("kind") == BORROW else []
    try:
        statuses = ports.systemd.statuses(units)
    except GpuFleetError:
        return units  # nobody can say that they run
    return [unit for unit in units if statuses[unit].inactive]


def _with_those_down(exc: GpuFleetError, down: List[str]) -> GpuFleetError:
    """The same, with the services that wait for a borrowing which does not come to its end."""
    if not down:
        return exc
    return GpuFleetError(
        "%s Until then these services, whose GPUs were borrowed, may be stopped: %s. Start them by hand with `systemctl start %s`."
        % (exc.msg, ", ".join(down), " ".join(down)),
        **exc.result,
    )
