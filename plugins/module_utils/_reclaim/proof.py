# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Proof that GPU memory is free: the driver says so for every GPU, and goes on saying so.

Memory comes back some time after its last holder is gone, not on all GPUs at once, and a single low reading is no verdict: it
may be the moment between two processes. So every GPU is read every few milliseconds until all of them stay at or under their
limit for the whole settle time. What can't be read is never free.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Callable, Dict, List, Mapping, Optional, Sequence, Tuple

from .._core.clock import Clock, Deadline
from .._gpu.types import Gpu, Snapshot

if TYPE_CHECKING:
    from .._gpu.reader import GpuReader

# Between two readings. The caller waits at most this much longer than the driver.
POLL_S = 0.05

# What an idle desktop or a monitoring client may add and drop without the memory being in motion.
TOLERANCE_MIB = 16

# Reasons for which no later reading will be better.
_FINAL = ("no_driver", "library_missing", "driver_library_mismatch", "driver_hung", "permission")


@dataclass(frozen=True)
class Proof:
    """How a proof ended, or stands so far.

    ``gpus`` is the last reading of the GPUs asked for (empty when nothing could be read). ``settle_s`` is how long the memory
    was seen free and stable, ``waited_s`` how long the whole proof took. ``reason`` says why it is not proven, None when it is.
    """

    freed: bool
    gpus: Tuple[Gpu, ...]
    settle_s: float
    waited_s: float
    reason: Optional[str]


def held_mib(gpu: Gpu) -> Optional[int]:
    """MiB that are held on one GPU, None when unknown.

    On unified memory the driver's number is the whole host's memory, which no clean-up brings down; there it is what the
    GPU's processes hold, also those that have ended as long as the driver goes on listing them, and a list that could not be read
    is no empty one. A GPU cut into MIG instances whose parent can't be read is the sum of its instances.
    """
    if gpu.state != "ok":
        return None
    if gpu.memory_type == "unified":
        return _sum([process.used_mib for process in gpu.processes]) if gpu.processes_reliable else None
    if gpu.memory_type == "mig" and gpu.used_mib is None and gpu.mig_devices:
        return _sum([device.used_mib for device in gpu.mig_devices])
    return gpu.used_mib


def why_not_free(snapshot: Snapshot, gpus: Sequence[int], limits: Mapping[int, int]) -> Optional[str]:
    """Why one reading is no sign of free memory; None when every GPU is at or under its limit (MiB)."""
    if not snapshot.available:
        detail = snapshot.reason_detail or "no detail"
        return "the driver can't be read (%s: %s)" % (snapshot.reason, detail)
    reasons: List[str] = []
    for index in gpus:
        gpu = snapshot.gpu(index)
        if gpu is None:
            reasons.append("GPU %d is not there" % index)
            continue
        used = held_mib(gpu)
        if used is None:
            reasons.append("GPU %d can't be read (%s)" % (index, gpu.error or gpu.state))
        elif used > limits[index]:
            reasons.append("GPU %d: %d MiB are held, at most %d count as free" % (index, used, limits[index]))
    return "; ".join(reasons) or None


def prove_free(
    reader: GpuReader,
    gpus: Sequence[int],
    limits: Mapping[int, int],
    settle: float,
    timeout: float,
    clock: Clock,
    on_wait: Optional[Callable[[Proof], None]] = None,
    give_up: Optional[Callable[[Snapshot], Optional[str]]] = None,
    least: int = 1,
) -> Proof:
    """Wait until every GPU of ``gpus`` (driver indices) holds at most ``limits[index]`` MiB and stays so for ``settle`` seconds.

    Returns as soon as that holds, and at least ``least`` readings in a row have shown it; or with ``freed`` False after ``timeout``
    seconds, when the driver is beyond reading, or when ``give_up``, asked after each reading that shows no free memory, returns a
    reason. A driver that is slow to answer gets its readings even if the time is over meanwhile, as long as each shows the memory
    free. ``on_wait`` is told how it stands after each reading that ends nothing. Raises only what the reader raises.
    """
    deadline = Deadline(clock, timeout)
    selection = [str(index) for index in gpus]
    with_processes = False
    since: Optional[float] = None
    base: Dict[int, int] = {}
    seen = 0
    while True:
        snapshot = reader.snapshot(selection, processes=with_processes)
        if not with_processes and any(gpu.memory_type == "unified" for gpu in snapshot.gpus):
            with_processes = True  # there the processes are the measure
            continue
        now = clock.monotonic()
        reason = why_not_free(snapshot, gpus, limits)
        if reason is None:
            values = {gpu.index: held_mib(gpu) or 0 for gpu in snapshot.gpus}
            if since is None or _moved(values, base):
                since, base, seen = now, values, 0
            seen += 1
            if now - since >= settle and seen >= least:
                return Proof(True, snapshot.gpus, now - since, deadline.elapsed, None)
            stable = now - since
            reason = "the memory is free but not yet stable for %g s" % settle
        else:
            since, stable, seen = None, 0.0, 0
            final = None if give_up is None else give_up(snapshot)
            if not snapshot.available and snapshot.reason in _FINAL:
                final = reason
            if final is not None:
                return Proof(False, snapshot.gpus, 0.0, deadline.elapsed, final)
        so_far = Proof(False, snapshot.gpus, stable, deadline.elapsed, reason)
        lacking = 0 < seen < least
        if deadline.expired and not lacking:
            return so_far
        if on_wait is not None:
            on_wait(so_far)
        pause = POLL_S if since is None else min(POLL_S, max(0.005, since + settle - clock.monotonic()))
        clock.sleep(pause if lacking else min(pause, deadline.remaining))


def _moved(values: Mapping[int, int], base: Mapping[int, int]) -> bool:
    return any(abs(value - base.get(index, value)) > TOLERANCE_MIB for index, value in values.items())


def _sum(parts: Sequence[Optional[int]]) -> Optional[int]:
    known = [part for part in parts if part is not None]
    return sum(known) if len(known) == len(parts) else None
