# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The filter ``borrow_faults``; documented in the file of this name beside this one."""

from __future__ import annotations

from typing import Any, Callable, Dict, List, Mapping

from ansible.errors import AnsibleFilterError


def borrow_faults(asked: Any, hosts: Any = None, hostvars: Any = None) -> List[str]:
    """What is wrong with a request, in sentences; empty when nothing is. ``hosts`` are the variables of each host that it is for."""
    if not isinstance(asked, Mapping):
        raise AnsibleFilterError("borrow_faults takes a dictionary of what was asked for, not %s" % type(asked).__name__)
    # Loaded only here: whoever uses any filter of the collection loads this file, in a process of its own for each host.
    from ansible_collections.gpufleet.vllm.plugins.plugin_utils import _borrow, _names, _readers

    # A slip on the command line (``gpu`` for ``gpus``) would otherwise go unnoticed, and all GPUs be borrowed.
    return _borrow.faults(asked, _names.extra_names(), hosts or {}, _readers.readers_of(hostvars, hosts or {}))


class FilterModule:
    """What Ansible looks for."""

    def filters(self) -> Dict[str, Callable[..., Any]]:
        """The filters of this file by name."""
        return {"borrow_faults": borrow_faults}
