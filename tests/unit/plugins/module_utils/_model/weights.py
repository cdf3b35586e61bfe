# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Weight files for tests: real headers, and data that takes no space on the disk."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

_BYTES = {"BF16": 2, "F32": 4, "F8_E4M3": 1, "I32": 4, "U8": 1}
Tensors = dict[str, tuple[str, list[int]]]


def safetensors(path: Path, tensors: Tensors, short_by: int = 0) -> None:
    """A safetensors file with these tensors, and less data than its header says if wanted."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, (dtype, shape) in tensors.items():
        size = _BYTES[dtype]
        for each in shape:
            size *= each
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [end, end + size]}
        end += size
    raw = json.dumps(header, separators=(",", ":")).encode()
    with path.open("wb") as handle:
        handle.write(struct.pack("<Q", len(raw)) + raw)
        handle.truncate(8 + len(raw) + end - short_by)


def sharded(path: Path, tensors: Tensors, shards: int) -> list[str]:
    """The same in several files with an index. Returns the files' names."""
    names = ["model-%05d-of-%05d.safetensors" % (number + 1, shards) for number in range(shards)]
    parts: list[Tensors] = [{} for name in names]
    for number, (tensor, entry) in enumerate(tensors.items()):
        parts[number * shards // len(tensors)][tensor] = entry
    for name, part in zip(names, parts, strict=True):
        safetensors(path / name, part)
    index = {
        "metadata": {"total_size": 1},
        "weight_map": {t: n for n, part in zip(names, parts, strict=True) for t in part},
    }
    (path / "model.safetensors.index.json").write_text(json.dumps(index), encoding="utf-8")
    return names


def gguf(
    path: Path, metadata: dict[str, Any], tensors: dict[str, tuple[int, list[int], int]], cut: int | None = None
) -> None:
    """A GGUF file; a tensor is (ggml type, dimensions, size in bytes). ``cut`` ends the file there."""

    def text(value: str) -> bytes:
        raw = value.encode()
        return struct.pack("<Q", len(raw)) + raw

    def typed(value: Any) -> bytes:
        if isinstance(value, bool):
            return struct.pack("<I?", 7, value)
        if isinstance(value, int):
            return struct.pack("<II", 4, value)
        if isinstance(value, float):
            return struct.pack("<If", 6, value)
        if isinstance(value, str):
            return struct.pack("<I", 8) + text(value)
        if value and isinstance(value[0], str):
            return struct.pack("<IIQ", 9, 8, len(value)) + b"".join(text(each) for each in value)
        return struct.pack("<IIQ%dI" % len(value), 9, 4, len(value), *value)

    raw = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(metadata))
    for key, value in metadata.items():
        raw += text(key) + typed(value)
    offset = 0
    for name, (kind, dimensions, size) in tensors.items():
        raw += text(name) + struct.pack("<I%dQIQ" % len(dimensions), len(dimensions), *dimensions, kind, offset)
        offset += -(-size // 32) * 32
    raw += b"\0" * (-len(raw) % 32)
    with path.open("wb") as handle:
        handle.write(raw)
        handle.truncate(len(raw) + offset if cut is None else cut)
