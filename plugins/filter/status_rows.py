# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The filters ``status_rows``, ``status_findings`` and ``status_faults``; documented in the files of these names beside this one."""

from __future__ import annotations

import time
from typing import Any, Callable, Dict, List


def status_rows(results: Any) -> List[Dict[str, Any]]:
    """One row for each service of each host."""
    # Loaded only here: whoever uses any filter of the collection loads this file, in a process of its own for each host.
    from ansible_collections.gpufleet.vllm.plugins.plugin_utils._status import rows_of

    return rows_of(results, time.time())


def status_findings(results: Any) -> List[Dict[str, Any]]:
    """What the table has no room for."""
    from ansible_collections.gpufleet.vllm.plugins.plugin_utils._status import findings_of

    return findings_of(results)


def status_faults(results: Any, fail_on_drift: bool = False) -> Dict[str, str]:
    """The hosts that fail the run."""
    from ansible_collections.gpufleet.vllm.plugins.plugin_utils._status_faults import faults_of

    return faults_of(results, fail_on_drift)


class FilterModule:
    """What Ansible looks for."""

    def filters(self) -> Dict[str, Callable[..., Any]]:
        """The filters of this file by name."""
        return {"status_rows": status_rows, "status_findings": status_findings, "status_faults": status_faults}
