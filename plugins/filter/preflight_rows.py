# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The filters ``preflight_rows`` and ``preflight_findings``; documented in the files of these names beside this one."""

from __future__ import annotations

from typing import Any, Callable, Dict, List, Mapping, Optional, Sequence, Tuple

from ansible.errors import AnsibleFilterError

_SHOWN_HOSTS = 4
_VERDICTS = {"fits": "fits", "tight": "tight", "does_not_fit": "does not fit", "unknown": "not known"}


def preflight_rows(results: Any) -> List[Dict[str, Any]]:
    """One row per host: what would run where, what it takes, and whether that fits."""
    return [_row(host, result) for host, result in _by_host(results, "preflight_rows")]


def preflight_findings(results: Any) -> List[Dict[str, Any]]:
    """One row for each thing that somebody has to know, with all the hosts it holds for; what fails comes first."""
    hosts = _by_host(results, "preflight_findings")
    found: Dict[Tuple[str, str, str, Optional[str]], List[str]] = {}
    for host, result in hosts:
        for check in _checks(result):
            if check.get("status") in ("fail", "warn"):
                key = (str(check["status"]), str(check.get("id")), str(check.get("detail")), check.get("fix") or None)
                found.setdefault(key, []).append(host)
    rows = [
        {"hosts": _hosts(names, len(hosts)), "check": key[1], "status": key[0].upper(), "detail": key[2], "fix": key[3]}
        for key, names in found.items()
    ]
    return sorted(rows, key=lambda row: row["status"] != "FAIL")


def _by_host(results: Any, who: str) -> List[Tuple[str, Mapping[str, Any]]]:
    if not isinstance(results, Mapping):
        raise AnsibleFilterError("%s takes a dictionary of results by host, not %s" % (who, type(results).__name__))
    return [(str(host), result if isinstance(result, Mapping) else {}) for host, result in results.items()]


def _preflight(result: Mapping[str, Any]) -> Mapping[str, Any]:
    """What vllm_service has under ``preflight``, and vllm_preflight at the top."""
    found = result.get("preflight") or (result if "checks" in result else {})
    return found if isinstance(found, Mapping) else {}


def _checks(result: Mapping[str, Any]) -> List[Mapping[str, Any]]:
    checks = _preflight(result).get("checks")
    if isinstance(checks, Sequence) and not isinstance(checks, str):
        return [check for check in checks if isinstance(check, Mapping)]
    if result.get("unreachable") or result.get("failed"):
        lines = [line.strip() for line in str(result.get("msg") or "").splitlines() if line.strip()]
        word = "unreachable" if result.get("unreachable") else "host"
        return [{"id": word, "status": "fail", "detail": lines[0] if lines else "no answer", "fix": None}]
    return []


def _row(host: str, result: Mapping[str, Any]) -> Dict[str, Any]:
    found = _preflight(result)
    plan, about = found.get("plan") or {}, found.get("about") or {}
    return {
        "host": host,
        "gpus": _ranges(about.get("gpus") or []),
        "split": _split(about),
        "weights": _gib(plan.get("weights_mib_per_gpu")),
        "kv_tokens": _number(plan.get("kv_tokens")),
        "requests": _requests(plan.get("max_concurrency"), about.get("max_model_len")),
        "must_be_free": _gib(plan.get("free_mib_needed")),
        "free": _gib(about.get("free_mib_per_gpu")),
        "verdict": _verdict(result, found),
    }


def _verdict(result: Mapping[str, Any], found: Mapping[str, Any]) -> str:
    if result.get("unreachable"):
        return "NO ANSWER"
    if result.get("failed"):
        return "REFUSED"
    if not found:
        return "not checked"
    if not found.get("ok"):
        return "FAILS"
    return _VERDICTS.get(str(found.get("verdict")), "not known")


def _split(about: Mapping[str, Any]) -> Optional[str]:
    """Over how many GPUs, and in which way: ``4``, or ``TP 4, PP 2, EP``."""
    tensor = about.get("tensor_parallel_size")
    if tensor is None:
        return None
    parts = ["TP %s" % tensor]
    parts += ["%s %s" % (short, about[name]) for short, name in (("PP", "pipeline_parallel_size"), ("DP", "data_parallel_size"))
              if (about.get(name) or 1) != 1]
    return ", ".join(parts + (["EP"] if about.get("expert_parallel") else []))


def _requests(concurrency: Any, length: Any) -> Optional[str]:
    if not _is_number(concurrency):
        return None
    return "%.1f x %s" % (concurrency, _number(length)) if _is_number(length) else "%.1f" % concurrency


def _gib(mib: Any) -> Optional[str]:
    return "%.1f GiB" % (mib / 1024) if _is_number(mib) else None


def _number(value: Any) -> Optional[str]:
    return "{:,.0f}".format(value) if _is_number(value) else None


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _ranges(numbers: Sequence[Any]) -> Optional[str]:
    """``0-3, 6`` of 0, 1, 2, 3, 6."""
    runs: List[List[int]] = []
    for number in sorted(number for number in numbers if isinstance(number, int)):
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ", ".join(str(first) if first == last else "%d-%d" % (first, last) for first, last in runs) or None


def _hosts(names: Sequence[str], total: int) -> str:
    if len(names) == total and total > 1:
        return "all %d" % total
    if len(names) > _SHOWN_HOSTS:
        return "%s and %d more" % (", ".join(names[: _SHOWN_HOSTS - 1]), len(names) - _SHOWN_HOSTS + 1)
    return ", ".join(names)


class FilterModule:
    """What Ansible looks for."""

    def filters(self) -> Dict[str, Callable[..., Any]]:
        """The filters of this file by name."""
        return {"preflight_rows": preflight_rows, "preflight_findings": preflight_findings}
