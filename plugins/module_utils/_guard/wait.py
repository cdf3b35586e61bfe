# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""When a service may start: the guard's decisions on readings of the driver. Pure; times are given, nothing is waited for."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Dict, List, Optional, Sequence, Tuple

from .._gpu.types import Gpu, GpuProcess, Snapshot
from . import exit_codes

# A GPU that uses no more than this has nothing on the way back that could disturb vLLM's profiling, which takes seconds to begin.
IDLE_MIB = 1024
# What any CUDA program takes of a GPU before it can ask what is free, at the very least (modern cards: several hundred). vLLM counts
# its own as used, so that it never finds more free than what this leaves.
CONTEXT_MIB = 64
# How far free memory may wander and still count as stable.
STABLE_MIB = 32
# Memory that is the host's own is never that still: caches and every other program move it. There a share of the total counts.
_UNIFIED_SHARE = 128

# Reasons of an unreadable driver that time does not mend: a reboot or an installation does.
_HOPELESS = ("driver_library_mismatch", "permission", "library_missing")


@dataclass(frozen=True)
class Need:
    """What a service asks of each of its GPUs, as vLLM checks it at its start: free >= ceil(total x utilisation), plus a margin."""

    utilization: float
    margin_mib: int = 0

    def of(self, gpu: Gpu) -> Optional[int]:
        """MiB that must be free on this GPU; None while its memory is unknown.

        vLLM reckons with CUDA's total, which is a little under the driver's. Where the driver's total would ask for more than
        a server can ever find free (a utilisation close to 1, or a margin that leaves nothing), what the driver keeps for itself is
        left out of the reckoning. So whatever passes on an idle GPU, a lower utilisation passes too.
        """
        usable = usable_mib(gpu)
        if gpu.total_mib is None or usable is None:
            return None
        need, least = (math.ceil(size * self.utilization) for size in (gpu.total_mib, usable))
        if need > usable - CONTEXT_MIB or need + self.margin_mib > usable >= least + self.margin_mib:
            need = least
        return need + self.margin_mib


def usable_mib(gpu: Gpu) -> Optional[int]:
    """What can be free on this GPU at the very most."""
    return None if gpu.total_mib is None else gpu.total_mib - (gpu.reserved_mib or 0)


@dataclass(frozen=True)
class Verdict:
    """What one reading means: go (``code`` 0), give up (another code), or wait (None). ``text`` says why."""

    code: Optional[int]
    text: str
    short: Tuple[int, ...] = ()


class Waiting:
    """Judges one reading after the other. ``settle`` is how many seconds the memory must stay as it is."""

    def __init__(self, need: Need, settle: float) -> None:
        self._need = need
        self._settle = settle
        self._since: Optional[float] = None
        self._reference: Dict[Tuple[int, Optional[str]], int] = {}

    def judge(self, snapshot: Snapshot, now: float) -> Verdict:
        """The verdict on a reading made at ``now`` (monotonic seconds)."""
        if not snapshot.available:
            self._since = None
            text = "the GPU driver can't be read (%s: %s)" % (snapshot.reason, snapshot.reason_detail or "no detail")
            return Verdict(exit_codes.DRIVER if snapshot.reason in _HOPELESS else None, text)
        if not snapshot.gpus:
            return Verdict(exit_codes.ABSENT, "the driver shows no GPU on this host")
        broken = [gpu for gpu in snapshot.gpus if gpu.state in ("lost", "reset_required")]
        if broken:
            return Verdict(exit_codes.DRIVER, "; ".join("GPU %d: %s" % (gpu.index, gpu.error or gpu.state) for gpu in broken))
        wrong = _no_ones(snapshot.gpus)
        if wrong:
            return Verdict(exit_codes.ABSENT, wrong)
        never = [text for text in (self._never(gpu) for gpu in snapshot.gpus) if text]
        if never:
            return Verdict(exit_codes.NEVER, "; ".join(never))
        short = [gpu for gpu in snapshot.gpus if not self._enough(gpu)]
        if short:
            self._since = None
            return Verdict(None, self._lack(short), tuple(gpu.index for gpu in short))
        return self._settled(snapshot.gpus, now)

    def _never(self, gpu: Gpu) -> Optional[str]:
        need, usable = self._need.of(gpu), usable_mib(gpu)
        if need is None or usable is None:
            return None
        if need <= usable and need - self._need.margin_mib > usable - CONTEXT_MIB:
            return "GPU %d has %d MiB, and a server can never have all of it, as is asked for (%s): its own CUDA context comes first" % (
                gpu.index, usable, self._reckoning(gpu),
            )
        if need <= usable:
            return None
        return "GPU %d can never have the %d MiB free that are asked for (%s): it has %d MiB%s" % (
            gpu.index, need, self._reckoning(gpu), usable,
            ", besides %d MiB that the driver keeps" % gpu.reserved_mib if gpu.reserved_mib else "",
        )

    def _reckoning(self, gpu: Gpu) -> str:
        margin = " + %d MiB margin" % self._need.margin_mib if self._need.margin_mib else ""
        return "gpu_memory_utilization %g of %d MiB%s" % (self._need.utilization, gpu.total_mib or 0, margin)

    def _enough(self, gpu: Gpu) -> bool:
        need = self._need.of(gpu)
        return need is not None and gpu.free_mib is not None and gpu.free_mib >= need

    def _lack(self, short: Sequence[Gpu]) -> str:
        parts: List[str] = []
        for gpu in short:
            need = self._need.of(gpu)
            if need is None or gpu.free_mib is None:
                parts.append("GPU %d: free memory is unknown (%s)" % (gpu.index, gpu.error or gpu.state))
            else:
                parts.append("GPU %d: %d MiB free, %d needed" % (gpu.index, gpu.free_mib, need))
        return "; ".join(parts)

    def _settled(self, gpus: Sequence[Gpu], now: float) -> Verdict:
        free = {(gpu.index, gpu.uuid): gpu.free_mib or 0 for gpu in gpus}
        # where the driver counts its reserve as used, "idle" can't be told from a little left over: there it has to settle
        if all(gpu.used_mib is not None and gpu.used_mib <= IDLE_MIB for gpu in gpus):
            return Verdict(exit_codes.PASS, "")
        since = self._since
        if since is None or any(self._moved(gpu, free[(gpu.index, gpu.uuid)]) for gpu in gpus):
            since = self._since = now
            self._reference = free
        if now - since >= self._settle:
            return Verdict(exit_codes.PASS, "")
        return Verdict(None, "enough memory is free; watching that it stays so for %g s" % self._settle)

    def _moved(self, gpu: Gpu, free: int) -> bool:
        before = self._reference.get((gpu.index, gpu.uuid))
        room = max(STABLE_MIB, (gpu.total_mib or 0) // _UNIFIED_SHARE) if gpu.memory_type == "unified" else STABLE_MIB
        return before is None or abs(free - before) > room


def _no_ones(gpus: Sequence[Gpu]) -> str:
    """Why CUDA would not give these GPUs to a server, in words; "" when it would."""
    for gpu in gpus:
        if gpu.divided:
            parts = ", ".join(device.uuid for device in gpu.mig_devices if device.uuid) or "nvidia-smi -L shows them"
            return ("GPU %d is divided into MIG devices, and a server gets one of them, not the whole: name the one that is meant (%s)"
                    % (gpu.index, parts))
    mixed = [gpu for gpu in gpus if gpu.memory_type != "mig"]
    if mixed and len(mixed) < len(gpus):
        return ("a server that has a MIG device gets nothing besides it, and would not see GPU %s: name either the one or the other"
                % ", ".join(str(gpu.index) for gpu in mixed))
    return ""


def holders(gpus: Sequence[Gpu], only: Sequence[int] = ()) -> List[str]:
    """One line per process on these GPUs: pid, title, user, unit, MiB per GPU; and what no process accounts for."""
    chosen = [gpu for gpu in gpus if not only or gpu.index in only]
    processes: Dict[int, GpuProcess] = {}
    sizes: Dict[int, List[str]] = {}
    for gpu in chosen:
        for process in gpu.processes:
            processes.setdefault(process.pid, process)
            size = "size unknown" if process.used_mib is None else "%d MiB" % process.used_mib
            if process.type is None:
                size = "holds the device open"
            sizes.setdefault(process.pid, []).append("GPU %d: %s" % (gpu.index, size))
    lines = ["%s [%s]" % (describe(processes[pid]), ", ".join(sizes[pid])) for pid in sorted(processes)]
    for gpu in chosen:
        if gpu.unattributed_mib is not None and gpu.unattributed_mib > IDLE_MIB // 4:
            lines.append("nobody that the driver lists [GPU %d: %d MiB]" % (gpu.index, gpu.unattributed_mib))
    return lines


def describe(process: GpuProcess) -> str:
    """A process in words: enough to find it, and whom to ask."""
    if process.state in ("gone", "not_visible"):
        where = "ended, not yet released by the driver" if process.state == "gone" else "not visible from here"
        return "pid %d (%s)" % (process.pid, where)
    parts = ["user %s" % process.user]
    if process.container:
        parts.append("container %s" % process.container[:12])
    elif process.unit:
        parts.append("unit %s" % process.unit)
    if process.state == "zombie":
        parts.append("zombie")
    title = process.cmdline or process.name or "?"
    return "pid %d %s (%s)" % (process.pid, title if len(title) <= 60 else title[:57] + "...", ", ".join(parts))
