# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The filters ``swap_results`` and ``swap_failed``; documented in the files of these names beside this one."""

from __future__ import annotations

from collections import ChainMap
from typing import Any, Callable, Dict, List, Mapping, Optional, Sequence

from ansible.errors import AnsibleFilterError
from ansible.module_utils.parsing.convert_bool import boolean

_LOST = (
    "The connection was lost, and what is begun on a host is finished there. Run the same command again: it completes what is "
    "missing, and tells what serves."
)
_NEVER_REACHED = "This run touched nothing on it. See that `ansible -m ansible.builtin.ping` gets there, then run again."

_STAYS_OUT = "The host counts as taken out until after_host has succeeded. Mend what failed, then run the same command again."
_HALF_OUT = (
    "before_host was begun and did not come to its end, and no service was changed. The host counts as taken out. See what before_host "
    "does, then run the same command again."
)


def swap_results(
    hosts: Any,
    hostvars: Any,
    plan: bool = False,
    asked: Optional[Mapping[str, Mapping[str, Any]]] = None,
    left_out: Sequence[str] = (),
) -> Dict[str, Dict[str, Any]]:
    """What the swap came to on each host; for one that was not touched no more than what it served."""
    read, asked = _planned if plan else _outcome, asked or {}
    return {
        host: {"failed_before": True} if host in left_out else read(ChainMap(dict(asked.get(host) or {}), hostvars[host]))
        for host in _names("swap_results", hosts)
    }


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


def _planned(variables: Mapping[str, Any]) -> Dict[str, Any]:
    plan = _plan(variables)
    return dict(plan, takes_back=_takes_back(variables)) if plan.get("taken_out") else plan


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


def _takes_back(variables: Mapping[str, Any]) -> bool:
    """Whether this run has tasks that take a host back."""
    return bool(variables.get("after_host"))


def _fault(variables: Mapping[str, Any]) -> Optional[str]:
    failure = variables.get("swap_model_failure")
    if failure:
        text = _with_hook(failure, str(failure.get("msg") or "The swap failed."))
        if failure.get("hook") and _mark(variables):
            text += "\n%s" % _STAYS_OUT
        own = _own_failure(failure, _done(variables))
        return "%s\n%s" % (own, text) if own else text
    for result, then in ((_done(variables), _LOST), (_plan(variables), _NEVER_REACHED)):
        if result.get("unreachable"):
            said = str(result.get("msg") or "The host does not answer").strip()
            return "%s %s" % (said if said.endswith((".", "!")) else said + ".", then)
    return _HALF_OUT if _left_half_out(variables) else None


def _with_hook(failure: Mapping[str, Any], text: str) -> str:
    return "%s failed: %s" % (failure["hook"], text) if failure.get("hook") else text


def _own_failure(failure: Mapping[str, Any], done: Mapping[str, Any]) -> Optional[str]:
    """What the swap itself failed of, where after_host has failed as well: its failure is noted in the place of that one."""
    return str(done.get("msg") or "") or None if failure.get("hook") == "after_host" and done.get("failed") else None


def _outcome(variables: Mapping[str, Any]) -> Dict[str, Any]:
    plan = _plan(variables)
    result = _came_to(variables, plan)
    # What was seen of a host before: of one that was lost, or was refused by another swap, nothing else tells it.
    if result and "serving_before" not in result and plan.get("serving_before"):
        result = dict(result, served_when_planned=plan["serving_before"])
    if result and any(boolean(variables.get(name), strict=False) for name in ("ansible_check_mode", "vllm_swap_plan_only")):
        result = dict(result, check_mode=True)
    return _as_to_the_balancer(result, variables)


def _as_to_the_balancer(result: Dict[str, Any], variables: Mapping[str, Any]) -> Dict[str, Any]:
    """The same with whether the host is still taken out, or was taken back by this run."""
    mark = _mark(variables) or (None if _has_noted(variables) else result.get("taken_out"))
    if not mark:
        return {key: value for key, value in result.items() if key != "taken_out"}
    if _taken_back(variables):
        rest = {key: value for key, value in result.items() if key != "taken_out"}
        # A swap of its own says more than that the host is back as well.
        return dict(rest, changed=True, taken_back=dict(mark)) if not _done(variables) and not result.get("failed") else rest
    return dict(result or {"untouched": True}, taken_out=dict(mark), takes_back=_takes_back(variables))


def _mark(variables: Mapping[str, Any]) -> Optional[Dict[str, Any]]:
    """What is written down on the host, as far as this run knows: its own note, or the one that it has found."""
    if _has_noted(variables):
        return variables.get("swap_model_mark") or None  # {}: by now it is another run's
    return _plan(variables).get("taken_out") or None


def _has_noted(variables: Mapping[str, Any]) -> bool:
    """Whether this swap has written down that it takes the host out. One before it, in the same run, has left its note as well."""
    noted = variables.get("swap_model_noted") or {}
    written = "dest" in noted and not (noted.get("failed") or noted.get("unreachable"))
    return written and variables.get("swap_model_marked") == _plan(variables).get("unit")


def _taken_back(variables: Mapping[str, Any]) -> bool:
    took = variables.get("swap_model_taken_back") or {}
    return bool(took.get("changed")) and not took.get("failed")


def _left_half_out(variables: Mapping[str, Any]) -> bool:
    """Whether before_host has neither failed nor come to the swap: it has left the play, or its host could not be reached."""
    return _has_noted(variables) and bool(_mark(variables)) and not _done(variables) and not _taken_back(variables)


def _came_to(variables: Mapping[str, Any], plan: Dict[str, Any]) -> Dict[str, Any]:
    done = _done(variables)
    failure = variables.get("swap_model_failure")
    if failure:
        failed = dict(failure)
        hook = failed.get("hook")
        if hook == "after_host":
            text = _with_hook(failed, str(failed.get("msg")))
            # The row has one line for both, and the swap's own failure is what the host is looked at for.
            if _own_failure(failed, done):
                first, rest = _first_and_rest(str(done["msg"]))
                text = "\n".join(["%s And %s" % (first, text), *rest])
            return dict(done or plan, hook=hook, msg=text)
        if hook:
            return {"hook": hook, "msg": _with_hook(failed, str(failed.get("msg"))), "serving_before": plan.get("serving_before", [])}
        return failed
    if done or plan.get("unreachable"):
        return done or plan
    # It was only planned here. Nothing to do, and it serves: that was the whole swap. Anything else was never begun.
    unchanged = "actions" in plan and not plan["actions"] and plan.get("ready")
    if unchanged:
        return plan
    if _left_half_out(variables):
        return {"hook": "before_host", "msg": _HALF_OUT, "serving_before": plan.get("serving_before", [])}
    return {"untouched": True, "serving_before": plan["serving_before"]} if plan.get("serving_before") else {}


def _first_and_rest(msg: str) -> "tuple[str, List[str]]":
    lines = msg.strip().splitlines()
    return lines[0], lines[1:]


class FilterModule:
    """What Ansible looks for."""

    def filters(self) -> Dict[str, Callable[..., Any]]:
        """The filters of this file by name."""
        return {"swap_failed": swap_failed, "swap_results": swap_results}
