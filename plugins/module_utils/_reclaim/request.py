# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What is asked of one reclaim, checked before anything is looked at."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import List, Optional, Tuple

from .._core.errors import GpuFleetError

SCOPES = ("orphans", "services", "all")
RESETS = ("never", "if_needed")
# What may still be held at the end without the reclaim counting as failed.
ACCEPTS = ("nothing", "in_use", "anything")

# What has to remain of the whole time after the last KILL: for processes to end in the driver, and for the first look.
_RESERVE_S = 2.0

# What narrows a pattern of `protect` to one field.
_PROTECT_KINDS = ("unit", "process", "user")
# A word and one colon look like such a prefix; two colons are a title of vLLM's (VLLM::Worker).
_PREFIX = re.compile(r"\s*([A-Za-z_-]*)\s*:(?!:)")


@dataclass(frozen=True)
class Candidate:
    """A process that ``select`` chose on the controller: the pid with its start (seconds since the epoch) name it."""

    pid: int
    start_time: float


@dataclass(frozen=True)
class ReclaimRequest:
    """The parameters of ``gpu_reclaim``. Durations are seconds, sizes MiB.

    ``gpus`` are indices, UUIDs or PCI ids; empty means all. ``candidates`` None means that no ``select`` was given, an empty
    tuple that it chose nobody.
    """

    gpus: Tuple[str, ...] = ()
    scope: str = "orphans"
    services: Tuple[str, ...] = ()
    max_used_mib: int = 1024
    grace: float = 20.0
    timeout: float = 120.0
    settle: float = 1.0
    protect: Tuple[str, ...] = ()
    min_age: float = 0.0
    users: Tuple[str, ...] = ()
    reset: str = "never"
    clean_shm: bool = False
    accept: str = "nothing"
    candidates: Optional[Tuple[Candidate, ...]] = None

    @property
    def effective_grace(self) -> float:
        """The grace that ``timeout`` leaves room for: the KILL and the proof have to fit behind it."""
        return max(0.0, min(self.grace, (self.timeout - self.settle - _RESERVE_S) / 2.0))

    @property
    def units(self) -> Tuple[str, ...]:
        """``services`` as unit names."""
        return tuple(unit_name(service) for service in self.services)


def check(request: ReclaimRequest) -> None:
    """Raise GpuFleetError with every fault of the parameters."""
    faults = faults_of(request)
    if faults:
        raise GpuFleetError("These parameters can't be used: %s." % "; ".join(faults))


def faults_of(request: ReclaimRequest) -> List[str]:
    """Every fault of the parameters, in words that say what is allowed."""
    faults: List[str] = []
    if request.scope not in SCOPES:
        faults.append("scope must be one of %s, not %r" % (", ".join(SCOPES), request.scope))
    if request.reset not in RESETS:
        faults.append("reset must be one of %s, not %r" % (", ".join(RESETS), request.reset))
    if request.accept not in ACCEPTS:
        faults.append("accept must be one of %s, not %r" % (", ".join(ACCEPTS), request.accept))
    if request.scope == "services" and not request.services:
        faults.append("scope: services stops the units that `services` names, and it names none")
    if request.services and request.scope != "services":
        faults.append("`services` is only used with scope: services, and the scope is %s" % request.scope)
    for name, value in (
        ("max_used_mib", request.max_used_mib),
        ("grace", request.grace),
        ("settle", request.settle),
        ("min_age", request.min_age),
        ("timeout", request.timeout),
    ):
        if not math.isfinite(value):
            faults.append("%s must be a number, it is %g" % (name, value))
        elif value < 0:
            faults.append("%s must not be negative, it is %g" % (name, value))
    if request.timeout <= request.settle:
        faults.append(
            "timeout (%g s) must be longer than settle (%g s), or nothing can be proven in it" % (request.timeout, request.settle)
        )
    for service in request.services:
        if not service.strip() or "/" in service or "*" in service or service.startswith("-"):
            faults.append("%r in `services` is no unit name; write it out, e.g. vllm-kimi.service" % service)
    for user in request.users:
        fault = _no_user(user)
        if fault is not None:
            faults.append("%r in `users` %s" % (user, fault))
    for pattern in request.protect:
        fault = _protects_nobody(pattern)
        if fault is not None:
            faults.append("%r in `protect` %s" % (pattern, fault))
    return faults


def _no_user(user: str) -> Optional[str]:
    """Why nobody can be called so; None when somebody may. Whether the host knows them is seen there."""
    if not user.strip():
        return "is empty; leave `users` out to mean everybody's processes"
    parts = [part for part in re.split(r"[,\s]+", user) if part]
    if len(parts) > 1 or "," in user:
        return "is not one name; give a list: users: [%s]" % ", ".join(parts)
    if user != user.strip():
        return "has a space before or behind the name"
    if user.startswith("-"):
        return "is no user: give a name, or a number from 0 up"
    return None


def _protects_nobody(pattern: str) -> Optional[str]:
    """Why a pattern can't match what its author means; None when it may. A slip here would have somebody's process ended."""
    prefix = _PREFIX.match(pattern)
    wanted = pattern
    if prefix is not None:
        if not pattern.startswith(tuple(kind + ":" for kind in _PROTECT_KINDS)):
            return "has no known prefix: unit:, process: or user:; for a title with a colon put process: in front"
        wanted = pattern[prefix.end():]
    if not wanted.strip():
        return "protects nobody: it is empty"
    if wanted != wanted.strip():
        return "protects nobody: there is a space before or after the pattern"
    if re.search(r"\[(?![!]?.[^]]*\])", wanted):
        return "has a [ that no ] closes"
    return None


def unit_name(service: str) -> str:
    """``vllm-kimi`` -> ``vllm-kimi.service``; a name with a unit's suffix stays as it is."""
    name = service.strip()
    return name if name.endswith((".service", ".scope")) else name + ".service"
