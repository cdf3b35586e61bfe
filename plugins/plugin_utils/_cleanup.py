# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What is wrong with a request for a clean-up of a fleet, told on the controller before any host is touched."""

from __future__ import annotations

from typing import Any, Dict, Iterable, List, Mapping, Optional, Sequence

from ansible.module_utils.common.arg_spec import ArgumentSpecValidator

from ansible_collections.gpufleet.vllm.plugins.module_utils._core.errors import GpuFleetError
from ansible_collections.gpufleet.vllm.plugins.module_utils._gpu.select import malformed
from ansible_collections.gpufleet.vllm.plugins.module_utils._reclaim.parameters import to_request
from ansible_collections.gpufleet.vllm.plugins.module_utils._reclaim.request import faults_of
from ansible_collections.gpufleet.vllm.plugins.modules.gpu_reclaim import ARGUMENT_SPEC

from ._names import refusals, slips, unknown
from ._playbooks import OWN
from ._readers import Readers
from ._report import plain
from ._select import SelectError, compile_query, compile_select

PREFIX = "gpu_reclaim_"
_OWN = OWN["gpu_cleanup"]
# What the role leaves.
_RESULT = "result"
# The option types by what people call them.
_KINDS = {"int": "a whole number", "float": "a number of seconds", "bool": "true or false", "list": "a list", "str": "a text"}
# Filled in by the action plugin.
_INTERNAL = ("candidates",)
# What the playbook itself decides; -e would override it behind the report's back.
_DECIDED = {
    "scope": "set scope, which the report shows as well",
    "accept": "whatever stays is reported, and its host then fails",
}
# More hosts than these are counted, not named.
_NAMED_HOSTS = 3


def faults_of_fleet(by_host: Mapping[str, Mapping[str, Any]]) -> List[str]:
    """The faults of every host's variables, each once; a fault that not every host shares names its hosts."""
    hosts_by_fault: Dict[str, List[str]] = {}
    for host, variables in by_host.items():
        for fault in faults_of_variables(variables):
            hosts_by_fault.setdefault(fault, []).append(host)
    return [fault + _on(hosts, len(by_host)) for fault, hosts in hosts_by_fault.items()]


def faults_of_variables(variables: Mapping[str, Any]) -> List[str]:
    """The faults of one host's ``gpu_reclaim_*`` variables (by their whole names)."""
    given = {name[len(PREFIX):]: plain(value) for name, value in variables.items() if name.startswith(PREFIX)}
    given.pop(_RESULT, None)
    options = [name for name in ARGUMENT_SPEC if name not in _INTERNAL]
    faults = [unknown(PREFIX + name, [PREFIX + option for option in options]) for name in given if name not in options]
    known = {name: value for name, value in given.items() if name in options}
    faults += ["%s must be %s, it is %r" % (PREFIX + name, _KINDS[ARGUMENT_SPEC[name]["type"]], value)
               for name, value in known.items() if isinstance(value, bool) and ARGUMENT_SPEC[name]["type"] in ("int", "float")]
    checked = ArgumentSpecValidator(ARGUMENT_SPEC).validate(known)
    if checked.error_messages:
        return faults + [_said(message, known) for message in checked.error_messages]
    parameters = checked.validated_parameters
    select = parameters["select"]
    try:
        if select is not None:
            compile_select(select)
        request = to_request(dict(parameters, select=None, candidates=None))
    except (SelectError, GpuFleetError) as exc:
        return faults + [_one_line(exc)]
    return faults + faults_of(request) + ["%r in gpus is no GPU: give an index, a UUID, a PCI id, or all" % word
                                          for word in request.gpus if malformed(word)]


def faults_of_names(names: Iterable[str], readers: Optional[Readers] = None) -> List[str]:
    """What is wrong with the variables of the command line: slips, and what this playbook decides itself; ``readers`` may read some."""
    names = list(names)
    decided = [name for option in _DECIDED for name in (PREFIX + option, option) if name in names and name not in _OWN]
    options = [name for name in ARGUMENT_SPEC if name not in _INTERNAL and name not in _DECIDED]
    # What begins with the prefix is looked at for each host, wherever it was set.
    others = [name for name in names if not name.startswith(PREFIX) and name not in decided]
    refused = ["%s has no place here: %s" % (name, _DECIDED[name.replace(PREFIX, "")]) for name in decided]
    return refusals({**dict(zip(decided, refused, strict=True)), **slips(others, _OWN, PREFIX, options)}, readers or Readers())


def fault_of_query(query: Any) -> List[str]:
    """Whether ``query`` is an expression that can be asked at all."""
    if query in (None, ""):
        return []
    try:
        compile_query(plain(query))
    except SelectError as exc:
        return [_one_line(exc).replace("`select`", "`query`")]
    return []


def _one_line(problem: Exception) -> str:
    # JMESPath draws an arrow under the place, which needs a line of its own
    return " ".join(str(problem).split()).rstrip(" ^.")


def _said(message: Any, known: Mapping[str, Any]) -> str:
    """A fault that Ansible's own check found, with the variable's name, its value and what is allowed."""
    text = " ".join(str(message).split()).rstrip(".")
    for name, value in known.items():
        option = ARGUMENT_SPEC[name]
        variable = name if name in _OWN else PREFIX + name
        if text.startswith("value of %s must be" % name):
            return "%s must be one of %s, it is %r" % (variable, ", ".join(option["choices"]), value)
        if text.startswith("argument '%s' is of type" % name):
            return "%s must be %s, it is %r" % (variable, _KINDS[option["type"]], value)
    return text


def _on(hosts: Sequence[str], everybody: int) -> str:
    if len(hosts) == everybody:
        return ""
    more = len(hosts) - _NAMED_HOSTS
    named = ", ".join(hosts[:_NAMED_HOSTS])
    return " (on %s)" % (named if more <= 0 else "%s and %d more" % (named, more))
