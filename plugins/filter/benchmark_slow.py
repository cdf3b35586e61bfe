# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The filters ``benchmark_slow`` and ``benchmark_hosts``; documented in the files of these names beside this one."""

from __future__ import annotations

from typing import Any, Callable, Dict, List


def benchmark_slow(results: Any, percent: Any = 10) -> List[Dict[str, Any]]:
    """The hosts that make fewer tokens than the others with the same deployment, slowest first."""
    # Loaded only here: whoever uses any filter of the collection loads this file, in a process of its own for each host.
    from ansible_collections.gpufleet.vllm.plugins.plugin_utils import _filter_benchmark_slow

    return _filter_benchmark_slow.benchmark_slow(results, percent)


def benchmark_hosts(plans: Any, once_per: Any = "host") -> List[str]:
    """The hosts to measure: all that can be, or one of each deployment."""
    # Loaded only here: whoever uses any filter of the collection loads this file, in a process of its own for each host.
    from ansible_collections.gpufleet.vllm.plugins.plugin_utils import _filter_benchmark_slow

    return _filter_benchmark_slow.benchmark_hosts(plans, once_per)


class FilterModule:
    """What Ansible looks for."""

    def filters(self) -> Dict[str, Callable[..., Any]]:
        """The filters of this file by name."""
        return {"benchmark_slow": benchmark_slow, "benchmark_hosts": benchmark_hosts}
