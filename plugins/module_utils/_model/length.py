# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The longest max_model_len that vLLM derives from a configuration, and takes where none is given.

Source: ``vllm/config/model.py`` (_get_and_verify_max_len), 0.8 to 0.33.
"""

from __future__ import annotations

import math
from typing import Any, List, Mapping, Optional, Tuple

from .types import ModelFacts
from .values import positive, size, text

# vLLM takes the least of these; the model's class may call the first by other names.
_KEYS = ("model_max_length", "max_target_positions", "max_seq_length", "seq_len", "max_sequence_length", "seq_length")
# Kinds of scaling whose length the configuration has counted in already, and kinds that scale none.
_COUNTED = ("su", "longrope", "llama3", "default", "mrope")


def length_limit(facts: ModelFacts) -> Optional[int]:
    """Tokens; None where the configuration doesn't say, or says it in a way that isn't understood.

    vLLM refuses a larger max_model_len unless VLLM_ALLOW_LONG_MAX_MODEL_LEN is set.
    """
    if facts.derived_length is not None:
        return facts.derived_length
    return None if facts.length_unclear else facts.max_position_embeddings


def derived_length(config: Mapping[str, Any], model_type: Optional[str]) -> Tuple[Optional[int], bool]:
    """(tokens, whether something about them isn't understood) of a language model's configuration."""
    own = positive(config.get("model_max_length"))
    if own is not None:
        found: Optional[int] = own  # Command-R: its positions say less than it was made for
    else:
        said = [size(config, "max_position_embeddings")] + [positive(config.get(name)) for name in _KEYS]
        found = min((each for each in said if each is not None), default=None)
    if "gemma3" in (model_type or ""):
        return found, False  # counted in already
    factor = 1.0
    for scaling in _scalings(config):
        kind = (text(scaling.get("rope_type")) or text(scaling.get("type")) or "default").lower()
        if kind in _COUNTED:
            continue
        each = scaling.get("factor", 1.0)
        if isinstance(each, bool) or not isinstance(each, (int, float)) or not 1 <= each <= 2**20:
            return None, True
        if kind == "yarn":
            found = positive(scaling.get("original_max_position_embeddings")) or found
        factor = max(factor, float(each))
    if found is None:
        return None, False
    length = math.floor(found * factor)
    return (length, False) if 1 <= length <= 2**40 else (None, True)


def _scalings(config: Mapping[str, Any]) -> List[Mapping[str, Any]]:
    """By any of their names; some models have one for each kind of layers."""
    found: List[Mapping[str, Any]] = []
    for name in ("rope_scaling", "rope_parameters"):
        value = config.get(name)
        if not isinstance(value, Mapping) or not value:
            continue
        nested = [part for part in value.values() if isinstance(part, Mapping)]
        found += nested if nested and "rope_type" not in value and "type" not in value else [value]
    yarn = config.get("yarn")  # params.json
    if isinstance(yarn, Mapping) and yarn:
        found.append({"rope_type": "yarn", **yarn})
    return found
