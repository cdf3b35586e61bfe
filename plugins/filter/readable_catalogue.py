# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The filter ``gpufleet.vllm.readable_catalogue``; documented in readable_catalogue.yml beside this file."""

from __future__ import annotations

from typing import Any, Callable, Dict, Mapping

from ansible.errors import AnsibleError
from jinja2 import TemplateError

# What Ansible puts before the reason where a template fails for another one than an undefined variable.
_WRAPPED = "A captured exception marker was tripped: "
_FAULT = "vllm_models[%r] cannot be read on this host: %s. Define what it needs for this host, or correct the entry."


def readable_catalogue(models: Any) -> Dict[str, Any]:
    """``models``, the entries whose templates mean something on this host, and ``faults``, why each other one means nothing."""
    if not isinstance(models, Mapping):
        return {"models": models, "faults": {}}  # whoever takes the catalogue says what is wrong with it
    found: Dict[str, Any] = {}
    faults: Dict[str, str] = {}
    for name in models:
        try:
            found[name] = _whole(models[name])
        except (AnsibleError, TemplateError) as exc:
            reason = str(getattr(exc, "message", exc)).replace(_WRAPPED, "").strip().rstrip(".")
            faults[str(name)] = _FAULT % (str(name), reason)
    return {"models": found, "faults": faults}


def _whole(value: Any) -> Any:
    """The value with all that is in it: Ansible reads a template when what it stands for is asked for."""
    if isinstance(value, Mapping):
        return {key: _whole(value[key]) for key in value}
    if isinstance(value, (list, tuple)):
        return [_whole(each) for each in value]
    return value


class FilterModule:
    """What Ansible looks for."""

    def filters(self) -> Dict[str, Callable[..., Any]]:
        """The filters of this file by name."""
        return {"readable_catalogue": readable_catalogue}
