# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Who is on a GPU: the driver's lists joined with what the host knows of these processes."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import AbstractSet, Callable, List, Optional, Sequence, Tuple

from .._process.inspect import Inspection
from .._process.readers import only_reads
from .._process.rules import classify
from .._process.types import CgroupOwner, ProcessInfo
from . import raw
from .lists import merge, parts_of
from .types import GpuProcess

MIB = 1 << 20


@dataclass
class Attribution:
    """Turns a GPU's lists into processes.

    ``belongs`` answers whether an owner's unit or session is active (None: it names none); ``own_pids`` are the caller, its
    ancestors and its helpers; ``protect`` the user's patterns.
    """

    inspection: Inspection
    belongs: Callable[[ProcessInfo, CgroupOwner], Optional[bool]] = lambda info, owner: None
    protect: Sequence[str] = ()
    own_pids: AbstractSet[int] = field(default_factory=frozenset)

    def on(self, gpu: raw.RawGpu) -> Tuple[GpuProcess, ...]:
        """The listed processes of a GPU, then those that hold its node although no list shows them."""
        listed = merge(gpu.processes or [])
        parts = parts_of(gpu.processes or [])
        found: List[GpuProcess] = [replace(self._process(pid, kind, used), parts=parts[pid]) for pid, kind, used in listed]
        named = {pid for pid, _kind, _used in listed}
        for pid, minors in sorted(self.inspection.holders.items()):
            # The reader itself and what it runs holds every node while it looks. Who has ended since its node was seen holds
            # nothing; were there memory left of it, a list would show it.
            info = self.inspection.infos.get(pid)
            if gpu.minor not in minors or pid in named or pid in self.own_pids or info is None:
                continue
            if not only_reads(info, self.inspection.nodes.get(pid)):
                found.append(self._process(pid, None, None))
        return tuple(found)

    def _process(self, pid: int, kind: Optional[str], used: Optional[int]) -> GpuProcess:
        used_mib = None if used is None else used // MIB
        info = self.inspection.infos.get(pid)
        nodes = self.inspection.nodes.get(pid)
        if info is None:
            return GpuProcess(pid, kind, used_mib, state="gone" if self.inspection.initial_pid_namespace else "not_visible")
        if nodes is not None and not nodes:
            # the number means another process here: the driver's list speaks of one in another pid namespace
            return GpuProcess(pid, kind, used_mib, state="not_visible")
        owner = self.inspection.owners.get(pid, CgroupOwner())
        family = self.inspection.family(pid)
        judged = classify(info, owner, self.belongs(info, owner), self.protect, family, self.own_pids)
        return GpuProcess(
            pid=pid,
            type=kind,
            used_mib=used_mib,
            name=info.comm,
            cmdline=info.cmdline or None,
            user=info.user,
            start_time=info.start_time,
            unit=owner.unit,
            container=owner.container,
            state="zombie" if info.zombie else "running",
            vllm=judged.vllm,
            orphan=judged.orphan,
            protected=judged.protected,
            protected_by=judged.protected_by,
            start_ticks=info.start_ticks,
            uid=info.uid,
            ppid=info.ppid,
            exe=info.exe,
            user_unit=owner.user_unit,
            proven=bool(nodes),
            kept_by=judged.kept_by,
        )
