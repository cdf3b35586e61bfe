# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The filter ``misspelt``; documented in the file of this name beside this one."""

from __future__ import annotations

from typing import Any, Callable, Dict, List, Sequence

from ansible.errors import AnsibleFilterError


def misspelt(known: Any, roles: Any = (), elsewhere: Any = None, hostvars: Any = None, hosts: Sequence[str] = ()) -> List[str]:
    """The slips on the command line, in sentences; empty when there are none. ``hosts`` are the target's, ``hostvars`` holds theirs."""
    if not isinstance(known, (list, tuple)):
        raise AnsibleFilterError("misspelt takes a list of the names that a playbook knows, not %s" % type(known).__name__)
    # Loaded only here: whoever uses any filter of the collection loads this file, in a process of its own for each host.
    from ansible_collections.gpufleet.vllm.plugins.plugin_utils import _names, _readers

    own, given = [str(name) for name in known], _names.extra_names()
    if roles:
        from ansible_collections.gpufleet.vllm.plugins.module_utils._catalogue.schema import FIELDS

        # vllm_catalogue judges these, which an inventory may have written its catalogue in terms of.
        given = [name for name in given if name not in FIELDS]
    moved = {str(name): str(place) for name, place in (elsewhere or {}).items() if name not in own}
    try:
        families = {"%s_" % role: _names.options_of_role(str(role)) for role in roles}
    except OSError as exc:
        raise AnsibleFilterError("misspelt takes the names of roles of this collection: %s. Correct the name." % exc) from exc
    found = {name: "there is no variable %s here; %s" % (name, moved[name]) for name in given if name in moved}
    found.update(_names.slips_of_roles([name for name in given if name not in moved], own, families))
    return _names.refusals(found, _readers.readers_of(hostvars, hosts))


class FilterModule:
    """What Ansible looks for."""

    def filters(self) -> Dict[str, Callable[..., Any]]:
        """The filters of this file by name."""
        return {"misspelt": misspelt}
