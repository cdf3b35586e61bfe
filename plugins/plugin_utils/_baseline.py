# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Which earlier result a host is held against: found on the controller, in a result or in a report of the playbook."""

from __future__ import annotations

import json
import os
from typing import Any, Dict, Mapping, Optional

from ._report import plain


class BaselineError(Exception):
    """A baseline that can't be used; the text says why and what to do."""


def read(path: str) -> Any:
    """The JSON value of a file on the controller; a relative path is taken from the current directory. Raises BaselineError."""
    path = os.path.abspath(os.path.expanduser(path))
    try:
        with open(path, encoding="utf-8") as handle:
            return json.load(handle)
    except OSError as exc:
        raise BaselineError("baseline: %s cannot be read on the controller: %s." % (path, exc.strerror)) from exc
    except ValueError as exc:
        raise BaselineError("baseline: %s is no JSON: %s." % (path, exc)) from exc


def choose(document: Any, host: str, service: Optional[str]) -> Dict[str, Any]:
    """The result for a host: the document itself, or of a report the host's own, or one of another host with the same service.

    ``service`` is what is to be measured, None where it isn't named. Of several results of other hosts the median one is taken.
    Raises BaselineError.
    """
    if isinstance(document, Mapping) and isinstance(document.get("levels"), list):
        found: Dict[str, Any] = plain(document)
        return found
    by_host = results_of(document)
    if not by_host:
        raise BaselineError(
            "baseline: there is no result of a benchmark in it. Give a result, or the JSON report of an earlier run of the playbook "
            "benchmark."
        )
    if host in by_host:
        return by_host[host]
    others = [result for result in by_host.values() if service in (None, result.get("service"))]
    deployments = {str(result.get("deployment")) for result in others}
    if not others or len(deployments) > 1:
        raise BaselineError(
            "baseline: it has no result of %s, and %s. Give the result that it is to be held against."
            % (host, "those of other hosts are of %d deployments" % len(deployments) if others else "no other host's is of %s" % service)
        )
    ordered = sorted(others, key=lambda result: float((result.get("peak") or {}).get("output_throughput") or 0.0))
    return ordered[len(ordered) // 2]


def results_of(document: Any) -> Dict[str, Dict[str, Any]]:
    """The results of a report by host; those that were not measured are left out."""
    hosts = document.get("hosts") if isinstance(document, Mapping) else None
    found: Dict[str, Dict[str, Any]] = {}
    for host, outcome in (hosts if isinstance(hosts, Mapping) else {}).items():
        result = outcome.get("result") if isinstance(outcome, Mapping) else None
        if isinstance(result, Mapping) and isinstance(result.get("levels"), list):
            found[str(host)] = plain(result)
    return found
