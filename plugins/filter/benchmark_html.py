# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The filters ``benchmark_html`` and ``benchmark_markdown``; documented in the files of these names beside this one."""

from __future__ import annotations

from typing import Any, Callable, Dict


def benchmark_html(results: Any, title: Any, rows: Any, slow: Any = ()) -> str:
    """One page with tables and plots."""
    # Loaded only here: whoever uses any filter of the collection loads this file, in a process of its own for each host.
    from ansible_collections.gpufleet.vllm.plugins.plugin_utils import _filter_benchmark_html

    return _filter_benchmark_html.benchmark_html(results, title, rows, slow)


def benchmark_markdown(results: Any, title: Any, rows: Any, slow: Any = ()) -> str:
    """The same tables as text."""
    # Loaded only here: whoever uses any filter of the collection loads this file, in a process of its own for each host.
    from ansible_collections.gpufleet.vllm.plugins.plugin_utils import _filter_benchmark_html

    return _filter_benchmark_html.benchmark_markdown(results, title, rows, slow)


class FilterModule:
    """What Ansible looks for."""

    def filters(self) -> Dict[str, Callable[..., Any]]:
        """The filters of this file by name."""
        return {"benchmark_html": benchmark_html, "benchmark_markdown": benchmark_markdown}
