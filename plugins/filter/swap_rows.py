# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The filters ``swap_results``, ``swap_failed`` and ``swap_rows``; documented in the files of these names beside this one."""

from __future__ import annotations

from typing import Any, Callable, Dict, List, Mapping, Optional, Sequence

from ansible.errors import AnsibleFilterError

# Of a swap's timings those that are phases, in order.
_PHASES = ("preflight", "warm", "drain", "stop", "settle", "load")
_LOST = (
    "The connection was lost, and what is begun on a host is finished there. Run the same command again: it completes what is "
    "missing, and tells what serves."
)
_NEVER_REACHED = "This run touched nothing on it. See that `ansible -m ansible.builtin.ping` gets there, then run again."


def swap_results(hosts: Any, hostvars: Any, plan: bool = False) -> Dict[str, Dict[str, Any]]:
    """What the swap came to on each host; for one that was not touched no more than what it served."""
    read = _plan if plan else _outcome
    return {host: read(hostvars[host]) for host in _names("swap_results", hosts)}


def swap_failed(hosts: Any, hostvars: Any) -> Dict[str, str]:
    """The hosts on which something has failed so far, each with the message that says what, and what to do."""
    found = {}
    for host in _names("swap_failed", hosts):
        fault = _fault(hostvars[host])
        if fault is not None:
            found[host] = fault
    return found


def _names(name: str, hosts: Any) -> List[str]:
    if isinstance(hosts, str) or not isinstance(hosts, Sequence):
        raise AnsibleFilterError("%s takes a list of host names, not %s" % (name, type(hosts).__name__))
    return [str(host) for host in hosts]


def _plan(variables: Mapping[str, Any]) -> Dict[str, Any]:
    return _kept(variables.get("swap_model_plan"))


def _kept(result: Any) -> Dict[str, Any]:
    """A task's result without what Ansible is about to take out of one that ran out of time, and warns of when it is looked at."""
    found = dict(result or {})
    if isinstance(found.get("timedout"), Mapping):
        found["timedout"] = {"period": found["timedout"].get("period")}
    return found


def _done(variables: Mapping[str, Any]) -> Dict[str, Any]:
    """The result of the swap itself; {} when this play has not come to it."""
    result = _kept(variables.get("vllm_swap_result"))
    unit = _plan(variables).get("unit")
    # Another swap before this one, in the same run, has left its result as well.
    foreign = result.get("unit") and unit and result["unit"] != unit
    return {} if result.get("skipped") is True or foreign else result


def _fault(variables: Mapping[str, Any]) -> Optional[str]:
    failure = variables.get("swap_model_failure")
    if failure is not None:
        text = _with_hook(failure, str(failure.get("msg") or "The swap failed."))
        own = _own_failure(failure, _done(variables))
        return "%s\n%s" % (own, text) if own else text
    for result, then in ((_done(variables), _LOST), (_plan(variables), _NEVER_REACHED)):
        if result.get("unreachable"):
            said = str(result.get("msg") or "The host does not answer").strip()
            return "%s %s" % (said if said.endswith((".", "!")) else said + ".", then)
    return None


def _with_hook(failure: Mapping[str, Any], text: str) -> str:
    return "%s failed: %s" % (failure["hook"], text) if failure.get("hook") else text


def _own_failure(failure: Mapping[str, Any], done: Mapping[str, Any]) -> Optional[str]:
    """What the swap itself failed of, where after_host has failed as well: its failure is noted in the place of that one."""
    return str(done.get("msg") or "") or None if failure.get("hook") == "after_host" and done.get("failed") else None


def _outcome(variables: Mapping[str, Any]) -> Dict[str, Any]:
    plan, done = _plan(variables), _done(variables)
    failure = variables.get("swap_model_failure")
    if failure is not None:
        failed = dict(failure)
        hook = failed.get("hook")
        if hook == "after_host":
            text = _with_hook(failed, str(failed.get("msg")))
            # The row has one line for both, and the swap's own failure is what the host is looked at for.
            if _own_failure(failed, done):
                text = "\n".join(["%s And %s" % (_first_line(done), text), *str(done["msg"]).strip().splitlines()[1:]])
            return dict(done, hook=hook, msg=text)
        if hook:
            return {"hook": hook, "msg": _with_hook(failed, str(failed.get("msg"))), "serving_before": plan.get("serving_before", [])}
        return failed
    if done or plan.get("unreachable"):
        return done or plan
    # It was only planned here. Nothing to do, and it serves: that was the whole swap. Anything else was never begun.
    unchanged = "actions" in plan and not plan["actions"] and plan.get("ready")
    if unchanged:
        return plan
    return {"untouched": True, "serving_before": plan["serving_before"]} if plan.get("serving_before") else {}


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
             "follow": "follow what %s is doing", "prove_free": "prove GPU %s free", "drain": "drain %s", "create_user": "create user %s",
             "warm": "read %s into the page cache"}
    written = len([action for action in actions if action["action"] in ("write", "remove")])
    steps = ["write %d file%s" % (written, "" if written == 1 else "s")] if written else []
    steps += [words[action["action"]] % action["target"] for action in actions if action["action"] in words]
    return ", ".join(steps)


def _row(host: str, model: str, result: Optional[Mapping[str, Any]]) -> Dict[str, Any]:
    row: Dict[str, Any] = {"host": host, "before": None, "after": None, "result": "untouched", "downtime_s": None, "total_s": None}
    row.update(detail=None, phases_s={})
    if not result:
        row["detail"] = "not begun"
        return row
    replaced = [str(entry.get("name")) for entry in result.get("replaced") or []]
    row["before"] = ", ".join(str(name) for name in result.get("serving_before") or replaced) or None
    timings = result.get("timings") or {}
    row["total_s"] = timings.get("total")
    row["downtime_s"] = timings.get("downtime") or None
    row["phases_s"] = {name: timings[name] for name in _PHASES if timings.get(name)}
    if result.get("untouched"):
        row.update(after=row["before"], detail="not begun")
    elif result.get("hook") == "before_host":
        row.update(after=row["before"], detail=_first_line(result))
    elif result.get("unreachable"):
        row.update(result="unreachable", detail=_first_line(result))
    elif result.get("failed"):
        row.update(_failed(result, row["before"]), detail=_first_line(result))
    else:
        served = result.get("served_models") or []
        row.update(after=", ".join(str(name) for name in served) or model, detail=_first_line(result))
        row.update(_succeeded(result, bool(replaced)))
        if row["result"] == "swapped":
            row["downtime_s"] = timings.get("downtime")  # 0.0 is a figure here: somebody has served all the time
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


def _succeeded(result: Mapping[str, Any], replaced: bool) -> Dict[str, Any]:
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
        return {"swap_failed": swap_failed, "swap_results": swap_results, "swap_rows": swap_rows}
