# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Looking at a host whose GPUs are to be borrowed: what serves on them, and what stands against it. Changes nothing."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from typing import AbstractSet, Any, Dict, List, Mapping, Optional, Sequence, Tuple

from .._core.errors import GpuFleetError
from .._gpu.reader import GpuReader
from .._gpu.select import resolve
from .._gpu.types import Gpu, GpuProcess
from .._process.procfs import has_account
from .._service.identity import mig_uuids
from .._service.look import definition_paths, server_of, stale_reason
from .._service.memory import Limit, holders_text, stayers
from .._service.plan import Step
from .._service.ports import Ports
from .._service.ready import Target, probe
from .._service.request import FREE_MAX_USED_MIB
from .._systemd.show import UnitStatus
from .._unit.found import ManagedService, find_managed
from .request import BorrowRequest

# One look at a server that is about to be stopped. What gives no answer in this time counts as serving: it may be busy.
_PROBE_S = 5.0


@dataclass(frozen=True)
class Lender:
    """A service that gives its GPUs away. ``served`` is whether it has to be seen to serve when it has them back."""

    service: ManagedService
    status: UnitStatus
    served: bool
    gpus: Tuple[int, ...]
    said: str


@dataclass(frozen=True)
class BorrowLook:
    """One host. ``gpus`` are the ones that were chosen, ``orphans`` processes on them that nothing owns any more."""

    gpus: Tuple[Gpu, ...]
    instances: Tuple[str, ...]
    lenders: Tuple[Lender, ...]
    orphans: Tuple[GpuProcess, ...]

    @property
    def indices(self) -> List[int]:
        """The chosen GPUs, as the driver counts."""
        return sorted({gpu.index for gpu in self.gpus})

    def environment(self) -> Dict[str, str]:
        """What the command is told of its GPUs: indices in the order of the PCI bus, as the driver counts; MIG instances by UUID."""
        gpus = sorted(self.gpus, key=lambda gpu: gpu.index)
        indices = ",".join(map(str, self.indices))
        return {
            "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
            "CUDA_VISIBLE_DEVICES": ",".join(self.instances) or indices,
            "GPUFLEET_GPU_INDICES": indices,
            "GPUFLEET_GPU_UUIDS": ",".join(gpu.uuid for gpu in gpus if gpu.uuid is not None),
            "GPUFLEET_GPU_COUNT": str(len(gpus)),
        }


def look(request: BorrowRequest, ports: Ports, reader: GpuReader) -> BorrowLook:
    """Read the driver, units and servers. Raises GpuFleetError when the GPUs can't be borrowed as things are."""
    if not has_account(request.user):
        raise GpuFleetError(
            "There is no user %r on this host, and the command is to run as one. Set `user` (gpu_borrow_user of the role)." % request.user
        )
    snapshot = reader.snapshot()
    if not snapshot.available:
        raise GpuFleetError(
            "The GPUs of this host cannot be read (%s): %s. Without the driver's word nothing is stopped or started here."
            % (snapshot.reason, snapshot.reason_detail or "no further detail")
        )
    if not snapshot.gpus:
        raise GpuFleetError("The driver shows no GPU on this host, so there is none to borrow.")
    gpus = tuple(chosen(request.gpus, snapshot.gpus))
    unread = [gpu for gpu in gpus if gpu.state != "ok"]
    if unread:
        raise GpuFleetError("GPU %d can't be used (%s: %s)." % (unread[0].index, unread[0].state, unread[0].error or "no detail"))
    instances = _instances(gpus)
    managed = find_managed(ports.paths.units)
    statuses = ports.systemd.statuses([service.unit for service in managed])
    lenders = tuple(
        _lender(service, statuses[service.unit], gpus, ports)
        for service in managed if not statuses[service.unit].inactive and _is_on(service, gpus, instances)
    )
    orphans: Dict[int, GpuProcess] = {}
    for gpu in gpus:
        for process in gpu.processes:
            if process.orphan and not process.protected:
                orphans.setdefault(process.pid, process)
    found = BorrowLook(gpus, instances, lenders, tuple(orphans[pid] for pid in sorted(orphans)))
    _refuse_beside_strangers(found, request.max_used_mib)
    _refuse_beside_dependents(lenders, ports)
    return found


def chosen(selection: Sequence[str], gpus: Sequence[Gpu]) -> List[Gpu]:
    """The GPUs that are meant; of one that is divided by MIG its instances, since nothing runs on the whole of it. Raises GpuFleetError."""
    found: List[Gpu] = []
    for gpu in resolve(selection, gpus):
        parts = [gpu.of_mig(device) for device in gpu.mig_devices if device.uuid is not None] if gpu.divided else [gpu]
        if gpu.divided and (gpu.parts_unknown or not parts):
            raise GpuFleetError(
                "GPU %d is divided by MIG, and %s. Give the UUIDs of the instances that are meant, or make some (`nvidia-smi mig -lgi` "
                "lists them)." % (gpu.index, "not all of its instances could be read" if gpu.parts_unknown else "has no instance")
            )
        known = {(other.index, other.uuid) for other in found}
        found += [part for part in parts if (part.index, part.uuid) not in known]
    return found


def _instances(gpus: Sequence[Gpu]) -> Tuple[str, ...]:
    try:
        return mig_uuids(gpus)
    except GpuFleetError as exc:
        parts = ", ".join(str(gpu.uuid) for gpu in gpus if gpu.memory_type == "mig")
        whole = ", ".join(str(gpu.index) for gpu in gpus if gpu.memory_type != "mig")
        raise GpuFleetError(
            "`gpus` means MIG instances (%s) beside whole GPUs (%s). CUDA shows a command either the one or the other: borrow them one "
            "after the other." % (parts, whole)
        ) from exc


def _refuse_beside_dependents(lenders: Sequence[Lender], ports: Ports) -> None:
    """What systemd stops along with a service does not come back with it."""
    units = {lender.service.unit for lender in lenders}
    for unit in sorted(units):
        along = ports.systemd.statuses([other for other in ports.systemd.stopped_with(unit) if other not in units])
        running = sorted(other for other, status in along.items() if not status.inactive)
        if running:
            raise GpuFleetError(
                "%s can't be stopped for a while: systemd would stop %s along with it (Requires=, BindsTo= or PartOf=), and would not "
                "start it again with it. Stop that yourself for the time, or have it say Wants= in place of that, then run again."
                % (unit, ", ".join(running))
            )


def limits_of(gpus: Sequence[Gpu], max_used_mib: int, leaving: AbstractSet[str]) -> List[Limit]:
    """What counts as free on each of these GPUs; ``leaving`` are the units that are, or were, stopped."""
    return [
        Limit(
            gpu.index, max_used_mib, max_used_mib, gpu.uuid if gpu.memory_type == "mig" else None,
            bool(stayers(gpu, leaving)) or not gpu.processes_reliable,
        )
        for gpu in gpus
    ]


def _is_on(service: ManagedService, gpus: Sequence[Gpu], instances: Sequence[str]) -> bool:
    """Whether it has, or would take, one of these GPUs. Only the driver knows of a card that has moved since its start."""
    if instances and any(uuid.startswith("MIG-") for uuid in service.gpu_uuids):
        return bool(set(instances) & set(service.gpu_uuids))
    return bool({gpu.index for gpu in gpus} & set(service.gpus)) or service.unit in _holding(gpus)


def _holding(gpus: Sequence[Gpu]) -> Dict[str, List[int]]:
    found: Dict[str, List[int]] = {}
    for gpu in gpus:
        for process in gpu.processes:
            if process.unit and process.state == "running" and gpu.memory_type != "mig":
                found.setdefault(process.unit, []).append(gpu.index)
    return found


def _lender(service: ManagedService, status: UnitStatus, gpus: Sequence[Gpu], ports: Ports) -> Lender:
    """A service that can be stopped and brought back as it is. Raises GpuFleetError for one of which that can't be said."""
    unit = service.unit
    refusal = None
    if service.problem:
        refusal = "its unit file can't be understood (%s)" % service.problem
    elif status.masked:
        refusal = "it is masked, so that it could not be started again"
    elif status.stopping:
        refusal = "it is just being stopped"
    elif status.need_daemon_reload:
        refusal = "its unit file was changed since systemd read it, so that something else might come up than what runs now"
    else:
        stale = stale_reason(status, definition_paths(service.name, ports), ports.clock.time())
        if stale is not None:
            refusal = "%s, so that something else might come up than what runs now" % stale
    if refusal is not None:
        raise GpuFleetError(
            "%s is on these GPUs and can't be stopped for a while: %s. Bring it to its declared state with gpufleet.vllm.vllm_service "
            "(or gpufleet.vllm.swap_model), then run again." % (unit, refusal)
        )
    on = tuple(sorted(({gpu.index for gpu in gpus} & set(service.gpus)) | set(_holding(gpus).get(unit, []))))
    if not status.running:
        # One that loads would have come to serve; one that crashes would not.
        return Lender(service, status, status.starting, on, "%s (%s)" % (status.active_state, status.sub_state))
    seen = probe(Target(unit, service.served_name, server_of(service, ports)), ports.clock, _PROBE_S)
    return Lender(service, status, not seen.wrong, on, "serves" if seen.ready else seen.detail)


def _refuse_beside_strangers(found: BorrowLook, max_used_mib: int) -> None:
    """Memory of somebody who is nobody's to end does not come free: that is known before anything is stopped."""
    leaving = {lender.service.unit for lender in found.lenders}
    ending = {process.pid for process in found.orphans}
    taken, unexplained = [], []
    for gpu in found.gpus:
        if gpu.memory_type == "mig":
            continue  # who of the card's processes is on this instance isn't always known: the proof decides
        there = [each for each in gpu.processes if each.state != "gone"]
        stay = [each for each in there if each.unit not in leaving and each.pid not in ending]
        rest = _rest_mib(gpu, [each for each in gpu.processes if each not in stay])
        # Of one that only holds the device open nothing is listed, so it has no memory there: a monitor, as a rule.
        doubtful = any(each.used_mib is None and each.type is not None for each in stay) and (rest is None or rest > max_used_mib)
        held = sum(each.used_mib or 0 for each in stay)
        if doubtful or held > max_used_mib:
            taken.append(replace(gpu, processes=tuple(stay)))
        elif rest is not None and rest - held > max_used_mib + FREE_MAX_USED_MIB:
            # So much counts as the driver's own on a GPU that is free; beside a server it may have as much again, which goes with it.
            unexplained.append("GPU %d (%s MiB used, %s MiB of them by no process that the driver or /proc shows)"
                               % (gpu.index, "{:,}".format(gpu.used_mib or 0), "{:,}".format(rest - held)))
    if taken:
        raise GpuFleetError(
            "These GPUs can't be borrowed, as somebody else is on them: %s. Choose other GPUs, or ask their owners."
            % holders_text(taken, {})
        )
    if unexplained:
        raise GpuFleetError(
            "These GPUs can't be borrowed, as memory on them is nobody's that is known, and would not come free: %s. A container that "
            "hides its processes may hold it, or a process that hangs: `fuser -v /dev/nvidia*` on the host names who has them open. "
            "Choose other GPUs, or see that it comes free." % "; ".join(unexplained)
        )


def _rest_mib(gpu: Gpu, going: Sequence[GpuProcess]) -> Optional[int]:
    """What is in use on it besides what those hold; None where that can't be told."""
    if gpu.used_mib is None or gpu.memory_type == "unified" or any(each.used_mib is None and each.type is not None for each in going):
        return None
    return max(0, gpu.used_mib - sum(each.used_mib or 0 for each in going))


def plan(request: BorrowRequest, found: BorrowLook) -> List[Step]:
    """What will be done, in order."""
    gpus = ",".join(map(str, found.indices))
    units = [lender.service.unit for lender in found.lenders]
    steps: List[Step] = []
    for lender in found.lenders:
        if request.drain_timeout > 0 and lender.status.running:
            steps.append(Step("drain", lender.service.unit, "let its running requests end before it is stopped"))
    steps += [
        Step("stop", lender.service.unit, "it has GPU %s, and will be started again" % ", ".join(map(str, lender.gpus)))
        for lender in found.lenders
    ]
    steps += [
        Step("end_process", str(process.pid), "%s holds %s MiB and belongs to no active unit, container or login session"
             % (process.name or "?", "?" if process.used_mib is None else process.used_mib))
        for process in found.orphans
    ]
    steps.append(Step("prove_free", gpus, "the command must find their memory free"))
    steps.append(Step("run", request.shown, "for %d s at most, as %s, on GPU %s" % (request.timeout, request.user, gpus)))
    steps += [
        Step("start", unit, "it was there before, and has to serve again" if lender.served else "it was there before")
        for unit, lender in zip(units, found.lenders)
    ]
    return steps


def lenders_to_json(lenders: Sequence[Lender]) -> List[Dict[str, Any]]:
    """The entries of the module's ``services``, before anything was done."""
    return [
        {
            "unit": lender.service.unit, "name": lender.service.name, "served_name": lender.service.served_name,
            "gpus": list(lender.gpus), "before": lender.said, "served": lender.served, "back": None,
            "seen": None,
        }
        for lender in lenders
    ]  # fmt: skip


def diff_of_plan(steps: Sequence[Step]) -> Optional[Mapping[str, str]]:
    """The plan for diff mode."""
    lines = "".join("- %s %s: %s\n" % (step.action.replace("_", " "), step.target, step.reason) for step in steps)
    return {"before_header": "GPUs", "after_header": "GPUs", "before": "", "after": lines} if lines else None


def refuse_without_directory(request: BorrowRequest) -> None:
    """Raise GpuFleetError where the command could not even be started."""
    if not os.path.isdir(request.chdir):
        raise GpuFleetError("`chdir` (gpu_borrow_chdir of the role): there is no directory %s on this host." % request.chdir)
