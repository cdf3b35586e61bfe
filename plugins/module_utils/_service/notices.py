# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What somebody should hear of a declaration or of its host although nothing is wrong enough to be refused."""

from __future__ import annotations

import os
from typing import List, Optional

from .._server.ready import ReadyState
from .look import Look
from .plan import Plan
from .ports import Ports
from .request import Request


def notices(request: Request, seen: Look, plan: Plan, ports: Ports) -> List[str]:
    """Warnings, in the same words in check mode and for real."""
    found = []
    if seen.doubt is not None and not plan.has("start"):
        found.append(seen.doubt)
    if not plan.has("start"):
        found += unproven(seen.serves)
    if request.declares_files and seen.account.uid == 0:
        found.append(
            "%s runs as user %s, with root's rights: whoever breaks into its server has the host. Leave `user` out, and a system user "
            "`vllm` is made and used; the model's files have to be readable for it." % (seen.view.unit, request.user)
        )
    if request.state == "absent":
        found += _left_behind(seen, ports)
    return found


def unproven(ready: Optional[ReadyState]) -> List[str]:
    """A server that counts as ready although no request could make its engine compute, as with one that only transcribes."""
    if ready is None or not ready.ready or ready.completion is None or ready.completion.kind != "none":
        return []
    return ["It answers /health and /v1/models, but that it computes is not proven: %s. Send it a request of its own kind." %
            ready.completion.detail.rstrip(".")]


def _left_behind(seen: Look, ports: Ports) -> List[str]:
    """A drop-in that somebody else put there would count again for a service that is declared under this name later."""
    directory = os.path.join(ports.paths.units, seen.view.unit + ".d")
    going = {change.wanted.path for change in seen.view.changes}
    try:
        there = sorted(os.path.join(directory, name) for name in os.listdir(directory))
    except (FileNotFoundError, NotADirectoryError):
        return []
    kept = [path for path in there if path not in going]
    if not kept:
        return []
    return [
        "%s stays, since this collection did not write it. A service that is declared under this name later would have it in force; "
        "remove it by hand if that is not meant." % ", ".join(kept)
    ]


def missing_units(request: Request, seen: Look, ports: Ports) -> List[str]:
    """The units listed in ``replace`` that are not there: a list may be for many hosts, but it may be misspelt as well."""
    units = [unit for unit in request.replace_units if unit != seen.view.unit]
    if not units:
        return []
    statuses = ports.systemd.statuses(units)
    return [unit for unit in units if not statuses[unit].exists]
