# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The filter ``benchmark_faults``; documented in the file of this name beside this one."""

from __future__ import annotations

from typing import Any, Callable, Dict, List, Sequence


def benchmark_faults(asked: Any, hostvars: Any = None, hosts: Sequence[str] = ()) -> List[str]:
    """What is wrong with a request, in sentences; empty when nothing is."""
    # Loaded only here: whoever uses any filter of the collection loads this file, in a process of its own for each host.
    from ansible_collections.gpufleet.vllm.plugins.plugin_utils import _filter_benchmark_faults

    return _filter_benchmark_faults.benchmark_faults(asked, hostvars, hosts)


class FilterModule:
    """What Ansible looks for."""

    def filters(self) -> Dict[str, Callable[..., Any]]:
        """The filters of this file by name."""
        return {"benchmark_faults": benchmark_faults}
