# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A result held against a baseline, and the hosts of a fleet against each other."""

from __future__ import annotations

from typing import Any, Dict, List, Mapping, Optional, Sequence, Tuple

from .fingerprint import changed_parts
from .result import LATENCIES, STATISTICS, success_percent

# metric -> whether more is better. Whatever is not here is not compared.
METRICS: Dict[str, bool] = {
    "request_throughput": True,
    "output_throughput": True,
    "total_throughput": True,
    "output_throughput_per_gpu": True,
}
METRICS.update({"%s.%s" % (latency, statistic): False for latency in LATENCIES for statistic in STATISTICS})
# What a verdict rests on. A p99 of few requests is one request: it is shown, and judged only when asked for.
JUDGED = ("output_throughput", "ttft_ms.median", "tpot_ms.median", "e2e_ms.median")
# Less than this is the noise of a clock and a scheduler, whatever it is in percent.
_NOISE_MS = {"ttft_ms": 1.0, "e2e_ms": 1.0, "tpot_ms": 0.05, "itl_ms": 0.05}
# What must be alike in two results for their figures to mean the same. The seed only chooses the words.
_SAME_LOAD = ("input_tokens", "output_tokens")


def value_at(level: Mapping[str, Any], metric: str) -> Optional[float]:
    """``ttft_ms.median`` of a level; None where it isn't known."""
    name, _dot, statistic = metric.partition(".")
    found = level.get(name)
    if statistic:
        found = found.get(statistic) if isinstance(found, Mapping) else None
    return float(found) if isinstance(found, (int, float)) and not isinstance(found, bool) else None


def incomparable(result: Mapping[str, Any], baseline: Mapping[str, Any]) -> Optional[str]:
    """Why two results can't be held against each other, None when they can."""
    for name in ("tool", "model"):
        if result.get(name) != baseline.get(name):
            return "it was measured with the %s %s, this result with %s" % (name, baseline.get(name), result.get(name))
    ours, theirs = result.get("profile") or {}, baseline.get("profile") or {}
    for name in _SAME_LOAD:
        if ours.get(name) != theirs.get(name):
            return "it was measured with %s %s, this result with %s" % (name, theirs.get(name), ours.get(name))
    if not set(_by_level(result)) & set(_by_level(baseline)):
        return "it has none of the concurrency levels of this result (%s)" % ", ".join(map(str, _by_level(result)))
    return None


def compare(result: Mapping[str, Any], baseline: Mapping[str, Any]) -> Dict[str, Any]:
    """Every metric of every level that both have: ``comparisons`` of ``concurrency``, ``metric``, ``baseline``, ``result``,
    ``change_percent`` (what it is), ``worse_percent`` (how much worse that is; 0 where it is not), and ``changed`` parts."""
    found: List[Dict[str, Any]] = []
    before = _by_level(baseline)
    for concurrency, level in _by_level(result).items():
        for metric, more_is_better in METRICS.items():
            new = value_at(level, metric)
            old = value_at(before[concurrency], metric) if concurrency in before else None
            if old is None or new is None or old <= 0:
                continue
            change = 100.0 * (new - old) / old
            worse = -change if more_is_better else change
            noise = _NOISE_MS.get(metric.partition(".")[0], 0.0)
            found.append(
                {
                    "concurrency": concurrency,
                    "metric": metric,
                    "baseline": old,
                    "result": new,
                    "change_percent": round(change, 1),
                    "worse_percent": round(worse, 1) if worse > 0 and abs(new - old) > noise else 0.0,
                }
            )
    return {
        "comparisons": found,
        "changed": changed_parts(baseline.get("parts") or [], result.get("parts") or []),
        "only_in_result": [level for level in _by_level(result) if level not in before],
        "only_in_baseline": [level for level in before if level not in _by_level(result)],
    }


def verdict(
    result: Mapping[str, Any],
    baseline: Optional[Mapping[str, Any]],
    max_regression: float,
    min_success: float,
    judged: Sequence[str] = JUDGED,
) -> Dict[str, Any]:
    """``ok`` with ``reasons`` why not, ``regressions`` (the comparisons that are worse than allowed, worst first), and the comparison.

    ``max_regression`` and ``min_success`` are percent. Every level has to reach ``min_success``: a level that failed is not made
    good by the others.
    """
    reasons: List[str] = []
    for level in result["levels"]:
        if level["success_percent"] < min_success:
            reasons.append("concurrency %s: %s" % (level["concurrency"], _said_of_failures(level)))
    outcome: Dict[str, Any] = {"ok": False, "reasons": reasons, "regressions": [], "baseline": None,
                               "success_percent": round(success_percent(result), 3)}
    if baseline is not None:
        problem = incomparable(result, baseline)
        if problem is not None:
            reasons.append("the baseline can't be compared: %s" % problem)
        else:
            compared = compare(result, baseline)
            outcome["baseline"] = dict(compared, fingerprint=baseline.get("fingerprint"), measured=baseline.get("measured"))
            worse = [each for each in compared["comparisons"] if each["metric"] in judged and each["worse_percent"] > max_regression]
            outcome["regressions"] = sorted(worse, key=lambda each: -each["worse_percent"])
            reasons += [_said_of_regression(each) for each in outcome["regressions"]]
    outcome["ok"] = not reasons
    return outcome


def slow_hosts(results: Mapping[str, Mapping[str, Any]], percent: float) -> List[Dict[str, Any]]:
    """The hosts that make more than ``percent`` fewer tokens than the median of the others with the same deployment, slowest first.

    ``results`` are by host. A host's figure is its throughput relative to that median, averaged over the levels that all have. ``other``
    is the one host that it was compared with, None where there were several; ``measured`` is when the slow host's own result was made,
    which may be long ago where it stands.
    """
    groups: Dict[str, Dict[str, Mapping[str, Any]]] = {}
    for host, result in results.items():
        groups.setdefault(str(result.get("deployment")), {})[host] = result
    found = []
    for members in groups.values():
        for host in members:
            ratio, levels = _ratio_to_others(host, members)
            if ratio is not None and (1.0 - ratio) * 100.0 > percent:
                others = [name for name in members if name != host]
                found.append({"host": host, "below_percent": round((1.0 - ratio) * 100.0, 1), "compared_with": len(others),
                              "concurrency": levels, "other": others[0] if len(others) == 1 else None,
                              "measured": members[host].get("measured")})
    return sorted(found, key=lambda entry: -float(entry["below_percent"]))


def _ratio_to_others(host: str, members: Mapping[str, Mapping[str, Any]]) -> Tuple[Optional[float], List[int]]:
    ratios, levels = [], []
    for concurrency, level in _by_level(members[host]).items():
        own = _undisturbed_throughput(level)
        others = [_undisturbed_throughput(_by_level(result)[concurrency])
                  for name, result in members.items() if name != host and concurrency in _by_level(result)]
        known = sorted(value for value in others if value is not None)
        if own is None or not known:
            continue
        middle = len(known) // 2
        median = known[middle] if len(known) % 2 else (known[middle - 1] + known[middle]) / 2.0
        if median > 0:
            ratios.append(own / median)
            levels.append(concurrency)
    return (sum(ratios) / len(ratios) if ratios else None), levels


def _undisturbed_throughput(level: Mapping[str, Any]) -> Optional[float]:
    """None where requests failed: what fails makes no tokens, and is told as a failure."""
    return None if level.get("failed") else value_at(level, "output_throughput")


def _by_level(result: Mapping[str, Any]) -> Dict[int, Mapping[str, Any]]:
    return {int(level["concurrency"]): level for level in result.get("levels") or []}


def _said_of_failures(level: Mapping[str, Any]) -> str:
    kinds = ", ".join("%s x %s (%s)" % (each["count"], each["kind"], each["example"]) for each in level["errors"])
    return "%s of %s requests failed%s" % (level["failed"], level["requests"], ": " + kinds if kinds else "")


def _said_of_regression(each: Mapping[str, Any]) -> str:
    return "concurrency %s: %s is %s, %s percent worse than %s" % (
        each["concurrency"], each["metric"], _short(each["result"]), _short(each["worse_percent"]), _short(each["baseline"]))


def _short(value: float) -> str:
    return "%g" % round(value, 2)
