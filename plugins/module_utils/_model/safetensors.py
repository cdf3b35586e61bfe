# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The header of a safetensors file: which tensors it holds and how many bytes, without reading them.

A file begins with the header's length (8 bytes, little-endian); the header is JSON: for each tensor its dtype, shape and
place; the data follow without a gap to the end of the file. The format's own limit for a header is 100 MB.

A mixture of experts has a hundred thousand tensors, and to parse all their headers takes a second. What is written as
the format's own library writes it is therefore counted by kinds of experts; every other form is parsed as any JSON.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from dataclasses import dataclass, field
from typing import Any, Dict, List, Mapping, Optional, Set, Tuple

from .files import regular_size
from .roles import ENCODER, EXPERTS, Roles

_LIMIT_BYTES = 100_000_000
_POINTER = b"version https://git-lfs"
# Below this, parsing takes no time.
_LARGE_BYTES = 128 * 1024
# Packed weights of GPTQ and AWQ, and of compressed-tensors.
_PACKED = (".qweight", ".weight_packed")


class Broken(Exception):
    """Why a file can't be used, in words that continue "FILE ..."."""


@dataclass
class Summary:
    """Bytes by role and by dtype, of how many tensors; their ``names`` unless they were only counted."""

    roles: Dict[str, int] = field(default_factory=dict)
    dtypes: Dict[str, int] = field(default_factory=dict)
    tensors: int = 0
    names: Optional[Set[str]] = field(default_factory=set)
    encoder_packed: Set[Tuple[str, int, int]] = field(default_factory=set)

    def add(self, role: str, dtype: Any, size_bytes: int, count: int = 1) -> None:
        """Count ``count`` tensors of this size."""
        self.roles[role] = self.roles.get(role, 0) + size_bytes * count
        if isinstance(dtype, str):
            self.dtypes[dtype] = self.dtypes.get(dtype, 0) + size_bytes * count
        self.tensors += count


def read_raw(path: str) -> Tuple[bytes, int]:
    """The header as it stands there, and how many bytes of data follow. Broken, or OSError when it can't be read."""
    size_bytes = regular_size(path)
    with open(path, "rb") as handle:
        start = handle.read(len(_POINTER))
        if start.startswith(_POINTER):
            raise Broken("is a git-lfs pointer: the weights themselves were not fetched")
        if not size_bytes:
            raise Broken("is empty")
        length = int.from_bytes(start[:8], "little")
        if len(start) < 10 or length < 2 or length > _LIMIT_BYTES or start[8:9] != b"{":
            raise Broken("does not begin as a safetensors file")
        if 8 + length > size_bytes:
            raise Broken("ends within its header: %d of at least %d bytes are there" % (size_bytes, 8 + length))
        handle.seek(8)
        return handle.read(length), size_bytes - 8 - length


def summarise(raw: bytes, data_bytes: int, roles: Roles, known: Set[str], large: int = _LARGE_BYTES) -> Summary:
    """Count the tensors of one file but those in ``known``. Broken when it isn't whole."""
    if len(raw) > large and not known:
        found = _counted(raw, data_bytes, roles)
        if found is not None:
            return found
    entries = _parse(raw)
    end = _end(entries)
    if end is None:
        raise Broken("has a header that places its tensors nowhere")
    if end != data_bytes:
        what = "is truncated" if end > data_bytes else "is longer than its header says"
        raise Broken("%s: %d bytes of data where %d should be" % (what, data_bytes, end))
    summary = Summary()
    _add(summary, entries, roles, known)
    summary.names = set(entries)
    return summary


def _add(summary: Summary, entries: Mapping[str, Mapping[str, Any]], roles: Roles, known: Set[str]) -> None:
    for name, entry in entries.items():
        if name in known:
            continue
        first, last = entry["data_offsets"]
        role = roles.of(name)
        summary.add(role, entry.get("dtype"), last - first)
        if role == ENCODER and name.endswith(_PACKED):
            summary.encoder_packed |= _shape(name, entry.get("shape"))


def _shape(name: str, shape: object) -> Set[Tuple[str, int, int]]:
    if isinstance(shape, list) and len(shape) == 2 and all(isinstance(each, int) for each in shape):
        return {(name[name.rindex(".") + 1 :], shape[0], shape[1])}
    return set()


def _counted(raw: bytes, data_bytes: int, roles: Roles) -> Optional[Summary]:
    """Experts by the kind they are of, the rest one by one. None when anything isn't as expected: then all is parsed."""
    if b"\\" in raw:
        return None
    served = b"" if roles.layers is None else b"(?!(?:" + _at_least(roles.layers).encode() + b")\\.)"
    expert = re.compile(_EXPERT % served)
    rest = expert.sub(b"", raw).rstrip(b" ")
    if rest.endswith(b",}"):
        rest = rest[:-2] + b"}"
    try:
        entries = json.loads(rest)
        entries.pop("__metadata__", None)
        if _end(entries) is None:
            return None
        summary = Summary(names=None)
        _add(summary, entries, roles, set())
        forms = Counter(_FORM.findall(raw))
        forms.subtract(_FORM.findall(rest))
        for form, count in forms.items():
            if count:
                kind = json.loads(b"{" + form + b"}")
                summary.add(EXPERTS, kind["dtype"], _size_bytes(kind["dtype"], kind["shape"]), count)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None
    whole = sum(summary.roles.values()) == data_bytes and summary.tensors == raw.count(b'"data_offsets"')
    return summary if whole else None


def _at_least(number: int) -> str:
    """An expression for the whole numbers from this one on."""
    digits = str(number)
    found = [digits, r"\d{%d,}" % (len(digits) + 1)]
    for index, digit in enumerate(digits):
        if digit != "9":
            found.append(r"%s[%d-9]\d{%d}" % (digits[:index], int(digit) + 1, len(digits) - index - 1))
    return "|".join(found)


# As the format's own library writes an entry; the experts of the layers that a model serves.
_EXPERT = (
    rb'"(?:model\.|language_model\.|thinker\.|llm\.|backbone\.|transformer\.)*layers\.%s\d+\.[^"]*\.experts\.[^"]*":'
    rb'\{"dtype":"[A-Z0-9_]+","shape":\[[0-9,]*\],"data_offsets":\[[0-9,]*\]\},?'
)
_FORM = re.compile(rb'"dtype":"[A-Z0-9_]+","shape":\[[0-9,]*\]')
_BITS = {
    "F64": 64, "I64": 64, "U64": 64, "F32": 32, "I32": 32, "U32": 32, "F16": 16, "BF16": 16, "I16": 16, "U16": 16,
    "F8_E4M3": 8, "F8_E5M2": 8, "F8_E8M0": 8, "I8": 8, "U8": 8, "BOOL": 8, "F6_E2M3": 6, "F6_E3M2": 6, "F4": 4,
}  # fmt: skip


def _size_bytes(dtype: str, shape: List[int]) -> int:
    bits = _BITS[dtype]
    for each in shape:
        bits *= each
    return bits // 8


def _parse(raw: bytes) -> Dict[str, Mapping[str, Any]]:
    try:
        found = json.loads(raw)
    except (ValueError, RecursionError):
        raise Broken("has a header that is no JSON") from None
    if not isinstance(found, dict):
        raise Broken("has a header that is no object")
    found.pop("__metadata__", None)
    return found


def _end(entries: Mapping[str, Mapping[str, Any]]) -> Optional[int]:
    """Where the last tensor ends. None when an entry isn't one."""
    end = 0
    for entry in entries.values():
        try:
            first, last = entry["data_offsets"]
            if not 0 <= first <= last < 2**60 or isinstance(first, float) or isinstance(last, float):
                return None
        except (KeyError, TypeError, ValueError):
            return None
        if last > end:
            end = last
    return end
