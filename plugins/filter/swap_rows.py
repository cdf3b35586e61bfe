# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The filters ``swap_results`` and ``swap_rows``; documented in the files of these names beside this one."""

from __future__ import annotations

from typing import Any, Callable, Dict, List, Mapping, Optional, Sequence

from ansible.errors import AnsibleFilterError


def swap_results(hosts: Any, hostvars: Any, plan: bool = False) -> Dict[str, Dict[str, Any]]:
    """What the swap came to on each host; an empty dictionary for a host that was not touched."""
    if isinstance(hosts, str) or not isinstance(hosts, Sequence):
        raise AnsibleFilterError("swap_results takes a list of host names, not %s" % type(hosts).__name__)
    return {str(host): _outcome(hostvars[host], plan) for host in hosts}


def _outcome(variables: Mapping[str, Any], plan: bool) -> Dict[str, Any]:
    result = dict(variables.get("vllm_service_result") or {})
    if plan:
        return result
    if "swap_model_failure" in variables:
        return dict(variables["swap_model_failure"])
    if variables.get("swap_model_go"):
        return result
    # It was only planned here. Nothing to do, and it serves: that was the whole swap. Anything else was never begun.
    unchanged = "actions" in result and not result["actions"] and result.get("ready")
    return result if unchanged else {}


def swap_rows(results: Any, model: str, plan: bool = False) -> List[Dict[str, Any]]:
    """One row per host for the table and the report of a swap."""
    if not isinstance(results, Mapping):
        raise AnsibleFilterError("swap_rows takes a dictionary of results by host, not %s" % type(results).__name__)
    row = _plan_row if plan else _row
    return [row(str(host), model, result if isinstance(result, Mapping) else None) for host, result in results.items()]


def _plan_row(host: str, model: str, result: Optional[Mapping[str, Any]]) -> Dict[str, Any]:
    if result is None or "actions" not in result:
        return {"host": host, "now": None, "then": model, "plan": _first_line(result) or "no answer"}
    steps = _steps(result["actions"])
    if result.get("failed"):
        steps = "REFUSED: %s" % _first_line(result)
    now = ", ".join(str(name) for name in result.get("serving_before") or []) or None
    return {"host": host, "now": now, "then": model, "plan": steps or "nothing to do"}


def _steps(actions: List[Mapping[str, Any]]) -> str:
    words = {"stop": "stop %s", "start": "start %s", "disable": "disable %s", "enable": "enable %s", "end_process": "end pid %s",
             "follow": "follow what %s is doing", "prove_free": "prove GPU %s free", "drain": "drain %s", "create_user": "create user %s"}
    written = len([action for action in actions if action["action"] in ("write", "remove")])
    steps = ["write %d file%s" % (written, "" if written == 1 else "s")] if written else []
    steps += [words[action["action"]] % action["target"] for action in actions if action["action"] in words]
    return ", ".join(steps)


def _row(host: str, model: str, result: Optional[Mapping[str, Any]]) -> Dict[str, Any]:
    row: Dict[str, Any] = {"host": host, "before": None, "after": None, "result": "untouched", "downtime_s": None, "total_s": None}
    row["detail"] = None
    if not result:
        row["detail"] = "not begun"
        return row
    replaced = [str(entry.get("name")) for entry in result.get("replaced") or []]
    row["before"] = ", ".join(str(name) for name in result.get("serving_before") or replaced) or None
    timings = result.get("timings") or {}
    row["total_s"] = timings.get("total")
    row["downtime_s"] = timings.get("downtime") or None
    if result.get("unreachable"):
        row.update(result="unreachable", detail=_first_line(result))
    elif result.get("failed"):
        row.update(_failed(result, row["before"]), detail=_first_line(result))
    else:
        served = result.get("served_models") or []
        row.update(after=", ".join(str(name) for name in served) or model)
        row.update(_done(result, bool(replaced)))
    return row


def _failed(result: Mapping[str, Any], before: Optional[str]) -> Dict[str, Any]:
    if "actions" not in result:
        # No word of the module itself: the connection broke, or the host failed. What it came to is not known.
        return {"result": "UNKNOWN"}
    if result.get("rolled_back"):
        return {"result": "rolled back", "after": before}
    if result.get("changed") or result.get("diagnosis"):
        timings = result.get("timings") or {}
        if "downtime" in timings and timings["downtime"] is None:
            return {"result": "FAILED", "downtime_s": "down"}
        return {"result": "FAILED"}
    return {"result": "refused", "after": before}


def _done(result: Mapping[str, Any], replaced: bool) -> Dict[str, Any]:
    """What a run that succeeded was, in a word."""
    actions = [(action.get("action"), action.get("target")) for action in result.get("actions") or []]
    # A start that took no time is one of check mode.
    starts = any(action == "start" for action, _target in actions)
    would = starts and not (result.get("timings") or {}).get("load")
    if replaced:
        return {"result": "would swap" if would else "swapped"}
    if ("stop", result.get("unit")) in actions:
        return {"result": "would restart" if would else "restarted"}
    if starts:
        return {"result": "would start" if would else "started"}
    return {"result": "updated" if result.get("changed") else "ok, unchanged"}


def _first_line(result: Optional[Mapping[str, Any]]) -> Optional[str]:
    if not result:
        return None
    lines = str(result.get("msg") or "").strip().splitlines()
    if len(lines) > 1 and lines[0].endswith(":"):  # what follows is a list, and its entries are the news
        entries = [line.strip().lstrip("- ") for line in lines[1:] if line.strip().startswith("- ")]
        if entries:
            return entries[0] + (" (and %d more)" % (len(entries) - 1) if len(entries) > 1 else "")
    return lines[0] if lines else None


class FilterModule:
    """What Ansible looks for."""

    def filters(self) -> Dict[str, Callable[..., Any]]:
        """The filters of this file by name."""
        return {"swap_results": swap_results, "swap_rows": swap_rows}
