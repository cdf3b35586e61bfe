# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the filters of ``benchmark_faults`` do."""

from __future__ import annotations

from typing import Any, Dict, List, Mapping, Sequence

from ansible.errors import AnsibleFilterError

from ansible_collections.gpufleet.vllm.plugins.module_utils._benchmark.profile import to_profile
from ansible_collections.gpufleet.vllm.plugins.module_utils._core.errors import GpuFleetError
from ansible_collections.gpufleet.vllm.plugins.modules.vllm_benchmark import ARGUMENT_SPEC
from ansible_collections.gpufleet.vllm.plugins.plugin_utils._baseline import BaselineError, choose, read, results_of
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
    if isinstance(values.get("profile"), Mapping):
        try:
            to_profile(values["profile"])
        except GpuFleetError as exc:
            faults.append(exc.msg.rstrip("."))
    return faults + _of_baseline(values.get("baseline")) + fault_of_query(values.get("query"))


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
