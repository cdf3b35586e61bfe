# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The lab's model catalogue with more in its entries: the one place where a swap learns how long to wait for what."""

from __future__ import annotations

import json
from typing import Any

import yaml

from chaos.controller import ROOT

_INVENTORY = ROOT / "inventories" / "lab" / "group_vars" / "gpu_hosts.yml"


def entries_with(*models: str, **keys: Any) -> tuple[str, str]:
    """Words for ``ansible-playbook``: the catalogue, where the entries of these models, or else all of them, say this as well.

    A mapping is added to the one that stands there.
    """
    catalogue: dict[str, dict[str, Any]] = yaml.safe_load(_INVENTORY.read_text(encoding="utf-8"))["vllm_models"]
    for model in models or tuple(catalogue):
        entry = catalogue[model]
        entry.update({key: {**entry.get(key, {}), **value} if isinstance(value, dict) else value for key, value in keys.items()})
    return "-e", json.dumps({"vllm_models": catalogue})
