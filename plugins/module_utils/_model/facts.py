# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a model directory says about the model."""

from __future__ import annotations

import json
import os
from typing import Any, Dict, Mapping, Optional, Sequence

from .._core.errors import GpuFleetError
from .config import facts_from_config
from .files import find_weights, regular_size
from .gguf import read_gguf
from .gguf_config import config_from_gguf
from .types import ModelFacts

__all__ = ["ModelFacts", "facts_from_config", "read_model"]

# No config.json of a model comes near this; something else must have got there.
_LIMIT_BYTES = 16 * 1024 * 1024


def read_model(path: str) -> ModelFacts:
    """Read a model directory, or one ``.gguf`` file.

    GpuFleetError when it isn't there, has no configuration, or one that can't be read.
    """
    if os.path.isfile(path) and path.endswith(".gguf"):
        return _from_gguf(os.path.dirname(path), os.path.basename(path))
    if not os.path.isdir(path):
        what = "is a file" if os.path.exists(path) else "does not exist"
        raise GpuFleetError("The model directory %s %s." % (path, what))
    config_path = os.path.join(path, "config.json")
    if os.path.lexists(config_path):
        extra = _first_json(path, ("hf_quant_config.json", "quantize_config.json", "quant_config.json"))
        return facts_from_config(_load(config_path), path, extra)
    params_path = os.path.join(path, "params.json")
    if os.path.lexists(params_path):
        return facts_from_config(_load(params_path), path, None, "params.json")
    weights = find_weights(path)
    if weights.format == "gguf":
        return _from_gguf(path, weights.names[0])
    if os.path.isdir(os.path.join(path, "snapshots")):
        raise GpuFleetError(
            "%s is a hub cache's directory: the model is in one of the directories under its snapshots/." % path
        )
    if weights.adapter:
        raise GpuFleetError(
            "The directory %s holds an adapter (LoRA), no model. Give the model's own, and the adapter by lora_modules in args." % path
        )
    raise GpuFleetError(
        "The model directory %s holds no config.json (nor params.json nor a .gguf file). Is the download complete? Fetch it again."
        % path
    )


def _from_gguf(directory: str, name: str) -> ModelFacts:
    return facts_from_config(config_from_gguf(read_gguf(os.path.join(directory, name))), directory, None, name)


def _load(path: str) -> Dict[str, Any]:
    try:
        size_bytes = regular_size(path)
        if size_bytes > _LIMIT_BYTES:
            raise GpuFleetError("%s is larger than any model's configuration. Fetch it again." % path)
        with open(path, encoding="utf-8-sig") as handle:
            found = json.load(handle)
    except OSError as exc:
        raise GpuFleetError("%s can't be read: %s." % (path, exc.strerror)) from exc
    except (ValueError, RecursionError) as exc:
        raise GpuFleetError("%s is no JSON (%s). Is the download complete? Fetch it again." % (path, exc)) from exc
    if not isinstance(found, dict):
        raise GpuFleetError("%s holds no object: a model's configuration is needed there. Fetch it again." % path)
    return found


def _first_json(path: str, names: Sequence[str]) -> Optional[Mapping[str, Any]]:
    for name in names:
        file_path = os.path.join(path, name)
        if os.path.isfile(file_path):
            return _load(file_path)
    return None
