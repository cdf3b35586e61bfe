# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""From the module's parameters to a request."""

from __future__ import annotations

from typing import Any, Mapping, Optional, Tuple

from .._core.errors import GpuFleetError
from .request import Candidate, ReclaimRequest


def to_request(params: Mapping[str, Any]) -> ReclaimRequest:
    """The request behind the checked parameters. Raises GpuFleetError where ``gpus`` is empty or ``select`` was not evaluated."""
    gpus = tuple(word.strip() for word in params["gpus"])
    if not gpus or not all(gpus):
        # An empty list is mostly a variable that came out empty: it must not mean every GPU.
        where = " in one of its places" if gpus else ""
        raise GpuFleetError("`gpus` names no GPU%s. Give indices, UUIDs or PCI ids, or say all." % where)
    return ReclaimRequest(
        gpus=() if [word.lower() for word in gpus] == ["all"] else gpus,
        scope=params["scope"],
        services=tuple(params["services"]),
        max_used_mib=params["max_used_mib"],
        grace=params["grace"],
        timeout=params["timeout"],
        settle=params["settle"],
        protect=tuple(params["protect"]),
        min_age=params["min_age"],
        users=tuple(params["users"]),
        reset=params["reset"],
        clean_shm=params["clean_shm"],
        accept=params["accept"],
        candidates=_candidates(params),
    )


def _candidates(params: Mapping[str, Any]) -> Optional[Tuple[Candidate, ...]]:
    chosen = params["candidates"]
    if params["select"] is None:
        if chosen is not None:
            raise GpuFleetError("`candidates` is what `select` chose; give `select` itself.")
        return None
    if chosen is None:
        # Without its choice the expression would be ignored, and everything in the scope would be ended.
        raise GpuFleetError(
            "`select` is evaluated on the controller by the action plugin gpufleet.vllm.gpu_reclaim, which did not run. Call the "
            "module by its full name in a task."
        )
    return tuple(Candidate(each["pid"], each["start_time"]) for each in chosen)
