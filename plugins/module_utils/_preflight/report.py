# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a preflight comes to."""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from typing import Any, Dict, List, Mapping, Tuple

from .._model.parallel import Check

# Every name that the module's result has, also when nothing is known of it.
PLAN_NAMES = (
    "weights_mib_per_gpu",
    "kv_mib_per_token_per_gpu",
    "kv_tokens",
    "max_concurrency",
    "warmup_mib",
    "needed_mib_per_gpu",
    "free_mib_needed",
)
SUGGEST_NAMES = ("max_model_len", "max_num_seqs")
# No path of a real model is a longer word, and no list of ours a longer text.
_SHOWN, _MOST = 100, 2000
_LONG_WORD = re.compile(r"\S{513,}")


@dataclass(frozen=True)
class Report:
    """The checks in the order in which they were made, the memory plan, and the sizes that would work.

    ``verdict`` is the plan's: ``fits``, ``tight``, ``does_not_fit`` or ``unknown``. ``about`` is what its figures hold for.
    """

    checks: Tuple[Check, ...]
    plan: Mapping[str, Any] = field(default_factory=dict)
    suggest: Mapping[str, Any] = field(default_factory=dict)
    verdict: str = "unknown"
    about: Mapping[str, Any] = field(default_factory=dict)

    @property
    def ok(self) -> bool:
        """Whether nothing says that it cannot work."""
        return not self.failed

    @property
    def failed(self) -> List[Check]:
        """The checks that say it cannot work."""
        return [check for check in self.checks if check.status == "fail"]

    @property
    def notable(self) -> List[Check]:
        """The checks that somebody has to read."""
        return [check for check in self.checks if check.status in ("fail", "warn")]

    def to_result(self) -> Dict[str, Any]:
        """The contract's result: unknown numbers are null."""
        plan: Dict[str, Any] = dict.fromkeys(PLAN_NAMES)
        plan.update(self.plan)
        suggest: Dict[str, Any] = {"tensor_parallel_size": [], "tensor_parallel_size_that_fits": [], **dict.fromkeys(SUGGEST_NAMES)}
        suggest.update(self.suggest)
        return {
            "ok": self.ok,
            "checks": [clipped(check).to_result() for check in self.checks],
            "plan": plan,
            "suggest": suggest,
            "verdict": self.verdict,
            "about": dict(self.about),
        }


def line_of(check: Check) -> str:
    """A check as one line: what, the numbers, and what to do."""
    check = clipped(check)
    return "%s: %s.%s" % (check.id, check.detail.rstrip("."), " " + check.fix if check.fix else "")


def clipped(check: Check) -> Check:
    """The same in a length that somebody reads. Configurations may hold anything, and messages repeat what stands there."""
    fix = None if check.fix is None else _clip(check.fix)
    return replace(check, detail=_clip(check.detail), fix=fix)


def _clip(text: str) -> str:
    text = _LONG_WORD.sub(lambda found: "%s... (%d characters)" % (found.group()[:_SHOWN], len(found.group())), text)
    return text if len(text) <= _MOST else "%s... (%d characters)" % (text[:_MOST], len(text))
