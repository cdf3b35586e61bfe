# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The load that a benchmark puts on a server: how many requests at a time, how long they are, how often."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Dict, List, Mapping, Optional, Tuple

from .._core.errors import GpuFleetError

# The curve as people quote it.
DEFAULT_CONCURRENCY = (1, 2, 4, 8, 16, 32, 64, 128)
DEFAULT_INPUT_TOKENS = 1024
DEFAULT_OUTPUT_TOKENS = 256
# Fewer requests than these say little about a median; at high concurrency each slot gets this many.
_LEAST_REQUESTS = 16
_REQUESTS_PER_SLOT = 4
# Enough to have every batch size of a level compiled and captured; more only take time.
_MOST_WARMUP = 32
# More at a time than one load generator can keep up with.
_MOST_CONCURRENCY = 4096
# The smallest of what the tools take for a seed.
_MOST_SEED = 2**31 - 1


@dataclass(frozen=True)
class Profile:
    """One load. ``requests`` and ``warmup`` are for each level; None leaves them to the level."""

    concurrency: Tuple[int, ...] = DEFAULT_CONCURRENCY
    input_tokens: int = DEFAULT_INPUT_TOKENS
    output_tokens: int = DEFAULT_OUTPUT_TOKENS
    requests: Optional[int] = None
    warmup: Optional[int] = None
    seed: int = 0

    def requests_at(self, concurrency: int) -> int:
        """How many requests are counted at a level."""
        return self.requests if self.requests is not None else max(_LEAST_REQUESTS, _REQUESTS_PER_SLOT * concurrency)

    def warmup_at(self, concurrency: int) -> int:
        """How many requests come before those that are counted."""
        return self.warmup if self.warmup is not None else min(concurrency, _MOST_WARMUP)

    def to_dict(self) -> Dict[str, Any]:
        """What the load comes to, as it stands in a result: the numbers of each level, whoever chose them."""
        return {
            "concurrency": list(self.concurrency),
            "input_tokens": self.input_tokens,
            "output_tokens": self.output_tokens,
            "requests": [self.requests_at(level) for level in self.concurrency],
            "warmup": [self.warmup_at(level) for level in self.concurrency],
            "seed": self.seed,
        }


def to_profile(given: Mapping[str, Any]) -> Profile:
    """The profile of the module's option; what is missing or None keeps its default. GpuFleetError names every fault."""
    known = {name: value for name, value in given.items() if value is not None}
    unknown = sorted(set(known) - set(Profile.__dataclass_fields__))
    faults = ["there is no %s (there are: %s)" % (name, ", ".join(Profile.__dataclass_fields__)) for name in unknown]
    for name in unknown:
        del known[name]
    for name, value in known.items():
        values = value if name == "concurrency" and isinstance(value, (list, tuple)) else [value]
        if any(isinstance(each, bool) or not isinstance(each, int) for each in values):
            faults.append("%s takes whole numbers, not %r" % (name, value))
    if not faults:
        if isinstance(known.get("concurrency"), int):
            known["concurrency"] = [known["concurrency"]]
        profile = Profile(**dict(known, **({"concurrency": tuple(known["concurrency"])} if "concurrency" in known else {})))
        faults = _faults(profile)
        if not faults:
            return profile
    raise GpuFleetError("profile: %s." % "; ".join(faults))


def _faults(profile: Profile) -> List[str]:
    faults = []
    levels = profile.concurrency
    if not levels:
        faults.append("concurrency is empty, so nothing would be measured")
    if len(set(levels)) != len(levels):
        faults.append("concurrency names a level twice")
    if any(not 1 <= level <= _MOST_CONCURRENCY for level in levels):
        faults.append("concurrency takes numbers from 1 to %d" % _MOST_CONCURRENCY)
    for name in ("input_tokens", "output_tokens"):
        if getattr(profile, name) < 1:
            faults.append("%s is %d, and has to be 1 or more" % (name, getattr(profile, name)))
    if profile.requests is not None and levels and profile.requests < max(levels):
        faults.append(
            "%d requests never keep %d busy at a time: give at least as many requests as the highest concurrency, or none"
            % (profile.requests, max(levels))
        )
    if profile.warmup is not None and profile.warmup < 0:
        faults.append("warmup is %d, and can't be less than 0" % profile.warmup)
    if not 0 <= profile.seed <= _MOST_SEED:
        faults.append("seed takes numbers from 0 to %d" % _MOST_SEED)
    return faults
