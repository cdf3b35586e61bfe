# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the filters of ``benchmark_slow`` do."""

from __future__ import annotations

from typing import Any, Dict, List, Mapping

from ansible.errors import AnsibleFilterError

from ansible_collections.gpufleet.vllm.plugins.module_utils._benchmark.compare import slow_hosts
from ansible_collections.gpufleet.vllm.plugins.plugin_utils._baseline import results_of


def benchmark_slow(results: Any, percent: Any = 10) -> List[Dict[str, Any]]:
    """The hosts that make fewer tokens than the others with the same deployment, slowest first."""
    try:
        limit = float(percent)
    except (TypeError, ValueError) as exc:
        raise AnsibleFilterError("benchmark_slow takes a number of percent, not %r" % (percent,)) from exc
    if not isinstance(results, Mapping):
        raise AnsibleFilterError("benchmark_slow takes a dictionary of results by host, not %s" % type(results).__name__)
    return slow_hosts(results_of({"hosts": results}), limit)


def benchmark_hosts(plans: Any, once_per: Any = "host") -> List[str]:
    """The hosts to measure: all that can be, or one of each deployment."""
    if once_per not in ("host", "deployment"):
        raise AnsibleFilterError("once_per is %r. It is host or deployment." % (once_per,))
    if not isinstance(plans, Mapping):
        raise AnsibleFilterError("benchmark_hosts takes a dictionary of plans by host, not %s" % type(plans).__name__)
    able = {str(host): plan for host, plan in plans.items() if isinstance(plan, Mapping) and plan.get("fingerprint")}
    if once_per == "host":
        return list(able)
    chosen: Dict[str, str] = {}
    # One whose result stands costs nothing.
    for host in sorted(able, key=lambda name: bool(able[name].get("changed"))):
        chosen.setdefault(str(able[host].get("deployment")), host)
    return [host for host in able if host in chosen.values()]
