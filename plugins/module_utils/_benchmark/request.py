# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What is asked of one benchmark, checked."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Mapping, Optional, Tuple

from .._core.errors import GpuFleetError
from .compare import JUDGED, METRICS
from .profile import Profile, to_profile


@dataclass(frozen=True)
class Request:
    """What is asked of one run; as the module's options have it."""

    service: Optional[str]
    base_url: Optional[str]
    model: Optional[str]
    api_key: Optional[str]
    tool: str
    executable: Optional[str]
    tokenizer: Optional[str]
    user: Optional[str]
    profile: Profile
    baseline: Optional[Mapping[str, Any]]
    max_regression: float
    judged: Tuple[str, ...]
    min_success: float
    force: bool
    request_timeout: float
    timeout: float


def to_request(params: Mapping[str, Any]) -> Request:
    """The module's parameters, checked. Raises GpuFleetError."""
    for name, least, most in (("max_regression", 0.0, 1e6), ("min_success", 0.0, 100.0)):
        if not least <= params[name] <= most:
            raise GpuFleetError("%s: %g is no percentage from %g to %g." % (name, params[name], least, most))
    for name in ("request_timeout", "timeout"):
        if not 0 < params[name] <= 86400:
            raise GpuFleetError("%s: %g is no number of seconds over 0 and up to a day." % (name, params[name]))
    unknown = [name for name in params["judged"] or () if name not in METRICS]
    if unknown:
        raise GpuFleetError("judged: there is no metric %s. There are: %s." % (", ".join(unknown), ", ".join(METRICS)))
    baseline = params["baseline"]
    if baseline is not None and (not isinstance(baseline, Mapping) or not isinstance(baseline.get("levels"), list)):
        raise GpuFleetError("baseline: this is no result of a benchmark: it has no levels. Give the result of an earlier run.")
    values = {name: params[name] for name in Request.__dataclass_fields__ if name not in ("profile", "judged", "force")}
    # Who holds a server against a baseline wants to know how it is now: heat, a neighbour and a bad card change no fingerprint.
    values["force"] = params["force"] if params["force"] is not None else baseline is not None
    return Request(profile=to_profile(params["profile"] or {}), judged=tuple(params["judged"] or JUDGED), **values)
