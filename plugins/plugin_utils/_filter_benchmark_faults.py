# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the filters of ``benchmark_faults`` do."""

from __future__ import annotations

from typing import Any, Dict, List, Mapping, Sequence

from ansible.errors import AnsibleFilterError

from ansible_collections.gpufleet.vllm.plugins.modules.vllm_benchmark import ARGUMENT_SPEC
from ansible_collections.gpufleet.vllm.plugins.plugin_utils._baseline import BaselineError, choose, read, results_of
from ansible_collections.gpufleet.vllm.plugins.plugin_utils._benchmark_options import faults_of_options
from ansible_collections.gpufleet.vllm.plugins.plugin_utils._cleanup import fault_of_query
from ansible_collections.gpufleet.vllm.plugins.plugin_utils._names import extra_names, refusals, slips
from ansible_collections.gpufleet.vllm.plugins.plugin_utils._playbooks import OWN
from ansible_collections.gpufleet.vllm.plugins.plugin_utils._readers import readers_of
from ansible_collections.gpufleet.vllm.plugins.plugin_utils._report import plain

_PREFIX = "vllm_benchmark_"


def benchmark_faults(asked: Any, hostvars: Any = None, hosts: Sequence[str] = ()) -> List[str]:
    """What is wrong with a request, in sentences; empty when nothing is. ``hosts`` are those of the target, ``hostvars`` holds theirs."""
    if not isinstance(asked, Mapping):
        raise AnsibleFilterError("benchmark_faults takes a dictionary, not %s" % type(asked).__name__)
    values: Dict[str, Any] = plain(asked)
    # A slip on the command line would otherwise go unnoticed, and the run do something else.
    odd = slips(extra_names(), OWN["benchmark"], _PREFIX, [*ARGUMENT_SPEC, "plan_only"])
    faults = refusals(odd, readers_of(hostvars, hosts))
    if values.get("once_per", "host") not in ("host", "deployment"):
        faults.append("once_per is %r. It is host or deployment" % values["once_per"])
    try:
        if not 0 <= float(values.get("slow_percent", 10)) <= 100:
            raise ValueError
    except (TypeError, ValueError):
        faults.append("slow_percent is %r. It takes a number from 0 to 100" % values["slow_percent"])
    said: Dict[str, List[str]] = {}
    for host in hosts or [""]:
        for fault in faults_of_options(_options(values, hostvars[host] if hosts else {})):
            said.setdefault(fault, []).append(str(host))
    faults += [fault if len(on) == len(hosts or [""]) else "%s (%s)" % (fault, ", ".join(on)) for fault, on in said.items()]
    return faults + _of_baseline(values.get("baseline")) + fault_of_query(values.get("query"))


def _options(values: Mapping[str, Any], variables: Mapping[str, Any]) -> Dict[str, Any]:
    """The module's options for one host, by the names of their variables; the profile of the run, where it has one, counts more."""
    given = {_PREFIX + name: plain(variables[_PREFIX + name]) for name in ARGUMENT_SPEC if _PREFIX + name in variables}
    given.pop(_PREFIX + "baseline", None)  # read and told of by itself
    if values.get("profile") not in (None, {}, ""):
        given.pop(_PREFIX + "profile", None)
        given["profile"] = values["profile"]
    return given


def _of_baseline(baseline: Any) -> List[str]:
    if baseline in (None, ""):
        return []
    try:
        document = read(baseline) if isinstance(baseline, str) else baseline
        if not results_of(document):
            choose(document, "", None)
    except BaselineError as exc:
        return [str(exc).rstrip(".")]
    return []
