# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Servers that load their model at this moment.

vLLM reads how much memory is free when it starts, and again when it has loaded. Memory that comes free in between makes it stop with an
assertion, or size its KV cache wrongly, so nothing is ended on a GPU while somebody else's server starts there.
"""

from __future__ import annotations

import os
import re
from typing import Dict, FrozenSet, Iterable, List, Mapping, Optional, Sequence, Set, Tuple

from .._core.errors import GpuFleetError
from .._gpu.types import Snapshot
from .._guard.claims import Claim, Unusable
from .._guard.lock import StartLock
from .._process.holders import open_files
from .._process.procfs import read_process
from .._process.types import ProcessInfo
from .ports import Ports
from .seen import Holder, Start, UnitKey, UnitView

# A server that listens to nobody after so long is no longer taken for one that loads.
_LONGEST_START_S = 1800.0
_SERVER = re.compile(r"(?:^|[ /])vllm serve\b|\bvllm\.entrypoints\.[\w.]*api_server\b")
_ENGINE = re.compile(r"VLLM::(?!API|Api)")
_SOCKET = re.compile(r"socket:\[(\d+)\]$")
_LISTEN = "0A"


def find_starts(
    snapshot: Snapshot, holders: Sequence[Holder], units: Mapping[UnitKey, UnitView], ports: Ports
) -> Tuple[Start, ...]:
    """The units whose servers load now and on which GPUs, as far as somebody else holds memory there too."""
    found: Dict[UnitKey, Start] = {start.unit: start for start in _claimed(snapshot, ports)}
    for unit in units.values():
        start = None if unit.inactive or unit.key in found else _loading(unit, holders, ports)
        if start is not None:
            found[unit.key] = start
    return tuple(
        start for start in found.values() if any(holder.unit != start.unit and holder.gpus & start.gpus for holder in holders)
    )


def claimed_gpus(snapshot: Snapshot, ports: Ports) -> Dict[UnitKey, FrozenSet[int]]:
    """The GPUs of the units that claimed some and do not serve yet, whoever else is on them; also where the guard still waits."""
    return {(claim.unit, None): _indices(claim, snapshot) for claim in _claims(ports)}


def _claimed(snapshot: Snapshot, ports: Ports) -> Iterable[Start]:
    """Units that claimed GPUs when their guard let the server start, and whose port does not answer yet.

    One whose guard still waits is not among them: it waits for the memory that is to come free.
    """
    now, today = ports.clock.monotonic(), ports.clock.time()
    return [
        Start((claim.unit, None), _indices(claim, snapshot), today - (now - claim.passed))
        for claim in _claims(ports)
        if claim.passed is not None
    ]


def _claims(ports: Ports) -> List[Claim]:
    try:
        return StartLock(ports.claims_root, "", ports.clock.monotonic, ports.proc_root).starting()
    except Unusable:
        return []  # no unit of ours has started since the host did


def _indices(claim: Claim, snapshot: Snapshot) -> FrozenSet[int]:
    """The GPUs that a claim names; of a MIG instance the whole one."""
    names = {gpu.uuid or "GPU %d" % gpu.index: gpu.index for gpu in snapshot.gpus}
    names.update({part.uuid: gpu.index for gpu in snapshot.gpus for part in gpu.mig_devices if part.uuid is not None})
    return frozenset(names[name] for name in claim.gpus if name in names)


def _loading(unit: UnitView, holders: Sequence[Holder], ports: Ports) -> Optional[Start]:
    """Somebody's own unit: a vLLM server in it is on GPUs already, and does not listen yet."""
    members = [holder for holder in holders if holder.unit == unit.key and holder.state == "running"]
    now = ports.clock.time()
    # A server that has just begun has no worker from before; only where there may be one, systemd is asked for the rest of the unit.
    if not any(member.vllm and (member.start_time is None or _began_lately(member.start_time, now)) for member in members):
        return None
    server = server_that_loads(unit, ports)
    if server is None or server.start_time is None:
        return None
    return Start(unit.key, frozenset().union(*(member.gpus for member in members)), server.start_time)


def server_that_loads(unit: UnitView, ports: Ports) -> Optional[ProcessInfo]:
    """The process of a unit that is a vLLM server, began not long ago and listens to nobody yet: its main process, or one that
    a script in it started."""
    systemd = ports.systemd if unit.uid is None else ports.user_systemd(unit.uid)
    try:
        pids = set(systemd.cgroup_pids(unit.unit)) | {unit.main_pid}
    except GpuFleetError:
        pids = {unit.main_pid}
    seen = (read_process(pid, ports.proc_root) for pid in pids if pid > 0)
    infos = {info.pid: info for info in seen if info is not None and not info.zombie}
    now = ports.clock.time()
    servers = [
        info for info in infos.values()
        if _SERVER.search(info.cmdline) and "--uds" not in info.argv and _began_lately(info.start_time, now)
    ]
    loading = [info for info in servers if not _listens(info, infos, ports)]
    return min(loading, key=lambda info: info.start_ticks, default=None)


def _began_lately(start_time: Optional[float], now: float) -> bool:
    # The kernel gives the host's start in whole seconds, so that a process may seem to start in a moment.
    return start_time is not None and -1.0 <= now - start_time < _LONGEST_START_S


def _listens(server: ProcessInfo, infos: Mapping[int, ProcessInfo], ports: Ports) -> bool:
    """Whether the server, or what it started other than engine and workers, which listen to each other, listens on TCP."""
    listening = _listening_inodes(server.pid, ports.proc_root)
    for info in infos.values():
        if _ENGINE.match(info.cmdline) or not _below(info, server.pid, infos):
            continue
        for target in open_files(info.pid, ports.proc_root) or ():
            found = _SOCKET.match(target)
            if found is not None and found.group(1) in listening:
                return True
    return False


def _below(info: ProcessInfo, pid: int, infos: Mapping[int, ProcessInfo]) -> bool:
    """Whether it is that process of the unit or a descendant of it."""
    line: Optional[ProcessInfo] = info
    for _step in infos:
        if line is None or line.pid == pid:
            break
        line = infos.get(line.ppid)
    return line is not None and line.pid == pid


def _listening_inodes(pid: int, root: str) -> Set[str]:
    """The sockets that listen in this process's network namespace."""
    inodes: Set[str] = set()
    for name in ("tcp", "tcp6"):
        try:
            with open(os.path.join(root, str(pid), "net", name), encoding="ascii", errors="replace") as handle:
                rows: List[List[str]] = [line.split() for line in handle]
        except OSError:
            continue  # a kernel without IPv6, or it ended
        inodes |= {row[9] for row in rows[1:] if len(row) > 9 and row[3] == _LISTEN}
    return inodes
