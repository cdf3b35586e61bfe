# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Making room on a service's GPUs before it starts, with the driver's word for it.

Only what nobody owns any more is ended here; whoever else holds memory is named, not touched.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import AbstractSet, Any, Dict, Optional, Sequence, Tuple

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
from .._unit.change_limits import FREE_S
from .memory import Limit, holders_text
from .ports import Ports
from .request import FREE_MAX_USED_MIB
from .standstill import Standstill

# Where nobody is left on any of the GPUs, and each is down to what counts as free, nothing is there that could take more: half a second
# is enough. Where somebody stays on one of them, or not all came back, it may go on moving.
_ALONE_SETTLE_S = 0.5
_SETTLE_S = 1.0
# Of a driver that is slow to answer the time alone would be two readings.
_LEAST_READINGS = 5
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
    timeout: float = FREE_S,
    whose: str = "service",
    advice: str = _ADVICE,
    leaving: AbstractSet[str] = frozenset(),
) -> Freed:
    """End orphans on these GPUs and wait, ``timeout`` seconds at most, until the driver confirms that their memory is back and stable.

    The wait ends before that when what is missing is held by processes that stay; those of the units ``leaving`` never count as such.
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
    standstill = Standstill(reader, limits, leaving, ports)
    deadline = Deadline(ports.clock, timeout)
    while True:
        _end_orphans(selection, ports, reader, done)
        ended = tuple(each.to_result() for each in done.signalled.values())
        within = min(_ROUND_S, max(_SETTLE_S * 2, deadline.remaining))
        proof = prove_free(
            measured, numbers, free, _settle(limits), within, ports.clock, give_up=standstill.give_up, least=_LEAST_READINGS
        )
        if proof.freed:
            return Freed(ended=ended)
        if deadline.expired or standstill.found is not None:
            break
        ports.clock.sleep(_PAUSE_S)  # a driver that is beyond reading answers at once
    enough = prove_free(measured, numbers, fits, _SETTLE_S, _SETTLE_S * 3, ports.clock, least=_LEAST_READINGS).freed
    now = measured.snapshot(selection, processes=True)
    if enough:
        text = "There is room for the service, but not all memory came back: %s." % holders_text(now.gpus, free)
        return Freed((text,), ended)
    if not now.available:
        text = "the driver cannot be read (%s: %s)" % (now.reason, now.reason_detail or "no further detail")
    else:
        text = holders_text(now.gpus, fits)
    if standstill.found is not None:
        raise GpuFleetError(
            "The memory that the %s needs does not come free, since %s: %s. %s" % (whose, standstill.found, text, advice),
            ended_processes=list(ended),
        )
    raise GpuFleetError(
        "The memory that the %s needs was not seen to come free within %d s: %s. %s" % (whose, timeout, text, advice),
        ended_processes=list(ended),
    )


def _settle(limits: Sequence[Limit]) -> float:
    """The seconds for which all the memory has to be seen still: less only where nobody stays, by who is there and not by how much."""
    alone = all(not limit.staying and limit.free_mib <= FREE_MAX_USED_MIB for limit in limits)
    return _ALONE_SETTLE_S if alone else _SETTLE_S


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
