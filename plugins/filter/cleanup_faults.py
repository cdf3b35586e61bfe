# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The filter ``cleanup_faults``; documented in the file of this name beside this one."""

from __future__ import annotations

from typing import Any, Callable, Dict, List, Mapping, Sequence

from ansible.errors import AnsibleFilterError


def cleanup_faults(hostvars: Any, hosts: Sequence[str], scope: Any, query: Any = None) -> List[str]:
    """What is wrong with a request, in sentences; empty when nothing is."""
    if not isinstance(hostvars, Mapping):
        raise AnsibleFilterError("cleanup_faults takes hostvars, not %s" % type(hostvars).__name__)
    # Loaded only here: whoever uses any filter of the collection loads this file, in a process of its own for each host.
    from ansible_collections.gpufleet.vllm.plugins.plugin_utils import _cleanup, _names, _readers

    by_host: Dict[str, Dict[str, Any]] = {}
    for host in hosts:
        variables = hostvars[host]
        by_host[str(host)] = {str(name): variables[name] for name in variables if str(name).startswith(_cleanup.PREFIX)}
        by_host[str(host)].update({_cleanup.PREFIX + "scope": scope, _cleanup.PREFIX + "accept": "anything"})
    named = _cleanup.faults_of_names(_names.extra_names(), _readers.readers_of(hostvars, hosts))
    return named + _cleanup.fault_of_query(query) + _cleanup.faults_of_fleet(by_host)


class FilterModule:
    """What Ansible looks for."""

    def filters(self) -> Dict[str, Callable[..., Any]]:
        """The filters of this file by name."""
        return {"cleanup_faults": cleanup_faults}
