# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Mixtures of experts: how wide experts are, and in which layers they stand."""

from __future__ import annotations

from typing import Any, Mapping, Optional, Tuple

from .names import NAMES
from .values import MOST_LAYERS, part, positive, said, size, whole_numbers


def expert_widths(config: Mapping[str, Any], experts: Optional[int]) -> Tuple[int, ...]:
    """The intermediate sizes of routed experts, each once; one unless a configuration lists several."""
    if not experts:
        return ()
    found = said(config, "expert_width")
    if isinstance(found, list):
        listed = whole_numbers(found, 0) or []
        return tuple(sorted({width for width in listed if width}))
    if found is not None:
        width = size(config, "expert_width")
    else:
        # A model without a name of its own for it means them by its intermediate size.
        width = size(config, "dense_width")
    return (width,) if width else ()


def shared_width(config: Mapping[str, Any], experts: Optional[int], widths: Tuple[int, ...]) -> Optional[int]:
    """The intermediate size of all shared experts together."""
    if not experts:
        return None
    width = size(config, "shared_width")
    if width is not None:
        return width
    if positive(config.get("intermediate_size_mlp")) and len(widths) == 1:
        return widths[0]  # Llama 4 has one beside its routed experts, as wide as they are
    if any(config.get(name) == 0 for name in NAMES["shared_width"]):
        return None
    count = size(config, "shared_experts")
    return count * widths[0] if count and len(widths) == 1 else None


def expert_layers(config: Mapping[str, Any], experts: Optional[int]) -> Tuple[bool, ...]:
    """For each layer whether it has routed experts. Empty when the number of layers isn't known."""
    layers = size(config, "layers")
    if layers is None or layers > MOST_LAYERS:
        return ()
    if not experts or experts == 1:
        return (False,) * layers
    listed = _listed(config, layers)
    if listed is not None:
        return listed
    nested = part(config, "moe")
    first_dense = positive(config.get("first_k_dense_replace")) or positive(nested.get("first_k_dense_replace")) or 0
    first_dense = first_dense or positive(config.get("moe_layer_start_index")) or 0
    last = positive(config.get("moe_layer_end_index")) if positive(config.get("moe_layer_end_index")) else layers - 1
    step, offset = _step(config, nested)
    dense_only = set(whole_numbers(config.get("mlp_only_layers")) or [])
    return tuple(
        first_dense <= index <= (last or 0) and index % step == offset and index not in dense_only
        for index in range(layers)
    )


def _listed(config: Mapping[str, Any], layers: int) -> Optional[Tuple[bool, ...]]:
    flags = whole_numbers(config.get("moe_layer_freq"))
    if flags and len(flags) >= layers:
        return tuple(bool(flag) for flag in flags[:layers])
    chosen = whole_numbers(config.get("moe_layers"))
    if chosen:
        return tuple(index in chosen for index in range(layers))
    pattern = config.get("hybrid_override_pattern")
    if isinstance(pattern, str) and len(pattern) >= layers:
        return tuple(letter == "E" for letter in pattern[:layers])
    words = config.get("mlp_layer_types")
    if isinstance(words, list) and len(words) >= layers:
        return tuple(word == "sparse" for word in words[:layers])
    return None


def _step(config: Mapping[str, Any], nested: Mapping[str, Any]) -> Tuple[int, int]:
    """Every how many layers one has experts, and which of them. Most count from 1, Jamba and DeepSeek from 0."""
    period = positive(config.get("expert_layer_period"))
    if period:
        offset = config.get("expert_layer_offset")
        return period, offset % period if isinstance(offset, int) and not isinstance(offset, bool) else 0
    for place in (config, nested):
        for name in ("decoder_sparse_step", "interleave_moe_layer_step", "moe_layer_interval", "moe_every_n_layers"):
            step = positive(place.get(name))
            if step:
                return step, step - 1
    return positive(config.get("moe_layer_freq")) or 1, 0
