# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The last rung: a GPU reset, only when asked for, only for a GPU that nobody holds.

A reset under a running process takes that process down with it, so every process that has the GPU's device node open is a
blocker and is named; none is ended for it. Persistence mode keeps the driver itself on the GPU: it is turned off for the reset and
put back whatever happens.
"""

from __future__ import annotations

from typing import AbstractSet, List, Optional, Sequence

from .._core.runner import Completed, Runner
from .._gpu.types import Gpu
from .._process.holders import device_holders, gpu_minors
from .._process.procfs import read_process
from .done import GpuReset

_CALL_S = 60.0
WOULD_RESET = "it would be reset"


def blockers(gpu: Gpu, root: str = "/proc", spare: AbstractSet[int] = frozenset()) -> List[str]:
    """The processes that have this GPU's device node open, as ``name (pid N)``; those in ``spare`` don't count."""
    minor = gpu.index if gpu.minor is None else gpu.minor
    found: List[str] = []
    for pid, nodes in sorted(device_holders(root).items()):
        if pid not in spare and minor in gpu_minors(nodes):
            info = read_process(pid, root)
            found.append("%s (pid %d)" % ("?" if info is None else info.comm, pid))
    return found


def reset_gpus(gpus: Sequence[Gpu], runner: Runner, root: str = "/proc", timeout: float = _CALL_S) -> List[GpuReset]:
    """Reset each GPU that nobody holds. The caller must have closed its own reader, which holds the nodes as well."""
    return [_reset(gpu, runner, root, timeout) for gpu in gpus]


def plan_resets(gpus: Sequence[Gpu], gone: AbstractSet[int], root: str = "/proc") -> List[GpuReset]:
    """What would become of each GPU that is to be reset, once the processes in ``gone`` have let go of it. Touches nothing."""
    found: List[GpuReset] = []
    for gpu in gpus:
        in_the_way = blockers(gpu, root, gone)
        detail = "it would not be reset: it is in use by %s" % ", ".join(in_the_way) if in_the_way else WOULD_RESET
        found.append(GpuReset(gpu.index, False, detail, planned=not in_the_way))
    return found


def _reset(gpu: Gpu, runner: Runner, root: str, timeout: float) -> GpuReset:
    in_the_way = blockers(gpu, root)
    if in_the_way:
        return GpuReset(gpu.index, False, "not reset: it is in use by %s" % ", ".join(in_the_way))
    target = gpu.uuid or gpu.pci_bus_id or str(gpu.index)
    persistent = _persistence(runner, target)
    if persistent:
        off = runner.run(["nvidia-smi", "-i", target, "-pm", "0"], timeout=timeout)
        if not off.ok:
            return GpuReset(gpu.index, False, "not reset: persistence mode can't be turned off: %s" % _said(off))
    back: Optional[Completed] = None
    try:
        done = runner.run(["nvidia-smi", "-i", target, "--gpu-reset"], timeout=timeout)
    finally:
        if persistent:
            back = runner.run(["nvidia-smi", "-i", target, "-pm", "1"], timeout=timeout)
    notes: List[str] = []
    if not done.ok:
        notes.append("reset failed: " + _said(done))
    if back is not None and not back.ok:
        notes.append("persistence mode could not be turned on again: " + _said(back))
    return GpuReset(gpu.index, done.ok, "; ".join(notes) or None)


def _persistence(runner: Runner, target: str) -> bool:
    asked = runner.run(
        ["nvidia-smi", "-i", target, "--query-gpu=persistence_mode", "--format=csv,noheader,nounits"], timeout=_CALL_S
    )
    return asked.ok and asked.stdout.strip().lower() == "enabled"


def _said(done: Completed) -> str:
    if done.timed_out:
        return "nvidia-smi ran past its time"
    text = " ".join((done.stderr.strip() or done.stdout.strip() or "it said nothing").split())
    return "%s (nvidia-smi exit status %s)" % (text, done.rc)
