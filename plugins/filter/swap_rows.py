# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The filter ``swap_rows``; documented in the file of this name beside this one."""

from __future__ import annotations

from typing import Any, Callable, Dict, List, Mapping, Optional

from ansible.errors import AnsibleFilterError

# Of a swap's timings those that are phases, in order.
_PHASES = ("preflight", "warm", "drain", "stop", "settle", "load", "steady")
# How a roll-back that failed begins what it says (``Undone.text``).
_NOT_PUT_BACK = "PUTTING BACK WHAT WAS THERE BEFORE FAILED"
_NOT_BEGUN = "not begun"
_OUT = "it had failed before this swap, in the same run"
_LEFT_BY = "not begun, as %s had failed before this swap, in the same run"


def swap_rows(results: Any, model: str, plan: bool = False) -> List[Dict[str, Any]]:
    """One row per host for the table and the report of a swap."""
    if not isinstance(results, Mapping):
        raise AnsibleFilterError("swap_rows takes a dictionary of results by host, not %s" % type(results).__name__)
    row = _plan_row if plan else _row
    rows = [row(str(host), model, result if isinstance(result, Mapping) else None) for host, result in results.items()]
    failed_before = sorted(str(host) for host, result in results.items() if isinstance(result, Mapping) and result.get("failed_before"))
    if failed_before and not plan:
        _say_why(rows, failed_before)
    return rows


def _say_why(rows: List[Dict[str, Any]], failed_before: List[str]) -> None:
    """The first failure leaves the hosts after it alone, also where it was of something else that is in no row here."""
    for row in rows:
        if row["host"] in failed_before:
            row["detail"] = _OUT
        elif row["detail"] == _NOT_BEGUN:
            row["detail"] = _LEFT_BY % ", ".join(failed_before)


def _plan_row(host: str, model: str, result: Optional[Mapping[str, Any]]) -> Dict[str, Any]:
    if result is None or "actions" not in result:
        return {"host": host, "now": None, "then": model, "plan": _first_line(result) or "no answer"}
    steps = _steps(result["actions"])
    if result.get("failed"):
        steps = "REFUSED: %s" % _first_line(result)
    now = ", ".join(str(name) for name in result.get("serving_before") or []) or None
    if result.get("taken_out") and not result.get("failed"):
        steps = ", ".join(each for each in (steps, "take it back" if result.get("takes_back") else "leave it TAKEN OUT") if each)
    return {"host": host, "now": now, "then": model, "plan": steps or "nothing to do"}


def _steps(actions: List[Mapping[str, Any]]) -> str:
    words = {"stop": "stop %s", "start": "start %s", "disable": "disable %s", "enable": "enable %s", "end_process": "end pid %s",
             "complete": "first bring to its end: %s",
             "follow": "follow what %s is doing", "prove_free": "prove GPU %s free", "drain": "drain %s", "create_user": "create user %s",
             "warm": "read %s into the page cache"}
    written = len([action for action in actions if action["action"] in ("write", "remove")])
    steps = ["write %d file%s" % (written, "" if written == 1 else "s")] if written else []
    steps += [words[action["action"]] % action["target"] for action in actions if action["action"] in words]
    return ", ".join(steps)


def _row(host: str, model: str, result: Optional[Mapping[str, Any]]) -> Dict[str, Any]:
    row: Dict[str, Any] = {"host": host, "before": None, "after": None, "result": "untouched", "downtime_s": None, "total_s": None}
    row.update(detail=None, phases_s={})
    if not result or result.get("failed_before"):
        row["detail"] = _NOT_BEGUN
        return row
    replaced = [str(entry.get("name")) for entry in result.get("replaced") or []]
    own = ", ".join(str(name) for name in result.get("serving_before") or replaced) or None
    row["before"] = own or ", ".join(str(name) for name in result.get("served_when_planned") or []) or None
    timings = result.get("timings") or {}
    row["total_s"] = timings.get("total")
    row["downtime_s"] = timings.get("downtime") or None
    row["phases_s"] = {name: timings[name] for name in _PHASES if timings.get(name)}
    if result.get("untouched"):
        row.update(after=row["before"], detail=_NOT_BEGUN)
    elif result.get("hook") == "before_host":
        row.update(after=row["before"], detail=_first_line(result))
    elif result.get("unreachable"):
        row.update(result="unreachable", detail=_first_line(result))
    elif result.get("failed"):
        row.update(_failed(result, model, own, row["before"]), detail=_of_failure(result))
    else:
        row.update(after=model, detail=_first_line(result))  # not the name it answers to: what served before has its catalogue name too
        row.update(_succeeded(result, bool(replaced)))
        if row["result"] == "swapped":
            row["downtime_s"] = timings.get("downtime")  # 0.0 is a figure here: somebody has served all the time
        if row["result"] == "updated" and result.get("check_mode"):
            row["result"] = "would update"
    row.update(_as_to_the_balancer(host, model, result, row))
    return row


def _as_to_the_balancer(host: str, model: str, result: Mapping[str, Any], row: Mapping[str, Any]) -> Dict[str, Any]:
    """What a host's row says of being taken out by before_host, and of being taken back."""
    back = result.get("taken_back")
    if back:
        return {"result": "taken back", "detail": "after_host has taken it back. %s" % _since(back)}
    mark = result.get("taken_out")
    if not mark:
        return {}
    if result.get("check_mode") and result.get("takes_back"):
        return {"result": "would take back", "detail": _since(mark)} if row["result"] == "ok, unchanged" else {}
    text = "TAKEN OUT: %s Nothing has taken it back. " % _since(mark)
    if result.get("takes_back"):
        text += "Run the same command again: it takes the host back once it serves."
        # The failure that kept it out leads.
        led = str(row["detail"] or "") if row["detail"] != _NOT_BEGUN else ""
        return {"detail": "%s%s %s" % (led, "" if led.endswith((".", "!", "?")) else ".", text) if led else text}
    hook = mark.get("after_host") or "FILE"
    text += "Have after_host do it, unless that swap is still under way: "
    text += "ansible-playbook gpufleet.vllm.swap_model -i INVENTORY -e model=%s -e target=%s -e after_host=%s" % (model, host, hook)
    return {"detail": "%s (%s)" % (text, row["detail"]) if row["detail"] else text}


def _since(mark: Mapping[str, Any]) -> str:
    """When a host was taken out, and what for."""
    since, model = mark.get("since") or "a time that is not known", mark.get("model") or "a model that is not known"
    return "%s at %s, for a swap to %s." % ("before_host was begun" if mark.get("before_host") else "It was taken out", since, model)


def _of_failure(result: Mapping[str, Any]) -> Optional[str]:
    """The line for a failure. A host that may serve nothing is worse news than what it had failed of before."""
    first = _first_line(result)
    lines = [line for line in str(result.get("msg") or "").strip().splitlines()[1:] if line.startswith(_NOT_PUT_BACK)]
    return "%s What had failed before: %s" % (lines[0], first) if lines else first


def _failed(result: Mapping[str, Any], model: str, own: Optional[str], before: Optional[str]) -> Dict[str, Any]:
    """``own`` is what served when the module looked; ``before`` what served at any time before, as far as is known."""
    if "actions" not in result:
        # No word of the module itself: the connection broke, or the host failed. What it came to is not known.
        return {"result": "UNKNOWN"}
    if result.get("rolled_back"):
        return {"result": "rolled back", "after": before}
    if result.get("changed") or result.get("diagnosis"):
        timings = result.get("timings") or {}
        if result.get("ready"):  # what failed came after the new server had been seen to serve
            return {"result": "FAILED", "after": model}
        if "downtime" in timings and timings["downtime"] is None:
            return {"result": "FAILED", "downtime_s": "down"}
        # Nothing was stopped yet, so that what served goes on, though not everything else is as it was.
        return {"result": "FAILED", "after": own if timings.get("downtime") == 0.0 else None}
    return {"result": "refused", "after": own}


def _succeeded(result: Mapping[str, Any], replaced: bool) -> Dict[str, Any]:
    """What a run that succeeded was, in a word."""
    actions = [(action.get("action"), action.get("target")) for action in result.get("actions") or []]
    # Of a start that is only planned nothing was measured.
    starts = any(action == "start" for action, _target in actions)
    would = starts and (result.get("timings") or {}).get("load") is None
    if replaced:
        return {"result": "would swap" if would else "swapped"}
    if ("stop", result.get("unit")) in actions:
        return {"result": "would restart" if would else "restarted"}
    if starts:
        return {"result": "would start" if would else "started"}
    if any(action == "follow" for action, _target in actions):
        return {"result": "would follow"}
    if result.get("changed"):
        return {"result": "updated"}
    if result.get("ready"):
        return {"result": "ok, unchanged"}
    # It runs as declared, and was too busy to answer, or still loads: nothing was done, and nothing was proven.
    warnings = [str(text) for text in result.get("warnings") or []]
    return {"result": "unchanged, not seen to serve", "detail": warnings[0] if warnings else None}


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
        return {"swap_rows": swap_rows}
