# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Values out of a configuration that may hold anything: the right kind of value, or None."""

from __future__ import annotations

from typing import Any, List, Mapping, Optional, Tuple

from .names import MOST_LAYERS, NAMES

__all__ = ["MOST_LAYERS", "own_size", "part", "positive", "said", "size", "text", "texts", "whole_numbers"]


def positive(value: Any) -> Optional[int]:
    """A size: a whole number from 1 to 2^40. Anything else isn't one."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    if isinstance(value, float) and not value.is_integer():
        return None
    return int(value) if 1 <= value <= 2**40 else None


def text(value: Any) -> Optional[str]:
    """A string that isn't empty."""
    return value if isinstance(value, str) and value else None


def texts(value: Any) -> Tuple[str, ...]:
    """The strings of a list."""
    return tuple(item for item in value if isinstance(item, str)) if isinstance(value, list) else ()


def part(config: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """A nested object, an empty one when there is none."""
    found = config.get(name)
    return found if isinstance(found, Mapping) else {}


def whole_numbers(value: Any, least: int = 0) -> Optional[List[int]]:
    """A list of whole numbers of at least ``least``, None when it is anything else."""
    if not isinstance(value, list) or len(value) > MOST_LAYERS:
        return None
    good = all(isinstance(item, int) and not isinstance(item, bool) and least <= item <= 2**40 for item in value)
    return list(value) if good else None


def size(config: Mapping[str, Any], what: str) -> Optional[int]:
    """One size by any of its names, also in the nested parts that some architectures have."""
    found = own_size(config, what)
    if found is None:
        for nested in ("attn_config", "ffn_config", "moe"):
            found = own_size(part(config, nested), what)
            if found is not None:
                return found
    return found


def own_size(config: Mapping[str, Any], what: str) -> Optional[int]:
    """One size by any of its names. A list of equal sizes, one for each layer, counts as that size."""
    for name in NAMES[what]:
        if config.get(name) is not None:
            return _same(config[name])
    return None


def said(config: Mapping[str, Any], what: str) -> Any:
    """The value under the first of the names that has one, whatever it is."""
    for place in (config, part(config, "attn_config"), part(config, "ffn_config"), part(config, "moe")):
        for name in NAMES[what]:
            if place.get(name) is not None:
                return place[name]
    return None


def _same(value: Any) -> Optional[int]:
    if isinstance(value, list):
        found = whole_numbers(value, 1)
        return found[0] if found and len(set(found)) == 1 else None
    return positive(value)
