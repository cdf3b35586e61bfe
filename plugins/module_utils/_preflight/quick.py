# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The usual checkpoint at a glance: a whole family of safetensors shards, with hundreds of experts in each.

Reading every entry of such headers takes seconds: a model with 384 experts has 200,000 tensors, 20 MB of JSON. Nearly all are
experts, and of these only the sum is wanted. A header's tensors fill its data without a hole, so the experts' bytes are what the few
others leave. Whatever is not as usual is left to the reader that looks at everything (``_model/checkpoint.py``).
"""

from __future__ import annotations

import json
import os
import re
from dataclasses import dataclass
from typing import Any, Dict, List, Mapping, Optional

from .._model.checkpoint import Checkpoint
from .._model.roles import ENCODER, EXPERTS, Roles
from .._model.types import ModelFacts
from .regular import open_regular

_SHARD = re.compile(r"^(?P<stem>[^/]*-)(?P<number>\d{5,6})(?P<of>-of-(?P<count>\d{5,6})\.safetensors)$")
_INDEX = "model.safetensors.index.json"
# Under a model's directory, where the Hub's client notes what it fetches.
DOWNLOADS = os.path.join(".cache", "huggingface", "download")
# What stands beside weights in a model's directory. Anything else may be a download, or weights once more.
_BESIDE = re.compile(
    r"(\.(json|jsonl|txt|md|py|model|jinja|tiktoken|png|jpe?g|svg|gif|pdf|ya?ml)|^\.gitattributes|^license.*|^notice.*)$", re.IGNORECASE
)
_FLOAT32 = re.compile(rb'"dtype":"F32","shape":\[[0-9,]*\],"data_offsets":\[([0-9]+),([0-9]+)\]')
_LEAST_SHARDS = 2
_PACKED = (".qweight", ".weight_packed")
_LIMIT_BYTES = 100_000_000
_EXPERT, _OFFSETS = b".experts.", b'"data_offsets"'


@dataclass(frozen=True)
class Glance:
    """A checkpoint that is whole. Its ``dtype_bytes`` stay empty, as nobody has looked at each tensor, but for ``float32_bytes``."""

    checkpoint: Checkpoint
    float32_bytes: int


def quick_checkpoint(path: str, facts: ModelFacts) -> Optional[Glance]:
    """None where a directory's checkpoint is not as usual, not whole, or not as its configuration says."""
    shards = _family(path)
    if not shards:
        return None
    roles = Roles(facts.layers)
    by_role: Dict[str, int] = {}
    tensors, float32, eight_bit = 0, 0, False
    for name in shards:
        raw = _header(os.path.join(path, name))
        found = _shard(raw, roles, facts.layers) if raw is not None else None
        if found is None:
            return None
        tensors += found.tensors
        float32 += found.float32_bytes
        eight_bit = eight_bit or (raw is not None and b'"F8_' in raw)
        for role, size in found.by_role.items():
            by_role[role] = by_role.get(role, 0) + size
    if eight_bit != _says_eight_bit(facts, eight_bit):
        return None
    if not _index_agrees(os.path.join(path, _INDEX), shards[0], tensors):
        return None
    checkpoint = Checkpoint(
        path=path, format="safetensors", files=tuple(shards), total_bytes=sum(by_role.values()), role_bytes=by_role, tensors=tensors,
        last_layer=roles.last_layer,
    )
    return Glance(checkpoint, float32)


def _family(path: str) -> List[str]:
    """The shards, when they are all there and nothing strange is beside them."""
    try:
        listing = sorted(os.listdir(path))
        if os.path.isdir(os.path.join(path, DOWNLOADS)):
            return []
    except OSError:
        return []
    shards = []
    for name in listing:
        match = _SHARD.match(name)
        if match is not None:
            shards.append(name)
        elif not _BESIDE.search(name) and not os.path.isdir(os.path.join(path, name)):
            return []
    first = _SHARD.match(shards[0]) if shards else None
    if first is None or len(shards) < _LEAST_SHARDS or int(first.group("count")) != len(shards):
        return []
    wanted = ["%s%0*d%s" % (first.group("stem"), len(first.group("number")), number, first.group("of")) for number in
              range(1, len(shards) + 1)]
    return shards if shards == wanted else []


def _says_eight_bit(facts: ModelFacts, found: bool) -> bool:
    """Whether the configuration means weights in FP8; ``found`` where it may mean both."""
    if facts.quantisation is None:
        return False
    return True if facts.quantisation.method in ("fp8", "fbgemm_fp8") else found


@dataclass(frozen=True)
class _Shard:
    tensors: int
    by_role: Dict[str, int]
    float32_bytes: int


def _shard(raw: bytes, roles: Roles, layers: Optional[int]) -> Optional[_Shard]:
    """The header of one shard; None for one that is not as usual."""
    end, others = _end(raw), _others(raw)
    if end is None or others is None or not _plain_experts(raw, others, roles, layers):
        return None
    by_role: Dict[str, int] = {}
    float32 = _float32_bytes(raw)
    for name, entry in others.items():
        first, last = entry["data_offsets"]
        role = roles.of(name)
        if role == ENCODER and name.endswith(_PACKED):
            return None
        by_role[role] = by_role.get(role, 0) + last - first
    experts, count = end - sum(by_role.values()), raw.count(_OFFSETS)
    if experts < 0 or (experts > 0) != (len(others) < count) or float32 is None:
        return None
    if experts:
        by_role[EXPERTS] = by_role.get(EXPERTS, 0) + experts
    return _Shard(count, by_role, float32)


def _float32_bytes(raw: bytes) -> Optional[int]:
    """What is stored in full precision: the scales of quantised experts, as a rule. None where not all of it can be seen at a glance."""
    count = raw.count(b'"F32"')
    found = _FLOAT32.findall(raw) if count else []
    return sum(int(last) - int(first) for first, last in found) if len(found) == count else None


def _plain_experts(raw: bytes, others: Mapping[str, Any], roles: Roles, layers: Optional[int]) -> bool:
    """Whether all the experts are the model's own: under one stem, in its layers, none of them for something else."""
    first = raw.find(_EXPERT)
    if first < 0:
        return True
    begin = raw.rfind(b'"', 0, first)
    name = raw[begin + 1 : raw.find(b'"', first)].decode("utf-8", "replace")
    stem, found, _rest = name.partition("layers.")
    if layers is None or not found or roles.of(name) != EXPERTS or b"layers.%d." % layers in raw:
        return False
    stem += found
    return raw.count(b'"' + stem.encode()) == raw.count(_EXPERT) + sum(other.startswith(stem) for other in others)


def _header(path: str) -> Optional[bytes]:
    """The header of a file that is as long as it says; None for any other."""
    try:
        with open_regular(path) as handle:
            size = os.fstat(handle.fileno()).st_size
            length = int.from_bytes(handle.read(8), "little")
            if not 2 <= length <= _LIMIT_BYTES or 8 + length > size:
                return None
            raw = handle.read(length)
    except OSError:
        return None
    end = _end(raw) if raw.startswith(b"{") and len(raw) == length else None
    return raw if end is not None and 8 + length + end == size else None


def _end(raw: bytes) -> Optional[int]:
    """Where the last tensor ends, when the entry that is written last is it."""
    match = re.match(rb'"data_offsets"\s*:\s*\[\s*\d+\s*,\s*(\d+)\s*\]', raw[max(raw.rfind(_OFFSETS), 0):])
    return int(match.group(1)) if match is not None else None


def _others(raw: bytes) -> Optional[Dict[str, Mapping[str, Any]]]:
    """The entries that are no experts, parsed. Between two experts that follow each other stands only the first one's entry."""
    pieces = raw.split(_EXPERT)
    texts = [pieces[0]] + [piece[piece.find(b"}") + 1:] for piece in pieces[1:] if piece.count(b"}") != 1]
    if len(pieces) == 1:
        texts = [raw]
    found: Dict[str, Mapping[str, Any]] = {}
    for number, text in enumerate(texts):
        if len(pieces) > 1:
            # Up to the last whole entry: what follows is the beginning of the next expert's name, or the header's end.
            text = text[: text.rfind(b"}") + 1] if text.rstrip()[-1:] != b"}" or number == 0 else text.rstrip()[:-1]
            text = b"{" + text.strip().lstrip(b"{").lstrip(b",") + b"}"
        try:
            entries = json.loads(text)
        except (ValueError, RecursionError):
            return None
        if not isinstance(entries, dict):
            return None
        entries.pop("__metadata__", None)
        if not all(_is_entry(entry) for entry in entries.values()):
            return None
        found.update(entries)
    return found


def _is_entry(entry: Any) -> bool:
    offsets = entry.get("data_offsets") if isinstance(entry, dict) else None
    if not isinstance(offsets, list) or len(offsets) != 2:
        return False
    if not all(isinstance(each, int) and not isinstance(each, bool) for each in offsets):
        return False
    return bool(0 <= offsets[0] <= offsets[1])


def _index_agrees(path: str, shard: str, tensors: int) -> bool:
    """Whether an index that is there names as many tensors, all of them in this family of shards."""
    try:
        with open_regular(path) as handle:
            raw = handle.read(4 * _LIMIT_BYTES)
    except FileNotFoundError:
        return True
    except OSError:
        return False
    match = _SHARD.match(shard)
    if match is None:
        return False
    named = raw.count((match.group("of") + '"').encode())
    return named == tensors and raw.count(b'.safetensors"') == named and raw.rstrip()[-1:] == b"}"
