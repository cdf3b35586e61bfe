# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""How a model's weights are stored: what its quantisation demands of sizes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Collection, List, Mapping, Optional, Tuple

from .names import MOST_LAYERS
from .patterns import all_excluded, matches

# Group sizes that belong to a format without being written down.
_FIXED_GROUPS = {"nvfp4": 16, "modelopt_fp4": 16, "mxfp8": 32}
# Padded by vLLM on load: no size is refused.
_PADDED = ("mxfp4", "gpt_oss_mxfp4")
# Weight-only integers, for which vLLM has Marlin's kernels.
_MARLIN = ("gptq", "gptq_marlin", "awq", "awq_marlin", "auto-round", "auto_round", "inc", "intel/auto-round")
KNOWN_METHODS = (
    _PADDED
    + _MARLIN
    + (
        "fp8",
        "fbgemm_fp8",
        "ptpc_fp8",
        "compressed-tensors",
        "modelopt",
        "modelopt_fp4",
        "modelopt_mxfp8",
        "nvfp4",
        "quark",
        "torchao",
        "bitsandbytes",
        "experts_int8",
        "gguf",
    )
)
_LISTS = ("modules_to_not_convert", "ignore", "ignored_layers", "exclude_modules", "exclude", "llm_int8_skip_modules")


@dataclass(frozen=True)
class Scheme:
    """How some modules are stored.

    ``block`` is (block_n, block_k) of block-quantised FP8; ``group`` the group size along a weight's input, None for
    scales per channel or tensor. ``tiles`` says that Marlin's kernels read them, which want whole tiles. ``unclear``: a
    block or a group is given, but not in a form that is understood.
    """

    method: str
    block: Optional[Tuple[int, int]] = None
    group: Optional[int] = None
    bits: Optional[int] = None
    tiles: bool = False
    unclear: bool = False


@dataclass(frozen=True)
class Quantisation:
    """One model's quantisation: the scheme of most modules, ``groups`` of modules with one of their own, and those left out.

    ``ignored`` are the patterns of modules that are not quantised; ``only`` those of the ones that are, empty for all.
    """

    method: str
    block: Optional[Tuple[int, int]] = None
    group: Optional[int] = None
    bits: Optional[int] = None
    ignored: Tuple[str, ...] = ()
    tiles: bool = False
    groups: Tuple[Tuple[Tuple[str, ...], Scheme], ...] = ()
    only: Tuple[str, ...] = ()
    unclear: bool = False
    kv_cache: Optional[str] = None  # the KV cache that the checkpoint was made for: fp8, or the words that aren't known

    @property
    def scheme(self) -> Scheme:
        """That of modules without one of their own."""
        return Scheme(self.method, self.block, self.group, self.bits, self.tiles, self.unclear)

    def covers(self, module: str, layers: Optional[int] = None, among: Optional[Collection[int]] = None) -> bool:
        """Whether modules of that kind are quantised. ``module`` is an example by its full name in layer 0.

        Some lists name a kind once, some name the module of every layer, some the odd layer out: a kind is left out
        only when it is in all of its layers: those in ``among``, else the model's ``layers``.
        """
        return self._chosen((module,)) and self._kept((module,), layers, among)

    def of(
        self, names: Collection[str], layers: Optional[int] = None, among: Optional[Collection[int]] = None
    ) -> Optional[Scheme]:
        """The scheme of a kind of modules, None when it isn't quantised. ``names`` are what models call one of them."""
        if not self._chosen(names) or not self._kept(names, layers, among):
            return None
        if not self.groups:
            return self.scheme
        named = [(target, scheme) for targets, scheme in self.groups for target in targets]
        for target, scheme in named:
            if target not in ("Linear", "FusedMoE") and any(matches(target, name) for name in names):
                return scheme
        return next((scheme for target, scheme in named if target in ("Linear", "FusedMoE")), None)

    def _chosen(self, names: Collection[str]) -> bool:
        return not self.only or any(part in name for part in self.only for name in names)

    def _kept(self, names: Collection[str], layers: Optional[int], among: Optional[Collection[int]]) -> bool:
        where = set(range(min(layers or 1, MOST_LAYERS))) if among is None else set(among)
        return not any(all_excluded(self.ignored, name, where) for name in names)


def read_quantisation(raw: Optional[Mapping[str, Any]]) -> Optional[Quantisation]:
    """Read ``quantization_config`` in the forms of FP8, GPTQ, AWQ, compressed-tensors, ModelOpt, Quark and others.

    None when there is none. A form that isn't known has neither block nor group: no rule can be applied to it.
    """
    if not raw:
        return None
    if isinstance(raw.get("quantization"), Mapping):  # ModelOpt's hf_quant_config.json
        raw = dict(raw["quantization"], quant_method=raw["quantization"].get("quant_algo", "modelopt"))
    method = _method(raw)
    groups = _groups(raw, method)
    plain = _plain(raw, method, groups)
    return Quantisation(
        method=plain.method,
        block=plain.block,
        group=plain.group,
        bits=plain.bits,
        ignored=tuple(_ignored(raw)),
        tiles=plain.tiles,
        groups=groups,
        only=_only(raw),
        unclear=plain.unclear,
        kv_cache=_kv_cache(raw),
    )


def _method(raw: Mapping[str, Any]) -> str:
    for name in ("quant_method", "quant_algo", "qformat_weight"):
        if isinstance(raw.get(name), str) and raw[name]:
            found: str = raw[name].lower().replace("compressed_tensors", "compressed-tensors")
            return "fp8" if name == "qformat_weight" and found.startswith("fp8") else found
    return "unknown"


def _plain(raw: Mapping[str, Any], method: str, groups: Tuple[Tuple[Tuple[str, ...], Scheme], ...]) -> Scheme:
    if groups:
        return groups[0][1]
    if method == "quark":
        inner = raw.get("global_quant_config")
        weight = inner.get("weight") if isinstance(inner, Mapping) else None
        weight = weight[0] if isinstance(weight, list) and weight else weight
        return _weights(weight, method, False) if isinstance(weight, Mapping) else Scheme(method)
    if method == "torchao":
        return Scheme(method, group=_torchao_group(raw))
    block = _block(raw.get("weight_block_size"))
    group = number(raw.get("group_size")) or number(raw.get("q_group_size"))
    unclear = raw.get("weight_block_size") is not None and block is None
    unclear = unclear or not (_is_group(raw.get("group_size")) and _is_group(raw.get("q_group_size")))
    bits = number(raw.get("bits") or raw.get("w_bit") or raw.get("num_bits"))
    algorithm = "%s %s" % (method, str(raw.get("quant_algo", "")).lower())
    for name, size in _FIXED_GROUPS.items():
        if group is None and name in algorithm:
            group = size
    if block is not None:
        group = None
    tiles = method in _MARLIN and bits in (4, 8, None)
    if method in _PADDED:
        return Scheme(method, None, None, bits)
    return Scheme(method, block, group, bits, tiles, unclear)


def _groups(raw: Mapping[str, Any], method: str) -> Tuple[Tuple[Tuple[str, ...], Scheme], ...]:
    found = raw.get("config_groups")
    groups = []
    for group in found.values() if isinstance(found, Mapping) else ():
        if isinstance(group, Mapping) and isinstance(group.get("weights"), Mapping):
            targets = group.get("targets")
            names = [name for name in targets if isinstance(name, str)] if isinstance(targets, list) else []
            weight_only = not isinstance(group.get("input_activations"), Mapping)
            groups.append((tuple(names) or ("Linear",), _weights(group["weights"], method, weight_only)))
    return tuple(groups)


def _weights(weights: Mapping[str, Any], method: str, weight_only: bool) -> Scheme:
    strategy = weights.get("strategy") or weights.get("qscheme")
    bits = number(weights.get("num_bits"))
    block = group = None
    unclear = not _is_group(weights.get("group_size"))
    if strategy == "block":
        block = _block(weights.get("block_structure"))
        unclear = block is None
    elif strategy in (None, "group", "tensor_group", "per_group"):
        group = number(weights.get("group_size"))
    integers = weights.get("type", "int") == "int" and bits in (4, 8)
    return Scheme(method, block, group, bits, weight_only and integers and method == "compressed-tensors", unclear)


def _is_group(value: Any) -> bool:
    """Whether it is a group size, or one of the ways to say that there are no groups."""
    return value is None or number(value) is not None or (value in (-1, 0) and isinstance(value, int))


def _torchao_group(raw: Mapping[str, Any]) -> Optional[int]:
    current: Any = raw.get("quant_type")
    for name in ("default", "_data"):
        current = current.get(name) if isinstance(current, Mapping) else None
    return number(current.get("group_size")) if isinstance(current, Mapping) else None


def _ignored(raw: Mapping[str, Any]) -> List[str]:
    found: List[str] = []
    for name in _LISTS:
        value = raw.get(name)
        if isinstance(value, list):
            found += [item for item in value if isinstance(item, str) and item]
    dynamic = raw.get("dynamic")
    if isinstance(dynamic, Mapping):  # GPTQ: "-:" before a regular expression leaves the modules out
        found += ["re:" + name[2:] for name in dynamic if isinstance(name, str) and name.startswith("-:")]
    extra = raw.get("extra_config")
    if isinstance(extra, Mapping):  # AutoRound: modules with 16 bits or more are as they were
        found += [
            name
            for name, value in extra.items()
            if isinstance(name, str) and isinstance(value, Mapping) and (number(value.get("bits")) or 0) >= 16
        ]
    return found


def _kv_cache(raw: Mapping[str, Any]) -> Optional[str]:
    """compressed-tensors and ModelOpt describe the cache's values like those of weights; ModelOpt also by a name."""
    scheme = raw.get("kv_cache_scheme")
    if isinstance(scheme, Mapping) and scheme:
        known = number(scheme.get("num_bits")) == 8 and scheme.get("type", "float") == "float"
        return "fp8" if known else "%s bits of %s" % (str(scheme.get("num_bits"))[:20], str(scheme.get("type"))[:20])
    name = raw.get("kv_cache_quant_algo")
    if not isinstance(name, str) or not name or name.lower() in ("none", "null"):
        return None
    return "fp8" if name.lower().startswith("fp8") else name.lower()[:40]


def _only(raw: Mapping[str, Any]) -> Tuple[str, ...]:
    """GPTQ's list of what is quantised, by the names within a layer; it comes flat or in lists."""
    found = raw.get("modules_in_block_to_quantize")
    flat: List[Any] = []
    for item in found if isinstance(found, list) else []:
        flat += item if isinstance(item, list) else [item]
    return tuple(item for item in flat if isinstance(item, str) and item)


def _block(value: Any) -> Optional[Tuple[int, int]]:
    if isinstance(value, (list, tuple)) and len(value) == 2:
        first, second = number(value[0]), number(value[1])
        if first and second:
            return first, second
    return None


def number(value: Any) -> Optional[int]:
    """A whole number from 1 to 2^31."""
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= 2**31:
        return None
    return value
