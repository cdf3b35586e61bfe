# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Telling a dead server from one that is only busy, in a few seconds, while it runs.

A restart costs minutes of service, so it takes proof: wrong answers in two looks, or GPUs that nobody computes on. A server
that says nothing is no proof. A long prompt, a full queue and an engine that hangs look alike from outside: vLLM's counters of
tokens move only when a step of the engine is done, and that of a long prompt ends with its last part.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Dict, Mapping, Optional, Sequence

from .._core.clock import Clock, Deadline
from .._core.errors import GpuFleetError
from .._gpu.types import Gpu, Snapshot
from .._server.http import Server
from .._server.metrics import MADE, engine_moved
from .._server.ready import ReadyState
from .ready import KEY_ADVICE, Target, probe
from .request import FREE_MAX_USED_MIB

# The longest that one look at a running server takes, in seconds; docs/service.md says so.
LOOK_S = 12.0
_FIRST_LOOK_S = 5.0
_SECOND_LOOK_S = 4.0
_PAUSE_S = 1.0
_METRICS_S = 1.0
_IN_FLIGHT = ("num_requests_running", "num_requests_waiting")


@dataclass(frozen=True)
class Wellness:
    """What a running server was seen to do.

    ``unwell`` is why it has to be started anew, proven; ``doubt`` is what somebody should hear of a server that is left as it
    is, though it was not seen to serve. At most one of them is there.
    """

    seen: ReadyState
    unwell: Optional[str] = None
    doubt: Optional[str] = None


def examine_server(target: Target, clock: Clock, limit: float, idle_gpus: Optional[str] = None) -> Wellness:
    """Look at a server whose unit runs, for at most ``limit`` seconds, and never longer than LOOK_S.

    ``idle_gpus`` is what proves that nothing computes on its GPUs, None where something does or it isn't known.
    """
    deadline = Deadline(clock, min(limit, LOOK_S))
    first = probe(target, clock, min(_FIRST_LOOK_S, deadline.remaining))
    if first.ready or first.stage == "loading":
        return Wellness(first)
    before, since = _metrics(target.server, deadline), deadline.elapsed
    clock.sleep(min(_PAUSE_S, deadline.remaining))
    again = probe(target, clock, min(_SECOND_LOOK_S, max(0.1, deadline.remaining - _METRICS_S)))
    if again.ready or again.stage == "loading":
        return Wellness(again)
    after = _metrics(target.server, deadline)
    return _judged(target.unit, first, again, before, after, deadline.elapsed - since, idle_gpus)


def _judged(
    unit: str,
    first: ReadyState,
    seen: ReadyState,
    before: Mapping[str, float],
    after: Mapping[str, float],
    seconds: float,
    idle_gpus: Optional[str],
) -> Wellness:
    """``seconds`` lie between the two readings of the metrics."""
    refused = next((one for one in (seen, first) if one.refused), None)
    moves = engine_moved(before, after)
    if moves and refused is None:
        made = max(0.0, after.get(MADE, 0.0) - before.get(MADE, 0.0))
        text = "%s is left as it is: its engine works (%d tokens within %.0f s%s), but it did not answer this run: %s"
        return Wellness(seen, doubt=text % (unit, made, seconds, _in_flight(after), seen.detail))
    # One wrong answer is none twice: a server under load times out on one request and refuses the next.
    if first.wrong and seen.wrong:
        return Wellness(seen, unwell="it runs but does not serve: %s" % seen.detail)
    if idle_gpus is not None and not moves:
        return Wellness(seen, unwell="it runs, but its engine is gone: %s, and %s" % (idle_gpus, seen.detail))
    if refused is not None:
        text = "%s is left as it is: it answers, but it refuses the API key of this declaration, so that it was not seen to serve (%s). %s"
        return Wellness(seen, doubt=text % (unit, refused.detail.rstrip("."), KEY_ADVICE))
    stands = "its metrics say nothing"
    if moves is not None:
        stands = "its engine finished no step within %.0f s%s" % (seconds, _in_flight(after))
    said = seen.detail.rstrip(".")
    if not seen.silent or not first.silent:
        said = "first %s, then %s" % (first.detail.rstrip("."), said)
    text = (
        "%s did not answer this run (%s), and %s. It may be busy with long prompts, or hang: from outside both look the same, so "
        "it is left as it is. If it does not answer in some minutes either, run again with state: restarted."
    )
    return Wellness(seen, doubt=text % (unit, said, stands))


def idle_gpus(snapshot: Optional[Snapshot], gpus: Sequence[Gpu]) -> Optional[str]:
    """What proves that no engine is on these GPUs; None where the driver shows one, or can't be taken at its word.

    Any process counts as one, whoever's it is: a server may run in a container that its unit only starts. An engine without
    its process list is still seen by its memory.
    """
    if snapshot is None or not snapshot.processes_reliable or not gpus:
        return None
    for gpu in gpus:
        if gpu.memory_type != "discrete" or gpu.state != "ok" or gpu.used_mib is None or gpu.used_mib > FREE_MAX_USED_MIB:
            return None
        if any(process.state not in ("zombie", "gone") for process in gpu.processes):
            return None
    return "nobody holds memory on GPU %s" % ", ".join(str(gpu.index) for gpu in gpus)


def _in_flight(metrics: Mapping[str, float]) -> str:
    if not all(name in metrics for name in _IN_FLIGHT):
        return ""
    return ", with %d requests running and %d waiting" % tuple(metrics[name] for name in _IN_FLIGHT)


def _metrics(server: Server, deadline: Deadline) -> Dict[str, float]:
    """Its metrics; none of them where it does not give any in time."""
    try:
        return server.metrics(min(_METRICS_S, max(0.1, deadline.remaining)))
    except GpuFleetError:
        return {}
