# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""One look at the host: who holds the GPUs, and which unit, container or session answers for each."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import AbstractSet, Dict, List, Optional, Sequence, Set, Tuple

from .._core.errors import GpuFleetError
from .._gpu.reader import GpuReader
from .._gpu.select import resolve
from .._gpu.types import Gpu, GpuProcess, Snapshot
from .._process.cgroup import owner_of
from .._process.procfs import ancestors, cgroup_text, read_process, user_name
from .._process.rules import host_unit_reason, protected_by_user, protected_reason
from .._process.types import CgroupOwner, ProcessInfo
from .._systemd.manager import Systemd
from .._systemd.show import UnitStatus
from .ports import Ports
from .request import ReclaimRequest
from .starts import find_starts
from .types import Holder, UnitKey, UnitView, View

# How a container is stopped by the runtime that would otherwise start it again.
_STOP_COMMANDS = {
    "docker": "docker stop %s",
    "podman": "podman stop %s",
    "containerd": "nerdctl stop %s (or crictl stop %s)",
    "cri-o": "crictl stop %s",
    "kubernetes": "delete or scale down its pod (crictl ps --id %s names it)",
    "lxc": "lxc-stop -n %s",
    "systemd-nspawn": "machinectl poweroff %s",
    "libvirt": "virsh shutdown %s",
    "slurm": "scancel %s",
}

# The job that changes this host's services (_unit/change_unit.py). It holds the host's lock, but not in the moments in which it is
# started, or started again.
CHANGE_UNIT = "gpufleet-change.service"

# The client or supervisor of a container in a service's own cgroup (ExecStart=docker run, Podman's units) is no reason to leave
# the service alone: stopping the unit is how such a container is stopped.
_CONTAINER_CLIENT = "container runtime"


def look(reader: GpuReader, request: ReclaimRequest, ports: Ports) -> View:
    """Read the driver, /proc and systemd. Raises GpuFleetError when a selected GPU isn't there."""
    snapshot = reader.snapshot(None, processes=True)
    if not snapshot.available:
        return View(snapshot, (), (), {}, ports.clock.time())
    holders = _holders(snapshot, request, ports)
    units = _units(request, holders, ports)
    starts = find_starts(snapshot, holders, units, ports)
    return View(snapshot, _selected(request, snapshot), holders, units, ports.clock.time(), starts)


def _selected(request: ReclaimRequest, snapshot: Snapshot) -> Tuple[int, ...]:
    if not request.gpus:
        return tuple(gpu.index for gpu in snapshot.gpus)
    _refuse_missing(request, snapshot)
    try:
        chosen: List[Gpu] = resolve(request.gpus, snapshot.gpus)
    except GpuFleetError as exc:
        raise GpuFleetError("Nothing was touched. " + exc.msg, changed=False, freed=False, **exc.result) from exc
    whole = {gpu.index: gpu.uuid for gpu in snapshot.gpus}
    for gpu in chosen:
        if gpu.uuid != whole.get(gpu.index):
            raise GpuFleetError(
                "Nothing was touched. %s is a MIG instance of GPU %d. The driver does not say which process is on which instance, so "
                "only the whole GPU can be reclaimed: give its index, and narrow the processes with `select` or `services`."
                % (gpu.uuid, gpu.index),
                changed=False, freed=False,
            )
    return tuple(sorted({gpu.index for gpu in chosen}))


def _refuse_missing(request: ReclaimRequest, snapshot: Snapshot) -> None:
    """Say of indices that are not there, in short, which are: the whole list of names would hide it in a fleet's table."""
    there = [gpu.index for gpu in snapshot.gpus]
    missing = [word for word in request.gpus if word.isascii() and word.isdigit() and int(word) not in there]
    if not missing or not there:
        return
    has = "GPU %d" % there[0] if len(there) == 1 else "GPUs %d to %d" % (there[0], there[-1])
    if there != list(range(there[0], there[-1] + 1)):
        has = "GPUs " + ", ".join(map(str, there))
    beyond = ""
    if snapshot.pci_count is not None and snapshot.pci_count > len(there):
        beyond = " (%d are on the PCI bus: look for Xid lines in the kernel log)" % snapshot.pci_count
    raise GpuFleetError(
        "Nothing was touched. GPU %s is not on this host: its driver shows %s%s."
        % (", ".join("'%s'" % word for word in missing), has, beyond),
        changed=False, freed=False,
    )


def _holders(snapshot: Snapshot, request: ReclaimRequest, ports: Ports) -> Tuple[Holder, ...]:
    by_pid: Dict[int, List[Tuple[int, GpuProcess]]] = {}
    for gpu in snapshot.gpus:
        for process in gpu.processes:
            by_pid.setdefault(process.pid, []).append((gpu.index, process))
    own = frozenset(ancestors(os.getpid(), ports.proc_root))
    return tuple(_holder(pid, entries, request, own, ports.proc_root) for pid, entries in sorted(by_pid.items()))


def _holder(
    pid: int, entries: Sequence[Tuple[int, GpuProcess]], request: ReclaimRequest, own: AbstractSet[int], root: str
) -> Holder:
    process = entries[0][1]
    state = process.state
    info = None if state == "gone" else read_process(pid, root)
    if info is not None and info.zombie:
        state = "zombie"
    elif state == "not_visible":
        info = None  # the number means another process here
    elif info is None:
        state = "gone"  # it ended between the driver's answer and this look
    elif process.start_ticks is not None and info.start_ticks != process.start_ticks:
        info, state = None, "gone"  # its pid already means another process
    owner = owner_of(cgroup_text(pid, root)) if info is not None else CgroupOwner()
    return Holder(
        pid=pid,
        gpus=frozenset(index for index, _each in entries),
        used_mib={index: each.used_mib for index, each in entries if each.type is not None},
        state=state,
        name=process.name or (info.comm if info is not None else "unknown"),
        user=process.user if info is None else info.user,
        unit=_unit_key(owner),
        container=owner.container or process.container,
        vllm=process.vllm,
        orphan=process.orphan,
        protected_by=None if info is None else _protected(info, owner, request.protect, own),
        proven=process.proven,
        start_time=process.start_time if info is None else info.start_time,
        info=info,
        stop_command=_stop_command(owner),
    )


def _unit_key(owner: CgroupOwner) -> Optional[UnitKey]:
    if owner.unit is None:
        return None
    return owner.unit, owner.uid if owner.user_unit else None


def _protected(
    info: ProcessInfo, owner: CgroupOwner, patterns: Sequence[str], own: AbstractSet[int]
) -> Optional[str]:
    """The rules' reason, or the caller's. Containers are told apart, since a unit named by the caller may hold one."""
    return protected_reason(info, replace(owner, container=None), own) or protected_by_user(info, owner, patterns)


def _stop_command(owner: CgroupOwner) -> Optional[str]:
    if owner.container is None:
        return None
    # A unit of the host's own runs more than this one: Slurm's daemon every job of the node, a runtime's every container.
    shared = owner.runtime == "slurm" or (owner.unit is not None and host_unit_reason(owner.unit) is not None)
    if owner.unit is not None and not owner.user_unit and not shared:
        return "systemctl stop %s" % owner.unit
    name = owner.container[:12] if len(owner.container) == 64 else owner.container
    if owner.runtime == "slurm":
        name = name.rpartition("_")[2]  # job_42
    command = _STOP_COMMANDS.get(owner.runtime or "")
    return None if command is None else command.replace("%s", name)


def _units(request: ReclaimRequest, holders: Sequence[Holder], ports: Ports) -> Dict[UnitKey, UnitView]:
    keys: Set[UnitKey] = {holder.unit for holder in holders if holder.unit is not None}
    keys |= {(name, None) for name in request.units}
    if keys or holders or request.clean_shm:
        keys.add((CHANGE_UNIT, None))
    found: Dict[UnitKey, UnitView] = {}
    for uid in sorted({uid for _unit, uid in keys}, key=lambda each: -1 if each is None else each):
        names = sorted(unit for unit, of in keys if of == uid)
        systemd = ports.systemd if uid is None else ports.user_systemd(uid)
        for view in _views(request, names, uid, systemd, ports):
            found[view.key] = view
    return found


def _views(
    request: ReclaimRequest, names: Sequence[str], uid: Optional[int], systemd: Systemd, ports: Ports
) -> List[UnitView]:
    user = None if uid is None else user_name(uid)
    try:
        statuses = systemd.statuses(names)
    except GpuFleetError as exc:
        if uid is None:
            raise
        # Without an answer of the user's manager the unit counts as active and is left alone, with the reason said.
        return [UnitView(name, uid, True, False, protected_by=exc.msg, user=user) for name in names]
    return [_view(request, name, uid, user, statuses[name], systemd, ports) for name in names]


def _view(
    request: ReclaimRequest,
    name: str,
    uid: Optional[int],
    user: Optional[str],
    status: UnitStatus,
    systemd: Systemd,
    ports: Ports,
) -> UnitView:
    protected = None
    stoppable = request.scope == "all" or name in request.units
    along: Tuple[str, ...] = ()
    if stoppable and not status.inactive and name.endswith(".service"):
        protected = _protected_member(request, status, systemd, ports)
        also = systemd.stopped_with(name)
        along = tuple(other for other, found in systemd.statuses(also).items() if not found.inactive)
    return UnitView(
        unit=name,
        uid=uid,
        exists=status.exists or not status.inactive,
        inactive=status.inactive,
        main_pid=status.main_pid,
        protected_by=protected,
        host_unit=host_unit_reason(name),
        user=user,
        takes_along=along,
    )


def _protected_member(request: ReclaimRequest, status: UnitStatus, systemd: Systemd, ports: Ports) -> Optional[str]:
    """Why this unit must not be stopped: the first of its processes that is protected."""
    own = frozenset(ancestors(os.getpid(), ports.proc_root))
    for pid in systemd.cgroup_pids(status.unit, status):
        info = read_process(pid, ports.proc_root)
        if info is None:
            continue
        owner = owner_of(cgroup_text(pid, ports.proc_root))
        reason = _protected(info, owner, request.protect, own)
        if reason is not None and reason != _CONTAINER_CLIENT:
            return "it runs %s (pid %d): %s" % (info.comm, pid, reason)
    return None
