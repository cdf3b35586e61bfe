# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a diagnosis is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Dict, Tuple


@dataclass(frozen=True)
class Diagnosis:
    """Why a server did not come. ``kind`` is one of ``rules.KINDS``; ``evidence`` are one to three lines of its journal."""

    kind: str
    summary: str
    evidence: Tuple[str, ...]
    advice: str

    def to_result(self) -> Dict[str, Any]:
        """The contract's ``diagnosis``."""
        return {
            "kind": self.kind,
            "summary": self.summary,
            "evidence": list(self.evidence),
            "advice": self.advice,
        }
