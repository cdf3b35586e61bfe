# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The one family of errors that the core raises."""

from __future__ import annotations

from typing import Any, Dict


class GpuFleetError(Exception):
    """Something a person has to act on.

    ``msg`` says what is wrong, where, and what to do next. ``result`` carries what was already done or seen, with
    the names that the module's RETURN documents, so that a failure never hides what happened before it.
    """

    def __init__(self, msg: str, **result: Any) -> None:
        super().__init__(msg)
        self.msg = msg
        self.result: Dict[str, Any] = result
