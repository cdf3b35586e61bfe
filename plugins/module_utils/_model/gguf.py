# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The header of a GGUF file: its metadata and the list of its tensors, without reading them.

Layout (version 2 and 3, little-endian): magic, version, number of tensors, number of metadata pairs; the pairs (key, type,
value); for each tensor its name, dimensions, type and place; then, aligned, the data. Counts and lengths are 64 bits.
"""

from __future__ import annotations

import mmap
import struct
from dataclasses import dataclass
from typing import Any, Dict, List, Tuple

from .._core.errors import GpuFleetError
from .files import regular_size

_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_STRING, _ARRAY = 8, 9
# Nothing real comes near these; a file that says more is damaged.
_MOST_PAIRS, _MOST_TENSORS, _MOST_ITEMS, _LONGEST = 100_000, 1_000_000, 4_000_000, 64 * 1024 * 1024
# Lists longer than this (vocabularies) are stepped over, only their length is kept.
_KEPT_ITEMS = 4096
# ggml type: (name, values in a block, bytes of a block)
_TYPES: Dict[int, Tuple[str, int, int]] = {
    0: ("F32", 1, 4),
    1: ("F16", 1, 2),
    2: ("Q4_0", 32, 18),
    3: ("Q4_1", 32, 20),
    6: ("Q5_0", 32, 22),
    7: ("Q5_1", 32, 24),
    8: ("Q8_0", 32, 34),
    9: ("Q8_1", 32, 36),
    10: ("Q2_K", 256, 84),
    11: ("Q3_K", 256, 110),
    12: ("Q4_K", 256, 144),
    13: ("Q5_K", 256, 176),
    14: ("Q6_K", 256, 210),
    15: ("Q8_K", 256, 292),
    16: ("IQ2_XXS", 256, 66),
    17: ("IQ2_XS", 256, 74),
    18: ("IQ3_XXS", 256, 98),
    19: ("IQ1_S", 256, 50),
    20: ("IQ4_NL", 32, 18),
    21: ("IQ3_S", 256, 110),
    22: ("IQ2_S", 256, 82),
    23: ("IQ4_XS", 256, 136),
    24: ("I8", 1, 1),
    25: ("I16", 1, 2),
    26: ("I32", 1, 4),
    27: ("I64", 1, 8),
    28: ("F64", 1, 8),
    29: ("IQ1_M", 256, 56),
    30: ("BF16", 1, 2),
    39: ("MXFP4", 32, 17),
}


@dataclass(frozen=True)
class GgufTensor:
    """One tensor. ``block`` values share a scale along its rows; 1 when it isn't quantised."""

    name: str
    dtype: str
    block: int
    size_bytes: int


@dataclass(frozen=True)
class GgufHeader:
    """``metadata`` by key; a long list is replaced by its length under ``KEY.length``."""

    metadata: Dict[str, Any]
    tensors: Tuple[GgufTensor, ...]


class _Cursor:
    def __init__(self, data: Any) -> None:
        self.data, self.at = data, 0

    def number(self, code: str) -> Any:
        form = "<" + code
        (found,) = struct.unpack_from(form, self.data, self.at)
        self.at += struct.calcsize(form)
        return found

    def string(self) -> str:
        length = self.number("Q")
        if length > _LONGEST or self.at + length > len(self.data):
            raise ValueError("a text is longer than the file")
        found = bytes(self.data[self.at : self.at + length])
        self.at += length
        return found.decode("utf-8", "replace")

    def step_over_string(self) -> None:
        (length,) = struct.unpack_from("<Q", self.data, self.at)
        self.at += 8 + length
        if self.at > len(self.data):
            raise ValueError("a text is longer than the file")


def read_gguf(path: str) -> GgufHeader:
    """GpuFleetError when it can't be read, is no such file, or ends before its tensors do."""
    try:
        size_bytes = regular_size(path)
        with open(path, "rb") as handle:
            if size_bytes < 24:
                raise GpuFleetError(
                    "%s is no GGUF file: it has %d bytes. Is the download complete? Fetch it again." % (path, size_bytes)
                )
            with mmap.mmap(handle.fileno(), 0, access=mmap.ACCESS_READ) as data:
                return _read(path, data, size_bytes)
    except (OSError, ValueError) as exc:  # a file that became shorter meanwhile can't be mapped
        raise GpuFleetError("%s can't be read: %s." % (path, getattr(exc, "strerror", None) or exc)) from exc


def _read(path: str, data: Any, size_bytes: int) -> GgufHeader:
    if data[:4] != b"GGUF":
        pointer = bytes(data[:23]) == b"version https://git-lfs"
        what = "is a git-lfs pointer: the weights themselves were not fetched" if pointer else "is no GGUF file"
        raise GpuFleetError("%s %s." % (path, what))
    cursor = _Cursor(data)
    cursor.at = 4
    try:
        version = cursor.number("I")
        tensors, pairs = cursor.number("Q"), cursor.number("Q")
        if version not in (2, 3) or tensors > _MOST_TENSORS or pairs > _MOST_PAIRS:
            raise ValueError("version %d, %d tensors, %d pairs" % (version, tensors, pairs))
        metadata: Dict[str, Any] = {}
        for pair in range(pairs):
            key = cursor.string()
            _value(cursor, cursor.number("I"), key, metadata)
        found, end = _tensors(cursor, tensors)
    except (struct.error, ValueError, IndexError, OverflowError) as exc:
        raise GpuFleetError("%s has a damaged header (%s). Is the download complete? Fetch it again." % (path, exc)) from exc
    alignment = metadata.get("general.alignment", 32)
    alignment = alignment if isinstance(alignment, int) and 0 < alignment <= 2**20 else 32
    start = -(-cursor.at // alignment) * alignment
    if found and start + end > size_bytes:
        raise GpuFleetError("%s is truncated: %d bytes of %d. Fetch it again." % (path, size_bytes, start + end))
    return GgufHeader(metadata, tuple(found))


def _value(cursor: _Cursor, kind: int, key: str, into: Dict[str, Any]) -> None:
    if kind == _STRING:
        into[key] = cursor.string()
    elif kind == _ARRAY:
        item, count = cursor.number("I"), cursor.number("Q")
        if count > _MOST_ITEMS:
            raise ValueError("a list of %d items" % count)
        into[key + ".length"] = count
        if item == _STRING:
            for index in range(count):
                cursor.step_over_string()
        else:
            code = _SCALARS[item] if item in _SCALARS else None
            if code is None:
                raise ValueError("a list of type %d" % item)
            size = struct.calcsize("<" + code) * count
            if cursor.at + size > len(cursor.data):
                raise ValueError("a list is longer than the file")
            if count <= _KEPT_ITEMS:
                into[key] = list(struct.unpack_from("<%d%s" % (count, code), cursor.data, cursor.at))
            cursor.at += size
    elif kind in _SCALARS:
        into[key] = cursor.number(_SCALARS[kind])
    else:
        raise ValueError("a value of type %d" % kind)


def _tensors(cursor: _Cursor, count: int) -> Tuple[List[GgufTensor], int]:
    """The tensors, and where the last one ends, counted from where the data begin."""
    found, end = [], 0
    for index in range(count):
        name = cursor.string()
        dimensions = cursor.number("I")
        if dimensions > 8:
            raise ValueError("a tensor of %d dimensions" % dimensions)
        values = 1
        for dimension in range(dimensions):
            values *= cursor.number("Q")
        kind, offset = cursor.number("I"), cursor.number("Q")
        dtype, block, block_bytes = _TYPES.get(kind, ("type %d" % kind, 1, 0))
        size_bytes = -(-values // block) * block_bytes
        if size_bytes > 2**60 or offset > 2**60:
            raise ValueError("a tensor of %d bytes" % size_bytes)
        found.append(GgufTensor(name, dtype, block, size_bytes))
        end = max(end, offset + size_bytes)
    return found, end
