# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The filter ``benchmark_rows``; documented in the file of this name beside this one."""

from __future__ import annotations

from typing import Any, Callable, Dict, List


def benchmark_rows(results: Any, slow: Any = (), plans: Any = None, left_out: Any = ()) -> List[Dict[str, Any]]:
    """One row per host for the table and the report of a benchmark."""
    # Loaded only here: whoever uses any filter of the collection loads this file, in a process of its own for each host.
    from ansible_collections.gpufleet.vllm.plugins.plugin_utils import _filter_benchmark_rows

    return _filter_benchmark_rows.benchmark_rows(results, slow, plans, left_out)


class FilterModule:
    """What Ansible looks for."""

    def filters(self) -> Dict[str, Callable[..., Any]]:
        """The filters of this file by name."""
        return {"benchmark_rows": benchmark_rows}
