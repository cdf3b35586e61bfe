# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The other services that have what this one needs, and which of them may be stopped for it."""

from __future__ import annotations

from typing import Dict, List, Sequence, Tuple

from .._core.errors import GpuFleetError
from .._gpu.types import Gpu
from .._process.rules import host_unit_reason
from .._systemd.show import UnitStatus
from .._unit.found import ManagedService, conflicts, shares_port
from .._unit.spec import ServiceSpec
from .plan import Rival
from .ports import Ports
from .request import Request


def rivals_of(
    request: Request,
    spec: ServiceSpec,
    others: Sequence[ManagedService],
    statuses: Dict[str, UnitStatus],
    gpus: Sequence[Gpu],
    ports: Ports,
) -> Tuple[Rival, ...]:
    """The services to stop for this one. Raises GpuFleetError when one is in the way that may not be stopped."""
    declared = {service.unit for service in conflicts(spec, others)}
    holding = _holding(gpus)
    in_the_way = [
        Rival(service, statuses[service.unit], _why(service, spec, holding.get(service.unit, [])))
        for service in others if service.unit in declared or service.unit in holding
    ]
    if request.replace == "none":
        running = [rival for rival in in_the_way if rival.running]
        if running:
            first = running[0]
            raise GpuFleetError(
                "%s is in the way: %s. Put this model in its place with the playbook swap_model or with replace: conflicting, or give "
                "other GPUs or another port." % (first.service.unit, first.why)
            )
        return ()
    if request.replace == "conflicting":
        return tuple(rival for rival in in_the_way if rival.running or rival.enabled)
    return _listed(request, spec, others, statuses, in_the_way, ports)


def _listed(
    request: Request,
    spec: ServiceSpec,
    others: Sequence[ManagedService],
    statuses: Dict[str, UnitStatus],
    in_the_way: Sequence[Rival],
    ports: Ports,
) -> Tuple[Rival, ...]:
    known = {service.unit: service for service in others}
    units = [unit for unit in request.replace_units if unit != spec.unit]  # a list for a fleet may name the service itself
    unknown = [unit for unit in units if unit not in known]
    for unit in unknown:
        reason = host_unit_reason(unit)
        if reason is not None:
            raise GpuFleetError("replace: %s is never stopped for a model: %s." % (unit, reason))
    statuses = dict(statuses)
    statuses.update(ports.systemd.statuses(unknown))
    for rival in in_the_way:
        if rival.running and rival.service.unit not in request.replace_units:
            absent = [unit for unit in units if not statuses[unit].exists]
            raise GpuFleetError(
                "%s is in the way (%s), and it is not in the list of units to replace (%s).%s"
                % (rival.service.unit, rival.why, ", ".join(request.replace_units),
                   " There is no unit %s on this host." % ", ".join(absent) if absent else "")
            )
    rivals = []
    for unit in units:
        status = statuses[unit]
        if not status.exists or status.unit == spec.unit:
            continue  # nothing to stop, or another name of this very service
        service = known.get(unit) or ManagedService(unit, unit, "", "", (), 0, unit, "")
        # Of a unit that somebody else wrote it is not known which port it has.
        beside = unit in known and not service.problem and all(each.service.unit != unit for each in in_the_way)
        rival = Rival(service, status, "it is listed in replace", beside)
        if rival.running or rival.enabled:
            rivals.append(rival)
    return tuple(rivals)


def _holding(gpus: Sequence[Gpu]) -> Dict[str, List[int]]:
    """The units whose processes hold memory on these GPUs now, and on which.

    What a unit's file says is what its next start takes. A card that was added or removed since it was started has moved the
    indices, and then only the driver knows. A MIG instance's processes can't be told from those of its neighbours.
    """
    found: Dict[str, List[int]] = {}
    for gpu in gpus:
        for process in gpu.processes:
            if process.unit and process.state == "running" and gpu.memory_type != "mig":
                found.setdefault(process.unit, []).append(gpu.index)
    return found


def _why(service: ManagedService, spec: ServiceSpec, holding: Sequence[int]) -> str:
    parts = []
    shared = sorted((set(service.gpus) & set(spec.gpus)) | set(holding))
    if shared:
        parts.append("GPU %s" % ", ".join(map(str, shared)))
    if shares_port(service, spec):
        parts.append("port %d" % service.port)
    return "it has %s, which %s needs" % (" and ".join(parts), spec.unit)
