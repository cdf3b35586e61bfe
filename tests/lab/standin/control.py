# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""For tests: tell the stand-in servers of one host how to behave, also while they run."""

from __future__ import annotations

import json
import os
import secrets
from pathlib import Path
from typing import Any

from .behaviours import Misused, validated

__all__ = ["Misused", "Standin"]


class Standin:
    """The scenario file of one host; directory is what the host sees as /run/vllm-standin."""

    def __init__(self, directory: Path) -> None:
        self.path = Path(directory) / "scenario.json"

    def behave(self, model: str = "*", **behaviours: Any) -> None:
        """Set behaviours of the model served under this name, beside those that are set. None takes one back.

        Raises Misused for what the stand-in doesn't know.
        """
        scenario = self.scenario()
        merged = scenario.get(model, {}) | behaviours
        scenario[model] = {name: value for name, value in merged.items() if value is not None}
        scenario["_epoch"] = secrets.token_hex(4)  # starts are counted anew
        self._write(scenario)

    def clear(self, model: str | None = None) -> None:
        """Take back all behaviours, or those of one model."""
        scenario = {} if model is None else self.scenario()
        if model is not None:
            scenario.pop(model, None)
        scenario["_epoch"] = secrets.token_hex(4)
        self._write(scenario)

    def scenario(self) -> dict[str, Any]:
        """What is set now, by model."""
        try:
            return validated(json.loads(self.path.read_text(encoding="utf-8")), str(self.path))
        except FileNotFoundError:
            return {}

    def _write(self, scenario: dict[str, Any]) -> None:
        validated(scenario, str(self.path))
        self.path.parent.mkdir(parents=True, exist_ok=True)
        temporary = self.path.with_name(self.path.name + ".new")
        temporary.write_text(json.dumps(scenario, indent=1), encoding="utf-8")
        temporary.chmod(0o644)
        os.replace(temporary, self.path)
