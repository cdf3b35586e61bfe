# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Results on the host: one file for each fingerprint, written whole or not at all."""

from __future__ import annotations

import json
import os
import re
from typing import Any, Dict, Optional

from .._core.errors import GpuFleetError
from .._core.files import WantedFile, apply_change, compare, read_bytes
from .result import SCHEMA_VERSION

DIRECTORY = "/var/lib/gpufleet/benchmarks"
_NAME = re.compile(r"^[0-9a-f]{32}\Z")


class ResultStore:
    """``<directory>/<fingerprint>.json``. What is in it is no secret: anybody on the host may read it."""

    def __init__(self, directory: str = DIRECTORY) -> None:
        self._directory = directory

    def path(self, fingerprint: str) -> str:
        """Where the result of a fingerprint is, or would be."""
        if not _NAME.match(fingerprint):
            raise GpuFleetError("%r is no fingerprint." % fingerprint)
        return os.path.join(self._directory, fingerprint + ".json")

    def load(self, fingerprint: str) -> Optional[Dict[str, Any]]:
        """The result that stands, None where none does. One that can't be used is as good as none: it is measured again."""
        raw = read_bytes(self.path(fingerprint))
        if raw is None:
            return None
        try:
            found = json.loads(raw.decode("utf-8"))
        except ValueError:
            return None
        usable = isinstance(found, dict) and found.get("schema_version") == SCHEMA_VERSION and found.get("fingerprint") == fingerprint
        return found if usable and isinstance(found.get("levels"), list) else None

    def save(self, result: Dict[str, Any]) -> str:
        """Keep a result in the place of the one before it; returns its path. Raises GpuFleetError."""
        path = self.path(str(result["fingerprint"]))
        text = json.dumps(result, indent=1, allow_nan=False) + "\n"
        change = compare(WantedFile(path, text.encode("utf-8")))
        if change is not None:
            apply_change(change)
        return path

    def drop(self, fingerprint: str) -> None:
        """Have no result of it any more: a newer one has proven it wrong. Raises GpuFleetError."""
        change = compare(WantedFile(self.path(fingerprint), None))
        if change is not None:
            apply_change(change)
