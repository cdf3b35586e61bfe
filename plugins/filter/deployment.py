# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The filter ``gpufleet.vllm.deployment``; documented in deployment.yml beside this file."""

from __future__ import annotations

from typing import Any, Callable, Dict, Sequence

from ansible.errors import AnsibleFilterError
from ansible.utils.display import Display

from ansible_collections.gpufleet.vllm.plugins.module_utils._catalogue.resolve import resolve
from ansible_collections.gpufleet.vllm.plugins.module_utils._catalogue.strays import strays
from ansible_collections.gpufleet.vllm.plugins.module_utils._core.errors import GpuFleetError


def deployment(models: Any, model: Any = None, variables: Sequence[str] = ()) -> Dict[str, Any]:
    """The parameters of vllm_service for one model of the catalogue."""
    wrong, told = strays(variables)
    for text in told:
        Display().warning(text[0].upper() + text[1:])  # once for each text
    if wrong:
        raise AnsibleFilterError(" ".join(text[0].upper() + text[1:] for text in wrong))
    try:
        return resolve(models, model)
    except GpuFleetError as exc:
        raise AnsibleFilterError(exc.msg) from None  # the message is whole


class FilterModule:
    """What Ansible looks for."""

    def filters(self) -> Dict[str, Callable[..., Any]]:
        """The filters of this file by name."""
        return {"deployment": deployment}
