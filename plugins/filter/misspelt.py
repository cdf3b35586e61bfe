# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The filter ``misspelt``; documented in the file of this name beside this one."""

from __future__ import annotations

from typing import Any, Callable, Dict, List

from ansible.errors import AnsibleFilterError


def misspelt(known: Any) -> List[str]:
    """The slips on the command line, in sentences; empty when there are none."""
    if not isinstance(known, (list, tuple)):
        raise AnsibleFilterError("misspelt takes a list of the names that a playbook knows, not %s" % type(known).__name__)
    # Loaded only here: whoever uses any filter of the collection loads this file, in a process of its own for each host.
    from ansible_collections.gpufleet.vllm.plugins.plugin_utils import _names

    return _names.slips(_names.extra_names(), [str(name) for name in known])


class FilterModule:
    """What Ansible looks for."""

    def filters(self) -> Dict[str, Callable[..., Any]]:
        """The filters of this file by name."""
        return {"misspelt": misspelt}
