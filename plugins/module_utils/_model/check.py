# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The outcome of one rule."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Dict, Optional

PASS, WARN, FAIL, SKIP = "pass", "warn", "fail", "skip"


@dataclass(frozen=True)
class Check:
    """One rule held against one service. ``status`` is ``pass``, ``warn``, ``fail`` or ``skip``."""

    id: str
    status: str
    detail: str
    fix: Optional[str] = None

    def to_result(self) -> Dict[str, Any]:
        """The contract's entry of ``checks``."""
        return {"id": self.id, "status": self.status, "detail": self.detail, "fix": self.fix}


@dataclass(frozen=True)
class Split:
    """The parallel sizes that rules are held against.

    ``encoder_data_parallel`` is ``mm_encoder_tp_mode: data``. ``refines`` is for versions that re-cut or pad on load what
    earlier ones refuse: a rule of that kind then warns.
    """

    tp: int
    pp: int = 1
    dp: int = 1
    dcp: int = 1
    expert_parallel: bool = False
    encoder_data_parallel: bool = False
    refines: bool = False


def counted(number: int, what: str) -> str:
    """``1 GPU``, ``2 GPUs``."""
    return "%d %s%s" % (number, what, "" if number == 1 else "s")
