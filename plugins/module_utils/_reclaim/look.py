# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""One look at the host: who holds the GPUs, and which unit, container or session answers for each."""

from __future__ import annotations

import os
from typing import AbstractSet, Dict, List, Optional, Sequence, Tuple

from .._core.errors import GpuFleetError
from .._gpu.reader import GpuReader
from .._gpu.select import resolve
from .._gpu.types import Gpu, GpuProcess, Snapshot
from .._process.cgroup import owner_of
from .._process.jobs import SCHEDULERS, job_command
from .._process.procfs import ancestors, cgroup_text, has_account, read_process
from .._process.rules import host_unit_reason
from .._process.types import CgroupOwner
from .ports import Ports
from .request import ReclaimRequest
from .seen import Holder, UnitKey, View
from .starts import claimed_gpus, find_starts
from .unit_views import protection, unit_views

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
}


def look(reader: GpuReader, request: ReclaimRequest, ports: Ports) -> View:
    """Read the driver, /proc and systemd. Raises GpuFleetError when a selected GPU isn't there."""
    snapshot = reader.snapshot(None, processes=True)
    if not snapshot.available:
        return View(snapshot, (), (), {}, ports.clock.time())
    holders = _holders(snapshot, request, ports)
    units = unit_views(request, holders, ports)
    starts = find_starts(snapshot, holders, units, ports)
    return View(
        snapshot, _selected(request, snapshot), holders, units, ports.clock.time(), starts, _unknown(request.users, holders),
        claimed_gpus(snapshot, ports) if request.units else {},
    )


def _unknown(users: Sequence[str], holders: Sequence[Holder]) -> Tuple[str, ...]:
    """The names that are nobody's here. A number is always somebody's: accounts of containers have no name on the host."""
    running = {holder.user for holder in holders}
    return tuple(name for name in users if name not in running and not name.isdigit() and not has_account(name))


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
        protected_by=None if info is None else protection(info, owner, request.protect, own),
        proven=process.proven,
        start_time=process.start_time if info is None else info.start_time,
        info=info,
        stop_command=_stop_command(owner),
        runtime=owner.runtime,
        kept_by=process.kept_by,
    )


def _unit_key(owner: CgroupOwner) -> Optional[UnitKey]:
    if owner.unit is None:
        return None
    return owner.unit, owner.uid if owner.user_unit else None


def _stop_command(owner: CgroupOwner) -> Optional[str]:
    if owner.container is None:
        return None
    # A unit of the host's own runs more than this one: a scheduler's daemon every job of the node, a runtime's every container.
    if owner.runtime in SCHEDULERS:
        return job_command(owner.runtime, owner.container)
    shared = owner.unit is not None and host_unit_reason(owner.unit) is not None
    if owner.unit is not None and not owner.user_unit and not shared:
        return "systemctl stop %s" % owner.unit
    name = owner.container[:12] if len(owner.container) == 64 else owner.container
    command = _STOP_COMMANDS.get(owner.runtime or "")
    return None if command is None else command.replace("%s", name)
