# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the guard before the server said when it refused to let it start."""

from __future__ import annotations

import os
import re
from typing import Dict, List, Optional, Sequence, Tuple

from .._guard import exit_codes
from .result import Diagnosis

_EVIDENCE_LINES = 3
_SPEAKER = "gpu-guard: "
_REFUSAL = re.compile(r"gpu-guard: (?:the service|\S+) is not started \((?P<name>[A-Z]+)\): (?P<why>.*)")
_HOLDER = re.compile(r"gpu-guard: +held by (?P<who>.*)")

_FREE_IT = (
    "`held by` in the unit's journal says who has how much on which GPU. If an earlier server left it, run the playbook "
    "gpufleet.vllm.gpu_cleanup on this host; if another service or program uses it, stop that one, or choose other GPUs. Where nobody has "
    "it any more, start the service again; guard.timeout says how long it waits."
)
_DRIVER = (
    "Look at `nvidia-smi` and `dmesg` on the host; after an update of the driver's packages the host needs a reboot."
)

# Exit status -> kind, what it means in short, what to do. The guard's own words are more exact and come first.
_MEANINGS: Dict[int, Tuple[str, str, str]] = {
    exit_codes.USAGE: (
        "unknown",
        "the guard doesn't accept its arguments",
        "Deploy the service again, so that unit and guard match.",
    ),
    exit_codes.DRIVER: ("driver", "the GPU driver can't be read, or a GPU is broken", _DRIVER),
    exit_codes.INTERNAL: (
        "unknown",
        "the guard itself failed",
        "Read the traceback in the journal; guard.enabled: false goes on without it.",
    ),
    exit_codes.ABSENT: (
        "bad_argument",
        "one of the GPUs is not on this host, or has another index now",
        "Look at `nvidia-smi -L` on the host. Deploying the service again finds a GPU that has moved; for one that is gone, bring it "
        "back or correct gpus.",
    ),
    exit_codes.LOCKED: (
        "memory_not_free",
        "another service was still starting on one of the GPUs",
        "Start it again when the other one is ready; guard.timeout says how long it waits for it.",
    ),
    exit_codes.MEMORY: (
        "memory_not_free",
        "on one of the service's GPUs the memory that the server asks for did not come free within guard.timeout, or did not stay free",
        _FREE_IT,
    ),
    exit_codes.PORT: (
        "port_in_use",
        "another process has the service's port",
        "Stop it, or give the service another port.",
    ),
    exit_codes.CGROUP: (
        "memory_not_free",
        "processes of an earlier run of this service are still there",
        "End them: `systemctl kill -s KILL` of the unit; one that doesn't die of that needs a reboot.",
    ),
    exit_codes.NEVER: (
        "memory_not_free",
        "the GPUs can never have the memory that is asked for",
        "Lower gpu_memory_utilization or guard.margin_mib, or choose other GPUs.",
    ),
}
_STATUSES = {name: status for status, name in exit_codes.NAMES.items()}
_OTHER: Tuple[str, str, str] = (
    "unknown",
    "the guard ended with a status that is not known here",
    "Read its lines in the journal, and deploy the service again, so that the guard is this version's.",
)


def is_guard(program: Optional[str]) -> bool:
    """Whether a command before the server is the guard; where its program isn't known, it is taken for it."""
    return not program or os.path.basename(program).startswith("gpu-guard")


def guard_diagnosis(lines: Sequence[str], status: Optional[int]) -> Optional[Diagnosis]:
    """The diagnosis when the guard refused, None when it did not.

    ``status`` is the exit status of the failed ExecStartPre as systemd has it. Without it (the unit was started again
    meanwhile) the guard's own last word counts, which names its status.
    """
    own = [line[line.index(_SPEAKER) :] for line in lines if _SPEAKER in line]
    refusals = [line for line in own if _REFUSAL.search(line)]
    if status is None and not (refusals and own[-1] == refusals[-1]):
        return None
    said = _REFUSAL.search(refusals[-1]) if refusals else None
    if said is None and status not in _MEANINGS:
        return None  # another ExecStartPre, of the user's own
    why = said.group("why") if said is not None else ""
    if status not in _MEANINGS and said is not None:
        status = _STATUSES.get(said.group("name"))
    kind, summary, advice = _MEANINGS.get(status if status is not None else -1, _OTHER)
    return Diagnosis(kind, "the guard did not let the server start: %s" % (_short(why) or summary), _evidence(own, refusals), advice)


def _evidence(own: Sequence[str], refusals: Sequence[str]) -> Tuple[str, ...]:
    if not refusals:
        return tuple(own[-_EVIDENCE_LINES:])
    holders: List[str] = []
    for line in own:
        if _HOLDER.search(line) and line not in holders:
            holders.append(line)
    return (refusals[-1], *holders[-(_EVIDENCE_LINES - 1) :])


def _short(why: str) -> str:
    return why if len(why) <= 300 else why[:299] + "…"
