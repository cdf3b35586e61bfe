# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The filters ``deploy_fault``, ``deploy_rows`` and ``deploy_steps``; documented in the files of these names beside this one."""

from __future__ import annotations

import re
from typing import Any, Callable, Dict, List, Mapping, Sequence

from ansible.errors import AnsibleFilterError

# What each step of a deployment leaves on its host: one of them means that the host's turn had come.
_TRACES = ("vllm_install_plan", "vllm_model_plan", "deploy_service", "deploy_failure")
_NOT_BEGUN = "the run ended before it was this host's turn: no batch comes after one with a failure"
_FAILED_BEFORE = "it had failed before this deployment, in the same run"
_LOST = "it was begun, and what came of it is not known. Look at what was said of this host, and run again"
_WORDS = {
    "create_user": "create user %s", "make_directory": "make %s", "daemon_reload": "have systemd read %s",
    "prove_free": "prove GPU %s free", "end_process": "end pid %s", "warm": "read %s into the page cache",
    "follow": "follow what %s is doing",
}  # fmt: skip
# As modules end a message, and as they have it within a sentence.
_UNTOUCHED = re.compile(r"Nothing was touched\.(\s|\Z)|,( and)? nothing was touched(?=[.:])")


def deploy_fault(message: Any, done: Any) -> str:
    """What a step failed with. That it touched nothing is left out where steps before it did something on the host."""
    if not isinstance(done, (list, tuple)):
        raise AnsibleFilterError("deploy_fault takes a list of what was done, not %s" % type(done).__name__)
    return _UNTOUCHED.sub("", str(message)).strip() if done else str(message)


def deploy_rows(hosts: Any, hostvars: Any, left_out: Sequence[str] = ()) -> List[Dict[str, Any]]:
    """One row for each host: what it noted of itself, or that its turn did not come."""
    if not isinstance(hosts, (list, tuple)):
        raise AnsibleFilterError("deploy_rows takes a list of hosts, not %s" % type(hosts).__name__)
    return [dict(_row(str(host), {}), detail=_FAILED_BEFORE) if host in left_out else _row(str(host), hostvars[host]) for host in hosts]


def _row(host: str, variables: Mapping[str, Any]) -> Dict[str, Any]:
    if variables.get("deploy_row"):
        return dict(variables["deploy_row"])
    begun = any(variables.get(name) for name in _TRACES)
    row: Dict[str, Any] = dict.fromkeys(("vllm", "commit", "fetched_mib", "ready"))
    return {"host": host, **row, "result": "failed" if begun else "not begun", "failed": begun, "detail": _LOST if begun else _NOT_BEGUN}


def deploy_steps(actions: Any) -> str:
    """What the roles and modules say that they do, in one line."""
    if not isinstance(actions, (list, tuple)):
        raise AnsibleFilterError("deploy_steps takes a list of actions, not %s" % type(actions).__name__)
    starts = {each["target"] for each in actions if isinstance(each, Mapping) and each.get("action") == "start"}
    said = []
    for each in actions:
        if not isinstance(each, Mapping):
            said.append(str(each))
        elif each.get("action") == "stop" and each.get("target") in starts:
            # Whoever reads of a fleet has to see on which hosts nothing serves for a while.
            said.append("RESTART %s (%s)" % (each["target"], each.get("reason") or "asked for"))
        else:
            action = str(each.get("action"))
            said.append(_WORDS.get(action, action.replace("_", " ").replace("%", "%%") + " %s") % each.get("target"))
    return "; ".join(said)


class FilterModule:
    """What Ansible looks for."""

    def filters(self) -> Dict[str, Callable[..., Any]]:
        """The filters of this file by name."""
        return {"deploy_fault": deploy_fault, "deploy_rows": deploy_rows, "deploy_steps": deploy_steps}
