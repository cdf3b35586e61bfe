# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""One host at a glance, in one round trip: its services, its GPUs, who else is on them, and whether somebody changes it just now.

Nothing is changed, started, restarted or written. A driver that hangs is waited for once, for a short time.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any, Collection, Dict, List, Mapping, Optional, Sequence

from .._core.errors import GpuFleetError
from .._core.host_lock import holder_of
from .._gpu.reader import GpuReader
from .._gpu.select import resolve
from .._gpu.types import Gpu, Snapshot
from .._job import main as _main
from .._job import underway
from .._job.store import Store
from .._service.parameters import to_request
from .._service.ports import Ports
from .._service.run import refuse_without_systemd
from .._service.taken_out import taken_out
from .._systemd.show import UnitStatus
from .._unit.found import find_managed
from .._unit.slug import unit_name
from .drift import Drift
from .links import find_links
from .service import Declared, Subject, examine, unseen
from .unreadable import unreadable

# What Ansible sends to a host is what is imported, and the programs that a host should have are made of it.
_SENT_ALONG = (_main,)
# Servers are asked side by side: one that does not answer takes its twelve seconds alone.
_SIDE_BY_SIDE = 8


def status_of(
    entries: Sequence[Mapping[str, Any]], revisions: Mapping[str, str], expected: Optional[str], ports: Ports,
    faults: Optional[Mapping[str, str]] = None,
) -> Dict[str, Any]:
    """Everything that the module returns. ``entries`` are options of ``vllm_service``, one dictionary for each declared service;
    ``faults`` says of each other entry of the catalogue why it can't be one.

    ``expected`` names the one that has to serve here; without it each that is on the host, and not at rest, is held against its
    declaration. Raises GpuFleetError where nothing can be said.
    """
    refuse_without_systemd(ports)
    warnings: List[str] = []
    with ports.open_reader() as reader:
        snapshot = reader.snapshot()
    fixed = Fixed(snapshot)
    declared, broken = _declared(entries, revisions)
    broken.update((str(name), str(text)) for name, text in (faults or {}).items())
    _refuse_unknown(expected, declared, broken)
    by_unit = {each.unit: Subject(each.unit, each.request.name, declared=each) for each in declared.values()}
    for name, text in sorted(broken.items(), key=lambda item: item[0] != expected):
        unit = _unit_of(name)
        if unit is not None:
            by_unit.setdefault(unit, Subject(unit, name, broken=text))
    services = {service.unit: service for service in find_managed(ports.paths.units)}
    links = find_links(ports.paths, by_unit)
    there = [*services, *links]
    units = there + [each.unit for each in by_unit.values() if each.unit not in there and each.entry == expected]
    statuses = ports.systemd.statuses(units)
    subjects = [
        replace(by_unit.get(unit) or Subject(unit), service=services.get(unit) or (links[unit].service if unit in links else None),
                link=links.get(unit))
        for unit in units
    ]  # fmt: skip
    resting = [each for each in subjects if each.unit in there and _rests(statuses[each.unit]) and each.to_json()["name"] != expected]

    def look(subject: Subject) -> Dict[str, Any]:
        try:
            return examine(subject, statuses[subject.unit], ports, fixed)
        except Exception as exc:  # noqa: BLE001 - whatever it is, it is told of this service, and the others are told of all the same
            return unseen(subject, statuses[subject.unit], exc)

    with ThreadPoolExecutor(max_workers=_SIDE_BY_SIDE) as pool:
        found = list(pool.map(look, [each for each in subjects if each not in resting]))
    out = taken_out(ports.paths.records)
    if out is not None:
        _count_as_drift(out, found, ports.paths.records)
    return {
        "services": found,
        "at_rest": [each.to_json()["name"] for each in resting],
        "faults": broken,
        "gpus": [_brief(gpu) for gpu in snapshot.gpus],
        "driver": {
            "available": snapshot.available, "reason": snapshot.reason, "detail": snapshot.reason_detail,
            "driver_version": snapshot.driver_version, "processes_reliable": snapshot.processes_reliable,
        },
        "used_mib": snapshot.used_mib,
        "total_mib": snapshot.total_mib,
        "others": others(snapshot, there),
        "under_way": _under_way(ports),
        "taken_out": out,
        "drifted": any(entry["drift"] for entry in found),
        "warnings": warnings,
    }  # fmt: skip


def _count_as_drift(out: Mapping[str, Optional[str]], found: List[Dict[str, Any]], directory: str) -> None:
    """A service that gets no requests is not what was declared, whatever its files say."""
    since = out["since"] or "a time unknown"
    detail = "a swap to %s took this host out at %s, and nothing has taken it back" % (out["model"] or "?", since)
    for entry in found:
        if entry["drift"] is not None:
            entry["drift"].append(Drift("taken out", unreadable(out, directory) or detail).to_json())


def _refuse_unknown(expected: Optional[str], declared: Mapping[str, Declared], broken: Mapping[str, str]) -> None:
    """What has to serve must be an entry of the catalogue, and have a name that a unit can have. An entry with a fault is told of."""
    if expected is None or expected in declared or (expected in broken and _unit_of(expected) is not None):
        return
    reason = broken.get(expected, "it is not in the catalogue of this host")
    raise GpuFleetError("`model` is %r, of which nothing can be said: %s." % (expected, reason.rstrip(".")))


def _rests(status: UnitStatus) -> bool:
    """Whether it neither runs nor starts at boot, and has not failed: what a swap leaves of the old model."""
    return status.inactive and not status.failed and not status.enabled


def _unit_of(name: str) -> Optional[str]:
    try:
        return unit_name(name)
    except GpuFleetError:
        return None  # no service on any host can have this name


def _declared(entries: Sequence[Mapping[str, Any]], revisions: Mapping[str, str]) -> "tuple[Dict[str, Declared], Dict[str, str]]":
    """The declarations by name, and why others can't be used."""
    good: Dict[str, Declared] = {}
    bad: Dict[str, str] = {}
    for entry in entries:
        name = str(entry.get("name"))
        try:
            request = replace(to_request(entry), preflight="skip")
            good[name] = Declared(request, revisions.get(name))
        except GpuFleetError as exc:
            bad[name] = exc.msg
    return good, bad


def others(snapshot: Snapshot, units: Collection[str]) -> List[Dict[str, Any]]:
    """Who is on the GPUs and belongs to no service of this collection: one entry for each process, with all of its GPUs."""
    found: Dict[int, Dict[str, Any]] = {}
    for gpu in snapshot.gpus:
        for process in gpu.processes:
            if process.unit in units or process.state == "gone":
                continue
            entry = found.setdefault(process.pid, {
                "pid": process.pid, "name": process.name, "user": process.user, "unit": process.unit, "container": process.container,
                "orphan": process.orphan, "protected": process.protected, "start_time": process.start_time, "gpus": [], "used_mib": None,
            })  # fmt: skip
            entry["gpus"].append(gpu.index)
            if process.used_mib is not None:
                entry["used_mib"] = (entry["used_mib"] or 0) + process.used_mib
    return [found[pid] for pid in sorted(found)]


def _brief(gpu: Gpu) -> Dict[str, Any]:
    return {
        "index": gpu.index, "uuid": gpu.uuid, "name": gpu.name, "state": gpu.state, "error": gpu.error, "total_mib": gpu.total_mib,
        "used_mib": gpu.used_mib, "utilization_percent": gpu.utilization_percent, "unattributed_mib": gpu.unattributed_mib,
    }  # fmt: skip


def _under_way(ports: Ports) -> Optional[Dict[str, Any]]:
    """Who changes, measures or clears up on this host at this moment."""
    record = Store(ports.paths.change, ports.paths.run).load()
    if record is not None:
        found = {"by": record["by"], "purpose": record["purpose"], "since": record["at"], "story": underway.story(record, ports)}
        left = underway.abandoned(record, ports)
        return dict(found, abandoned=left, complete_with=underway.ending(record, ports) if left else None)
    holder = holder_of(ports.paths.run, ports.paths.proc)
    if holder is None:
        return None
    purpose, since = str(holder.get("purpose", "unknown")), holder.get("since")
    story = "%s (pid %s)" % (purpose, holder.get("pid"))
    return {
        "by": "pid %s" % holder.get("pid"), "purpose": purpose, "since": since, "story": story, "abandoned": False, "complete_with": None,
    }  # fmt: skip


class Fixed(GpuReader):
    """One reading for everybody who asks: the driver is asked once."""

    def __init__(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot

    def snapshot(self, gpus: Optional[Sequence[str]] = None, processes: bool = True) -> Snapshot:
        if gpus is None or not self._snapshot.available:
            return self._snapshot
        return replace(self._snapshot, gpus=tuple(resolve(list(gpus), self._snapshot.gpus)))
