# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Making room on a service's GPUs before it starts, with the driver's word for it.

Only what nobody owns any more is ended here; whoever else holds memory is named, not touched.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Dict, Optional, Sequence, Tuple

from .._core.clock import Deadline
from .._core.errors import GpuFleetError
from .._gpu.reader import GpuReader
from .._gpu.types import Snapshot
from .._reclaim.done import Done
from .._reclaim.ladder import carry_out
from .._reclaim.look import look
from .._reclaim.plan import make_plan
from .._reclaim.ports import Ports as ReclaimPorts
from .._reclaim.proof import prove_free
from .._reclaim.request import ReclaimRequest
from .memory import Limit, holders_text
from .ports import Ports
from .request import FREE_MAX_USED_MIB

# What has come back whole cannot come back further: there it is enough to see it still for ten readings. Where somebody stays on a GPU,
# or not all came back, it may go on moving.
_ALONE_SETTLE_S = 0.5
_SETTLE_S = 1.0
# The driver gives memory back seconds after the last process is gone, and not on all GPUs at once.
_FREE_TIMEOUT_S = 120.0
# Workers that lose their server while we wait become orphans only then: they are looked for again this often.
_ROUND_S = 10.0
_PAUSE_S = 0.2
_GRACE_S = 20.0
_ADVICE = "See that it comes free, or give the service other GPUs or a lower gpu_memory_utilization, and run again."


@dataclass(frozen=True)
class Freed:
    """What it took. ``ended`` are the processes that were signalled, as gpu_reclaim reports them."""

    warnings: Tuple[str, ...] = ()
    ended: Tuple[Dict[str, Any], ...] = ()


def make_free(
    limits: Sequence[Limit],
    ports: Ports,
    reader: GpuReader,
    timeout: float = _FREE_TIMEOUT_S,
    whose: str = "service",
    advice: str = _ADVICE,
) -> Freed:
    """End orphans on these GPUs and wait, ``timeout`` seconds at most, until the driver confirms that their memory is back and stable.

    Raises GpuFleetError, naming every holder, when not even what the service needs came free; the message ends with ``advice``.
    """
    selection = [limit.mig or str(limit.gpu) for limit in limits]
    numbers = [limit.gpu for limit in limits]
    measured = reader
    if any(limit.mig for limit in limits):
        numbers, measured = list(range(len(limits))), _Instances(reader, selection)
    free = {number: limit.free_mib for number, limit in zip(numbers, limits)}
    fits = {number: limit.fits_mib for number, limit in zip(numbers, limits)}
    done = Done()
    deadline = Deadline(ports.clock, timeout)
    while True:
        _end_orphans(selection, ports, reader, done)
        ended = tuple(each.to_result() for each in done.signalled.values())
        within = min(_ROUND_S, max(_SETTLE_S * 2, deadline.remaining))
        if prove_free(measured, numbers, free, _settle(limits), within, ports.clock).freed:
            return Freed(ended=ended)
        if deadline.expired:
            break
        ports.clock.sleep(_PAUSE_S)  # a driver that is beyond reading answers at once
    enough = prove_free(measured, numbers, fits, _SETTLE_S, _SETTLE_S * 3, ports.clock).freed
    now = measured.snapshot(selection, processes=True)
    if enough:
        text = "There is room for the service, but not all memory came back: %s." % holders_text(now.gpus, free)
        return Freed((text,), ended)
    if not now.available:
        text = "the driver cannot be read (%s: %s)" % (now.reason, now.reason_detail or "no further detail")
    else:
        text = holders_text(now.gpus, fits)
    raise GpuFleetError(
        "The memory that the %s needs was not seen to come free within %d s: %s. %s" % (whose, timeout, text, advice),
        ended_processes=list(ended),
    )


def _settle(limits: Sequence[Limit]) -> float:
    """The seconds for which all the memory has to be seen still."""
    return _ALONE_SETTLE_S if all(limit.free_mib <= FREE_MAX_USED_MIB for limit in limits) else _SETTLE_S


class _Instances(GpuReader):
    """MIG instances, numbered by their place in the selection: those of one card all have the card's index."""

    def __init__(self, reader: GpuReader, selection: Sequence[str]) -> None:
        self._reader = reader
        self._selection = list(selection)

    def snapshot(self, gpus: Optional[Sequence[str]] = None, processes: bool = True) -> Snapshot:
        seen = self._reader.snapshot(self._selection, processes)
        return replace(seen, gpus=tuple(replace(gpu, index=number) for number, gpu in enumerate(seen.gpus)))


def _end_orphans(selection: Sequence[str], ports: Ports, reader: GpuReader, done: Done) -> None:
    """The lowest rung of the clean-up, with all of its proofs: vLLM processes of no active unit, container or session."""
    reclaim = ReclaimPorts(runner=ports.runner, clock=ports.clock, systemd=ports.systemd, proc_root=ports.paths.proc)
    request = ReclaimRequest(gpus=tuple(selection), scope="orphans", grace=_GRACE_S)
    plan = make_plan(request, look(reader, request, reclaim))
    if not plan.empty:
        carry_out(plan, request.grace, reclaim, done)
