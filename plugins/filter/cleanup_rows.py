# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The filter ``cleanup_rows``; documented in the file of this name beside this one."""

from __future__ import annotations

from typing import Any, Callable, Dict, List


def cleanup_rows(results: Any) -> List[Dict[str, Any]]:
    """One row per host for the table and the report of a clean-up."""
    # Loaded only here: whoever uses any filter of the collection loads this file, in a process of its own for each host.
    from ansible_collections.gpufleet.vllm.plugins.plugin_utils._cleanup_rows import rows_of

    return rows_of(results)


class FilterModule:
    """What Ansible looks for."""

    def filters(self) -> Dict[str, Callable[..., Any]]:
        """The filters of this file by name."""
        return {"cleanup_rows": cleanup_rows}
