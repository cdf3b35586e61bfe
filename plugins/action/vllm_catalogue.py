# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Check a model's catalogue entry on every host of a play, on the controller."""

from __future__ import annotations

from typing import Any, Dict, List, Mapping, Optional, Tuple

from ansible.errors import AnsibleError
from ansible.plugins.action import ActionBase

from ansible_collections.gpufleet.vllm.plugins.module_utils._catalogue.resolve import examine
from ansible_collections.gpufleet.vllm.plugins.module_utils._catalogue.strays import strays
from ansible_collections.gpufleet.vllm.plugins.module_utils._catalogue.values import boolean, sentence
from ansible_collections.gpufleet.vllm.plugins.plugin_utils._effective import Effective, of_play
from ansible_collections.gpufleet.vllm.plugins.plugin_utils._entry_slips import entry_slips
from ansible_collections.gpufleet.vllm.plugins.plugin_utils._hooks import has_hooks, hook_faults
from ansible_collections.gpufleet.vllm.plugins.plugin_utils._names import extra_names
from ansible_collections.gpufleet.vllm.plugins.plugin_utils._readers import Readers

_YES_OR_NO = ("vllm_swap_plan_only", "vllm_swap_enabled")
# What the tables have to know of each host.
_TOLD = ("after_host", "vllm_swap_plan_only")


class ActionModule(ActionBase):
    """Reads hostvars, never a host."""

    _requires_connection = False
    _supports_check_mode = True

    def run(self, tmp: Any = None, task_vars: Optional[Dict[str, Any]] = None) -> Dict[str, Any]:
        """See the module's documentation."""
        result: Dict[str, Any] = super().run(tmp, task_vars)
        args = self.validate_argument_spec(
            argument_spec={
                "model": {"type": "str", "required": True},
                "hosts": {"type": "list", "elements": "str", "required": True},
                "target": {"type": "str"},
                "of_one_model": {"type": "dict", "default": {}},
            }
        )[1]
        task_vars = task_vars or {}
        hostvars, play = task_vars.get("hostvars") or {}, of_play(task_vars)
        variables = {host: Effective(host, hostvars, play, self._templar) for host in args["hosts"] if host in hostvars}
        problems, deployments, warnings = look_up(args["model"], args["hosts"], args["target"], variables)
        problems += _said_of_all(args["of_one_model"], variables) + self._of_hooks(variables)
        if warnings:
            result["warnings"] = warnings
        if problems:
            result.update(failed=True, changed=False, msg=message(problems))
            return result
        asked = {host: {name: those[name] for name in _TOLD if name in those} for host, those in variables.items()}
        hooked = [host for host, those in variables.items() if has_hooks(those)]
        result.update(changed=False, deployments=deployments, asked=asked, hooked=hooked)
        return result

    def _of_hooks(self, variables: Mapping[str, Mapping[str, Any]]) -> List[str]:
        """Hosts usually share their hooks: each fault is told once."""
        found: Dict[str, List[str]] = {}
        for host, those in variables.items():
            for fault in hook_faults(those, self._loader, self._task.collections):
                found.setdefault(fault, []).append(host)
        return [_with_hosts(fault, where, len(variables)) for fault, where in found.items()]


def look_up(
    model: str, hosts: List[str], target: Optional[str], known: Mapping[str, Effective]
) -> Tuple[List[str], Dict[str, Dict[str, Any]], List[str]]:
    """The problems, one line each with the hosts they concern; the deployment of each host without its secrets; what to know of."""
    if not hosts:
        pattern = "the target %r" % target if target else "the target"
        return [
            "No host matches %s. Look at `ansible-inventory --graph`, then set `target` to one of its groups or hosts"
            " (or widen --limit)." % pattern
        ], {}, []
    by_problem: Dict[str, List[str]] = {}
    warnings: Dict[str, None] = {}
    deployments: Dict[str, Dict[str, Any]] = {}
    given, readers = extra_names(), Readers()
    for host in hosts:
        problems, parameters, told = _examine_host(model, known.get(host))
        problems += entry_slips(given, known[host].written if host in known else {}, readers)
        warnings.update(dict.fromkeys(map(sentence, told)))
        for problem in problems:
            by_problem.setdefault(problem, []).append(host)
        if not problems:
            deployments[host] = _without_secrets(parameters)
    # Hosts usually share one catalogue: the same problem is said once, with the hosts that have it.
    return [_with_hosts(problem, where, len(hosts)) for problem, where in by_problem.items()], deployments, list(warnings)


def _said_of_all(of_one_model: Mapping[str, Any], known: Mapping[str, Effective]) -> List[str]:
    """A host that has such a variable would get the files of one model under the names of all."""
    found = []
    for name, key in of_one_model.items():
        where = [host for host, variables in known.items() if variables.written.get(name) not in (None, "")]
        if where:
            text = "`%s` would be said of every model, and is not read by this playbook: put `%s` in the model's entry of the catalogue."
            found.append(_with_hosts(text % (name, key), where, len(known)))
    return found


def _examine_host(model: str, variables: Optional[Effective]) -> Tuple[List[str], Dict[str, Any], List[str]]:
    if variables is None:
        return ["is not in the inventory."], {}, []
    wrong, told = strays(variables)
    try:
        wrong += _unclear(variables)
        problems, parameters = examine(variables.entries("vllm_models"), model)
    except AnsibleError as exc:
        text = "`vllm_models` cannot be read: %s. Define it for this host, or correct the entry %r."
        return [*wrong, text % (str(exc.message).strip().rstrip("."), model)], {}, told
    return [*wrong, *problems], parameters, told


def _unclear(variables: Mapping[str, Any]) -> List[str]:
    """A typing error in whether only to plan would be taken for no, and the swap be carried out; others each host would refuse anew."""
    found = []
    if "vllm_swap_models" in variables:
        found.append("`vllm_swap_models` is for the role alone, and not read by the playbook: the catalogue is `vllm_models`.")
    for name in _YES_OR_NO:
        try:
            boolean(variables.get(name, False))
        except ValueError as exc:
            found.append("`%s` %s." % (name, exc))
    return found


def _without_secrets(parameters: Dict[str, Any]) -> Dict[str, Any]:
    shown = {key: value for key, value in parameters.items() if key != "secrets"}
    if parameters.get("secrets"):
        shown["secret_names"] = sorted(parameters["secrets"])
    return shown


def _with_hosts(problem: str, hosts: List[str], of: int) -> str:
    if len(hosts) == of and of > 1:
        return sentence(problem)
    names = ", ".join(hosts) if len(hosts) <= 4 else "%s and %d more" % (", ".join(hosts[:3]), len(hosts) - 3)
    return "%s: %s" % (names, problem)


def message(problems: List[str]) -> str:
    """One message for all problems."""
    if len(problems) == 1:
        return "Nothing was touched by this playbook. %s" % problems[0]
    return "Nothing was touched by this playbook. %d problems:\n%s" % (len(problems), "\n".join("- " + problem for problem in problems))
