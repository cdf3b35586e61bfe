# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""How a model's weights are stored: what its quantisation demands of sizes."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, List, Mapping, Optional, Tuple

# Group sizes that belong to a format without being written down.
_FIXED_GROUPS = {"nvfp4": 16, "modelopt_fp4": 16}
# Padded by vLLM on load: no size is refused.
_PADDED = ("mxfp4",)


@dataclass(frozen=True)
class Quantisation:
    """One model's quantisation.

    ``block`` is (block_n, block_k) of block-quantised FP8; ``group`` the group size along a weight's input, None for
    scales per channel or tensor. ``ignored`` are the patterns of modules that are not quantised.
    """

    method: str
    block: Optional[Tuple[int, int]] = None
    group: Optional[int] = None
    bits: Optional[int] = None
    ignored: Tuple[str, ...] = ()

    def covers(self, module: str, layers: Optional[int] = None) -> bool:
        """Whether modules of that kind are quantised. ``module`` is an example by its full name in layer 0.

        Some lists name a kind once, some name the module of every layer, some the odd layer out: a kind is left out
        only when all of its ``layers`` are.
        """
        layered = set()
        for pattern in self.ignored:
            if pattern.startswith("re:"):
                if _regex_matches(pattern[3:], module):
                    return False
                continue
            plain = pattern.replace("*", "").strip(".")
            number = re.search(r"\.(\d+)(?:\.|$)", plain)
            general = re.sub(r"\.\d+(?=\.|$)", ".0", plain)
            if plain and ("." + general + ".") in ("." + module + "."):
                if number is None:
                    return False
                layered.add(int(number.group(1)))
        return not (layered and len(layered) >= (layers or 1))


def read_quantisation(raw: Optional[Mapping[str, Any]]) -> Optional[Quantisation]:
    """Read ``quantization_config`` in the forms of FP8, GPTQ, AWQ, compressed-tensors and ModelOpt.

    None when there is none. A form that isn't known has neither block nor group: no rule can be applied to it.
    """
    if not raw:
        return None
    if isinstance(raw.get("quantization"), Mapping):  # ModelOpt's hf_quant_config.json
        raw = dict(raw["quantization"], quant_method=raw["quantization"].get("quant_algo", "modelopt"))
    method = str(raw.get("quant_method") or raw.get("quant_algo") or "unknown").lower()
    weights = _compressed_weights(raw)
    block = _block(raw.get("weight_block_size"))
    group = _number(raw.get("group_size"))
    bits = _number(raw.get("bits") or raw.get("w_bit") or raw.get("num_bits"))
    if weights is not None:
        bits = _number(weights.get("num_bits")) or bits
        if weights.get("strategy") == "block":
            block = _block(weights.get("block_structure"))
        elif weights.get("strategy") in (None, "group", "tensor_group"):
            group = _number(weights.get("group_size")) or group
    for name, size in _FIXED_GROUPS.items():
        if group is None and (name in method or name in str(raw.get("quant_algo", "")).lower()):
            group = size
    if method in _PADDED:
        block = group = None
    return Quantisation(method, block, group, bits, tuple(_ignored(raw)))


def _compressed_weights(raw: Mapping[str, Any]) -> Optional[Mapping[str, Any]]:
    groups = raw.get("config_groups")
    if not isinstance(groups, Mapping):
        return None
    for group in groups.values():
        if isinstance(group, Mapping) and isinstance(group.get("weights"), Mapping):
            found: Mapping[str, Any] = group["weights"]
            return found
    return None


def _ignored(raw: Mapping[str, Any]) -> List[str]:
    found: List[str] = []
    for name in ("modules_to_not_convert", "ignore", "ignored_layers", "exclude_modules"):
        value = raw.get(name)
        if isinstance(value, list):
            found += [item for item in value if isinstance(item, str) and item]
    dynamic = raw.get("dynamic")
    if isinstance(dynamic, Mapping):  # GPTQ: "-:" before a regular expression leaves the modules out
        found += ["re:" + name[2:] for name in dynamic if isinstance(name, str) and name.startswith("-:")]
    return found


def _regex_matches(pattern: str, module: str) -> bool:
    try:
        return re.match(pattern, module) is not None
    except re.error:
        return False


def _block(value: Any) -> Optional[Tuple[int, int]]:
    if isinstance(value, (list, tuple)) and len(value) == 2:
        first, second = _number(value[0]), _number(value[1])
        if first and second:
            return first, second
    return None


def _number(value: Any) -> Optional[int]:
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= 2**31:
        return None
    return value
