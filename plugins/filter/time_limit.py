# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The filter ``gpufleet.vllm.time_limit``; documented in time_limit.yml beside this file."""

from __future__ import annotations

from typing import Any, Callable, Dict, Mapping

from ansible.errors import AnsibleFilterError

from ansible_collections.gpufleet.vllm.plugins.module_utils._unit.change_limits import (
    READY_S,
    RECONNECT_S,
    STOP_S,
    longest_s,
)


def time_limit(parameters: Any) -> int:
    """Seconds after which a task that runs vllm_service with these parameters can only be stuck."""
    if not isinstance(parameters, Mapping):
        raise AnsibleFilterError("time_limit takes the parameters of vllm_service, a dictionary, not %s" % type(parameters).__name__)
    return longest_s(
        _seconds(parameters.get("ready_timeout")) or READY_S,
        _seconds(parameters.get("drain_timeout")),
        _seconds(parameters.get("stop_timeout")) or STOP_S,
        _seconds(parameters.get("reconnect_timeout")) or RECONNECT_S,
    )


def _seconds(value: Any) -> float:
    """0 for what is no number: the module refuses it with a message of its own."""
    try:
        return max(0.0, float(value))
    except (TypeError, ValueError):
        return 0.0


class FilterModule:
    """What Ansible looks for."""

    def filters(self) -> Dict[str, Callable[..., Any]]:
        """The filters of this file by name."""
        return {"time_limit": time_limit}
