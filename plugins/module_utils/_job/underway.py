# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A change that is under way, as others see it: the same request follows it, another one is refused with who and since when."""

from __future__ import annotations

import time
from typing import Any, Callable, Dict, Mapping, Optional

from .._core.errors import GpuFleetError
from .._service.ports import Ports
from .._unit.change_unit import CHANGE_UNIT
from .let_go import wait_until_gone
from .progress import PATH, read
from .store import Store

# Looking at a file costs nothing; asking systemd does.
_PAUSE_S = 0.05
_LOOK_S = 2.0
_STARTS = 3
# Between making the record and starting the job there are milliseconds.
_NEVER_STARTED_S = 30.0


def story(record: Mapping[str, Any], ports: Ports, progress: str = PATH) -> str:
    """Who changes what, since when, and how far it is, or has come."""
    news = read(progress) or {}
    phase = news.get("phase") if news.get("id") == record["id"] else None
    since = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(float(record["at"])))
    text = "%s, begun by %s, since %s (%d s ago)" % (record["purpose"], record["by"], since, ports.clock.time() - record["at"])
    return text + (", now in phase %s" % phase if phase else "")


def refusal(record: Mapping[str, Any], ports: Ports, progress: str = PATH) -> GpuFleetError:
    """For whoever wants something else meanwhile."""
    under_way = {"id": record["id"], "purpose": record["purpose"], "by": record["by"], "since": record["at"]}
    if abandoned(record, ports):
        return GpuFleetError(
            "A change of this host's services was begun, and nobody carries it out any more: %s. Bring it to its end with `%s` on the "
            "host, as root, then run again." % (story(record, ports, progress), ending(record, ports)),
            under_way=under_way,
        )
    return GpuFleetError(
        "Another change of this host's services is under way: %s. Wait until it has ended, then run again. `%s follow %s` on the host "
        "tells how far it is; `systemctl stop %s` undoes it."
        % (story(record, ports, progress), ports.paths.program, record["id"], CHANGE_UNIT),
        under_way=under_way,
    )


def job_entry(change_id: str, attached: bool) -> Dict[str, Any]:
    """The result's ``job``."""
    return {"id": change_id, "unit": CHANGE_UNIT, "attached": attached}


def ending(record: Mapping[str, Any], ports: Ports) -> str:
    """The command that has systemd run its job again, however often that has failed."""
    return "%s resume %s" % (ports.paths.program, record["id"])


def first_step(record: Mapping[str, Any], ports: Ports) -> Dict[str, str]:
    """What has to be done before anything else can be, as an entry of a result's ``actions``: an abandoned change is brought to its end."""
    reason = "it was begun before, and nobody carries it out any more: %s" % story(record, ports)
    return {"action": "complete", "target": str(record["purpose"]), "reason": reason}


def of_this_very(what: str, record: Mapping[str, Any], ports: Ports) -> str:
    """Why the same request finds nothing to begin: ``what`` it asks for goes on, or waits for somebody to go on with it."""
    if abandoned(record, ports):
        return "this very %s was begun, nobody carries it out any more, and it is brought to its end: %s" % (what, story(record, ports))
    return "this very %s is under way: %s" % (what, story(record, ports))


def abandoned(record: Mapping[str, Any], ports: Ports) -> bool:
    """Whether nobody carries it out: its job is not there, and will not come by itself."""
    if not ports.systemd.status(CHANGE_UNIT).inactive:
        return False
    return bool(record["attempts"] > 0 or ports.clock.time() - record["at"] > _NEVER_STARTED_S)


def start(ports: Ports) -> None:
    """Have systemd run the job. Changes in quick succession are no crash loop, and must not be counted as one."""
    ports.systemd.reset_failed(CHANGE_UNIT)
    ports.systemd.start(CHANGE_UNIT)


def resume(change: str, store: Store, ports: Ports) -> bool:
    """Start the job of this very change again where nobody runs it; False when the change is not there to be ended any more."""
    found = store.load()
    if found is None or found["id"] != change:
        return False
    if ports.systemd.status(CHANGE_UNIT).inactive:
        start(ports)
    return True


def wait_for_end(change: str, store: Store, ports: Ports) -> Dict[str, Any]:
    """What came of it, once its job is gone. Starts the job when nobody runs it. Dying here does no harm: the job does not know of us."""
    result = _result(change, store, ports)
    wait_until_gone(lambda: ports.systemd.status(CHANGE_UNIT).inactive, ports.clock)
    return result


def _result(change: str, store: Store, ports: Ports) -> Dict[str, Any]:
    clock = ports.clock
    look_at = clock.monotonic() + _LOOK_S
    starts = 0
    while True:
        last = store.last()
        if last is not None and last["id"] == change:
            return dict(last["result"])
        if not store.exists():
            last = store.last()  # it may have ended between the two looks
            if last is not None and last["id"] == change:
                return dict(last["result"])
            raise GpuFleetError("The change %s has ended, and another one after it. Run again to see what serves now." % change)
        if clock.monotonic() >= look_at:
            look_at = clock.monotonic() + _LOOK_S
            if ports.systemd.status(CHANGE_UNIT).inactive and store.exists():
                starts += 1
                if starts > _STARTS:
                    raise GpuFleetError(
                        "The job that carries out this change ends again and again without bringing it to an end. "
                        "`journalctl -u %s` tells why; run again when that is repaired." % CHANGE_UNIT
                    )
                start(ports)
        clock.sleep(_PAUSE_S)


def planned_after(plan: Callable[[], Optional[Dict[str, Any]]], otherwise: Dict[str, Any]) -> Dict[str, Any]:
    """In check mode: an abandoned change comes first, and how it will leave the host is not known. The rest is planned from now.

    ``plan`` is tried; where it comes to nothing, or says that it can't be done, the result is ``otherwise``.
    """
    note = "What comes after the change that was abandoned is planned from the host as it is now, and looked at again then."
    planned = None
    try:
        planned = plan()
    except GpuFleetError as exc:
        # It may be due to what is half done, and the run itself looks again before it touches anything.
        note += " As the host is now, it could not be done: %s" % exc.msg
    planned = planned or otherwise
    return dict(planned, warnings=[note, *(planned.get("warnings") or [])])
