# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Whether the model goes as far as ``max_model_len``."""

from __future__ import annotations

from typing import List, Optional

from .._model.length import length_limit
from .._model.parallel import Check
from .._model.types import ModelFacts
from .asked import Asked, fail, warn

# vllm/envs.py: with it a longer one is a warning in the log.
ALLOWED = "VLLM_ALLOW_LONG_MAX_MODEL_LEN"


def check_length(asked: Asked, facts: ModelFacts) -> List[Check]:
    """``max_model_len``, where more is asked for than vLLM derives from the model's configuration."""
    given, limit = asked.engine.max_model_len, length_limit(facts)
    if given is None or limit is None or given <= limit:
        return []
    detail = "max_model_len is {:,}, and {} gives the model {:,}".format(given, facts.source, limit)
    if may_exceed(asked):
        return [warn("max_model_len", "%s; %s lets vLLM go on" % (detail, ALLOWED), "Answers beyond the model's own length may be bad.")]
    return [fail("max_model_len", "%s; vLLM refuses that" % detail, "Set max_model_len to %d or less." % limit)]


def within_limit(asked: Asked, facts: ModelFacts, length: Optional[int]) -> Optional[int]:
    """A length that fits in memory, no longer than vLLM takes it."""
    limit = length_limit(facts)
    return length if length is None or limit is None or may_exceed(asked) else min(length, limit)


def may_exceed(asked: Asked) -> bool:
    """Whether the environment lets vLLM take more than the model's own length."""
    return str(asked.env.get(ALLOWED, "0")).strip().lower() in ("1", "true")
