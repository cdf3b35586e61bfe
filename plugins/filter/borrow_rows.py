# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The filters ``borrow_rows`` and ``borrow_not_put_back``; documented in the files of these names beside this one."""

from __future__ import annotations

from typing import Any, Callable, Dict, List, Sequence


def borrow_rows(results: Any, left_out: Sequence[str] = ()) -> List[Dict[str, Any]]:
    """One row per host for the table and the report."""
    # Loaded only here: whoever uses any filter of the collection loads this file, in a process of its own for each host.
    from ansible_collections.gpufleet.vllm.plugins.plugin_utils._borrow import rows_of

    return rows_of(results, left_out)


def borrow_not_put_back(results: Any) -> List[str]:
    """The hosts that may be without what served on them."""
    from ansible_collections.gpufleet.vllm.plugins.plugin_utils._borrow import not_put_back

    return not_put_back(results)


class FilterModule:
    """What Ansible looks for."""

    def filters(self) -> Dict[str, Callable[..., Any]]:
        """The filters of this file by name."""
        return {"borrow_rows": borrow_rows, "borrow_not_put_back": borrow_not_put_back}
