# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""When a result that was measured before may be told in place of a new one."""

from __future__ import annotations

from typing import Any, Mapping

from .._core.errors import GpuFleetError
from .target import Target

# One token of a server that may have a long queue before it.
_ANSWER_S = 60.0


def refuse_silent(target: Target, stored: Mapping[str, Any]) -> None:
    """Raise GpuFleetError where the server does not answer one completion of one token now: what it once did is no use then."""
    answer = target.server.complete(target.model, _ANSWER_S)
    # Any other kind means that it takes no completions, and these were measured.
    if answer.ok and answer.kind == "completion":
        return
    raise GpuFleetError(
        "%s has a result of %s, but does not answer a completion now: %s. Look at the server's journal, then run again; with force it "
        "is measured anew." % (target.name, stored.get("measured"), answer.detail or "it takes none any more"),
        target=target.name,
    )


def refuse_itself(target: Target, stored: Mapping[str, Any], baseline: Mapping[str, Any]) -> None:
    """Raise GpuFleetError where the result that stands is the baseline: held against itself, whatever the server does would be well."""
    if all(stored.get(name) == baseline.get(name) for name in ("fingerprint", "measured", "levels")):
        raise GpuFleetError(
            "baseline: it is the very result that stands for %s, of %s, and held against itself it says nothing. Leave force unset or set "
            "it to true, so that the server is measured now, or give another baseline." % (target.name, stored.get("measured")),
            target=target.name,
        )
