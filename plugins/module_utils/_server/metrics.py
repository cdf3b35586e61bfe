# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The text of ``/metrics``."""

from __future__ import annotations

import math
import re
from typing import Dict, Mapping, Optional

# What an engine has made; `_PROGRESS` stands still in one that hangs. Others move without it: prompts may be counted when they
# arrive, those of whoever only looks among them, and a request that its client gives up counts as ended.
MADE = "generation_tokens_total"
_PROGRESS = (MADE, "iteration_tokens_total_count")
_SAMPLE = re.compile(r"^vllm:([A-Za-z0-9_:]+)(?:\{.*\})?\s+(\S+)(?:\s+-?\d+)?$")


def parse_metrics(text: str) -> Dict[str, float]:
    """Every ``vllm:`` sample summed over its labels (engines of one server), by name without the prefix.

    Percentages are not sums: ``*_perc`` is the largest. NaN and infinities are left out.
    """
    found: Dict[str, float] = {}
    for line in text.splitlines():
        match = _SAMPLE.match(line.strip())
        if match is None or match.group(1).endswith("_bucket"):
            continue
        try:
            value = float(match.group(2))
        except ValueError:
            continue
        if not math.isfinite(value):
            continue
        name = match.group(1)
        if name.endswith("_perc"):
            found[name] = max(found.get(name, 0.0), value)
        else:
            found[name] = found.get(name, 0.0) + value
    return found


def engine_moved(before: Mapping[str, float], after: Mapping[str, float]) -> Optional[bool]:
    """Whether an engine finished a step between two readings of its metrics; None where they do not say."""
    known = [name for name in _PROGRESS if name in before and name in after]
    return any(after[name] > before[name] for name in known) if known else None
