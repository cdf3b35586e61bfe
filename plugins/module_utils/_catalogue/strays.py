# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Variables that look as if a swap read them, and that it would pass over without a word."""

from __future__ import annotations

from typing import FrozenSet, Iterable, List, Optional, Tuple

from .schema import FIELDS
from .values import hint

SWAP = "vllm_swap_"
SERVICE = "vllm_service_"
# The variables of the role vllm_swap, and what it leaves behind.
SWAP_VARIABLES: FrozenSet[str] = frozenset(
    SWAP + name for name in ("model", "models", "enabled", "replace", "reconnect_timeout", "plan_only", "names", "result")
)
_OPTIONS = {field.option: key for key, field in FIELDS.items() if field.option is not None}


def strays(names: Iterable[str]) -> Tuple[List[str], List[str]]:
    """What is wrong with a host's variables, by their names; and what is to know of them. Sentences, in order.

    A ``vllm_swap_`` that the role does not have can only be a slip: wrong. A ``vllm_service_`` may well be meant for the role of that
    name on the same host, so it is only told that neither a swap nor a deployment reads it.
    """
    wrong: List[str] = []
    told: List[str] = []
    for name in sorted(str(name) for name in names):
        if name.startswith(SWAP) and name not in SWAP_VARIABLES:
            wrong.append("no swap has a variable `%s`%s." % (name, _place(name[len(SWAP):]) or hint(name, sorted(SWAP_VARIABLES))))
        elif name.startswith(SERVICE):
            place = _place(name[len(SERVICE):])
            if place is not None:
                told.append("`%s` is a variable of the role vllm_service and not read by this playbook%s." % (name, place))
    return wrong, told


def _place(option: str) -> Optional[str]:
    """Where a swap takes this option from; None for what is no option of a deployment."""
    if option in _OPTIONS:
        return ": put `%s` in the model's entry of the catalogue" % _OPTIONS[option]
    if SWAP + option in SWAP_VARIABLES and option not in ("result", "plan_only"):
        return ": a swap has `%s`" % (SWAP + option)
    return None
