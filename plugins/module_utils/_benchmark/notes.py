# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What to know of the figures of a result: where the load was not the one that was asked for."""

from __future__ import annotations

from typing import Any, List, Mapping

# A prompt that differs from what was asked for by more than this is worth a word.
_OFF_PERCENT = 5.0
# The last requests of a level run out one by one: a good generator stays above this.
_BUSY_SHARE = 0.8


def notes_of(result: Mapping[str, Any]) -> List[str]:
    """Sentences for the result's ``notes``."""
    return [*_of_lengths(result), *_of_idleness(result)]


def _of_lengths(result: Mapping[str, Any]) -> List[str]:
    wanted = result["profile"]["input_tokens"]
    for level in result["levels"]:
        if level["completed"] and level["input_tokens"] is not None:
            found = level["input_tokens"] / level["completed"]
            if abs(found - wanted) * 100.0 > _OFF_PERCENT * wanted:
                return [
                    "At concurrency %d the prompts had %.0f tokens on average, and not the %d of the profile: %s makes them of text, "
                    "which the model's tokenizer counts otherwise." % (level["concurrency"], found, wanted, result["tool"])
                ]
    return []


def _of_idleness(result: Mapping[str, Any]) -> List[str]:
    return [
        "At concurrency %d only %.1f requests were under way on average: %s could not keep up, so these figures are lower than "
        "what the server can do. Give the load generator more processor time, or choose another tool."
        % (level["concurrency"], level["kept_busy"], result["tool"])
        for level in result["levels"]
        if level["kept_busy"] is not None and level["kept_busy"] < _BUSY_SHARE * level["concurrency"]
    ]
