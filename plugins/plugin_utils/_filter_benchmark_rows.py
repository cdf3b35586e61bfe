# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the filters of ``benchmark_rows`` do."""

from __future__ import annotations

from typing import Any, Dict, List, Mapping, Optional

from ansible.errors import AnsibleFilterError

from ansible_collections.gpufleet.vllm.plugins.module_utils._benchmark.compare import value_at
from ansible_collections.gpufleet.vllm.plugins.plugin_utils._benchmark import said_of_others

_FAILED_BEFORE = "it had failed before this playbook, in the same run"


def benchmark_rows(results: Any, slow: Any = (), plans: Any = None, left_out: Any = ()) -> List[Dict[str, Any]]:
    """One row per host for the table and the report of a benchmark."""
    if not isinstance(results, Mapping):
        raise AnsibleFilterError("benchmark_rows takes a dictionary of results by host, not %s" % type(results).__name__)
    below = {str(each["host"]): each for each in slow or ()}
    plans = plans if isinstance(plans, Mapping) else {}
    rows = [_row(str(host), _mapping(found), below.get(str(host)), _mapping(plans.get(host))) for host, found in results.items()]
    return [dict(row, detail=_FAILED_BEFORE) if row["host"] in left_out else row for row in rows]


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _row(host: str, outcome: Mapping[str, Any], slow: Optional[Mapping[str, Any]], plan: Mapping[str, Any]) -> Dict[str, Any]:
    if not outcome and (plan.get("failed") or plan.get("unreachable")):
        outcome = plan  # it was not even tried
    what, fine = _verdict(outcome, plan)
    result = _mapping(outcome.get("result"))
    levels = result.get("levels") or []
    peak = _mapping(result.get("peak"))
    first = levels[0] if levels else {}
    return {
        "host": host,
        "server": outcome.get("target") or plan.get("target"),
        "result": "%s, SLOW" % what if slow else what,
        "ok": fine,
        "slow": bool(slow),
        "peak_tokens_s": peak.get("output_throughput"),
        "peak_concurrency": peak.get("concurrency"),
        "peak_tokens_s_per_gpu": peak.get("output_throughput_per_gpu"),
        "lowest_concurrency": first.get("concurrency"),
        "tokens_s": first.get("output_throughput"),
        "ttft_ms": value_at(first, "ttft_ms.median"),
        "tpot_ms": value_at(first, "tpot_ms.median"),
        "success_percent": _mapping(outcome.get("verdict")).get("success_percent"),
        "detail": _detail(outcome, slow, fine, plan),
        "fingerprint": outcome.get("fingerprint"),
        "deployment": outcome.get("deployment") or plan.get("deployment"),
    }


def _verdict(outcome: Mapping[str, Any], plan: Mapping[str, Any]) -> "tuple[str, bool]":
    """(the word for it, whether the host is as it should be)."""
    if outcome.get("unreachable"):
        return "UNREACHABLE", False
    if outcome.get("lock_holder") is not None or outcome.get("under_way") is not None:
        return "BUSY", False
    judgement = outcome.get("verdict")
    if isinstance(judgement, Mapping):
        if judgement.get("ok"):
            return ("measured" if outcome.get("changed") else "stands"), True
        failing = any(level["failed"] for level in outcome["result"]["levels"]) and judgement.get("success_percent", 100.0) < 100.0
        if judgement.get("regressions"):
            return "REGRESSION", False
        return ("FAILED REQUESTS" if failing else "FAILED"), False
    if outcome.get("failed"):
        return "FAILED", False
    if outcome.get("changed"):
        return "would measure", True
    return ("like another host", True) if plan.get("deployment") else ("not run", False)


def _detail(outcome: Mapping[str, Any], slow: Optional[Mapping[str, Any]], fine: bool, plan: Mapping[str, Any]) -> Optional[str]:
    parts = []
    result = _mapping(outcome.get("result"))
    if result and not outcome.get("changed"):
        # Whatever follows is of that time, and not of this run.
        parts.append("measured %s" % result.get("measured"))
    if slow:
        parts.append("%.1f percent below %s" % (slow["below_percent"], said_of_others(slow)))
    if not fine:
        reasons = _mapping(outcome.get("verdict")).get("reasons") or str(outcome.get("msg") or plan.get("msg") or "").splitlines()[:1]
        parts += [str(reason) for reason in reasons[:2]]
        if len(reasons) > 2:
            parts.append("and %d more" % (len(reasons) - 2))
    parts += [str(note) for note in result.get("notes") or []]
    if outcome.get("untried"):
        parts.append(str(outcome["untried"]))
    return "; ".join(parts) or None
