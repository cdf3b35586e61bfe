# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The kinds of modules that rules speak of, by the names that models give them, and how each kind is stored."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Dict, List, Optional, Tuple

from .quantisation import Scheme
from .types import LINEAR, NONE, ModelFacts

_PREFIXES = (
    "model.layers.0.",
    "model.language_model.layers.0.",
    "language_model.model.layers.0.",
    "backbone.layers.0.",
)
# One module of each kind whose input is split, as different models call it.
_SUFFIXES: Dict[str, Tuple[str, ...]] = {
    "attention": ("self_attn.o_proj", "attention.wo", "mixer.o_proj"),
    "dense": ("mlp.down_proj", "feed_forward.down_proj", "feed_forward.w2", "mixer.down_proj"),
    "shared_experts": (
        "mlp.shared_experts.down_proj",
        "mlp.shared_expert.down_proj",
        "feed_forward.shared_expert.down_proj",
        "block_sparse_moe.shared_experts.down_proj",
        "mixer.shared_experts.down_proj",
    ),
    "experts": (
        "mlp.experts.0.down_proj",
        "block_sparse_moe.experts.0.w2",
        "feed_forward.experts.down_proj",
        "mixer.experts.0.down_proj",
    ),
    "state_in": ("mixer.in_proj", "mamba.in_proj"),
    "state_gates": ("linear_attn.in_proj_ba", "linear_attn.in_proj_b"),
    "state_out": ("linear_attn.out_proj",),
}


@dataclass(frozen=True)
class Stored:
    """How each kind of modules is stored; None for a kind that isn't quantised."""

    schemes: Tuple[Tuple[str, Optional[Scheme]], ...]

    def of(self, kind: str) -> Optional[Scheme]:
        """The scheme of one kind."""
        return dict(self.schemes).get(kind)


def stored(facts: ModelFacts) -> Stored:
    """Look each kind up once: lists of exceptions can be long."""
    quantisation = facts.quantisation
    if quantisation is None:
        return Stored(())
    found = []
    for kind, suffixes in _SUFFIXES.items():
        names = [prefix + suffix for suffix in suffixes for prefix in _PREFIXES]
        found.append((kind, quantisation.of(names, facts.layers, _where(facts, kind))))
    return Stored(tuple(found))


def _where(facts: ModelFacts, kind: str) -> Optional[List[int]]:
    """The layers in which a kind stands, None when that isn't known."""
    if kind in ("dense", "shared_experts", "experts") and facts.layer_has_experts:
        wanted = kind != "dense"
        return [index for index, has in enumerate(facts.layer_has_experts) if has == wanted] or None
    if kind == "attention" or kind.startswith("state"):
        state = kind != "attention"
        kinds = facts.layer_kinds
        return [index for index, each in enumerate(kinds) if each != NONE and (each == LINEAR) == state] or None
    return None
