# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A model's weights as they lie on disk: whether they are all there, and how many bytes are of which kind.

Only headers are read, never the data.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import Dict, List, Mapping, Optional, Set, Tuple

from .._core.errors import GpuFleetError
from .files import WeightFiles, find_weights, regular_size
from .gguf import read_gguf
from .roles import UNUSED, Roles
from .safetensors import Broken, Summary, read_raw, summarise


@dataclass(frozen=True)
class Checkpoint:
    """The weights of one directory.

    ``total_bytes`` are those of the tensors that vLLM reads, ``dtype_bytes`` and ``role_bytes`` the same by dtype (F8_E4M3,
    BF16, ... or the ggml type) and by role (``roles.py``); both are empty for formats whose headers aren't read (.bin, .pt),
    where ``total_bytes`` is the size of the files. ``encoder_packed`` are the shapes of packed weights in vision and audio
    encoders: (suffix, rows, columns).
    """

    path: str
    format: str  # safetensors, pytorch, gguf, or "" when there are no weights
    files: Tuple[str, ...] = ()
    total_bytes: int = 0
    dtype_bytes: Mapping[str, int] = field(default_factory=dict)
    role_bytes: Mapping[str, int] = field(default_factory=dict)
    tensors: int = 0
    missing_files: Tuple[str, ...] = ()
    missing_tensors: Tuple[str, ...] = ()
    broken: Tuple[Tuple[str, str], ...] = ()  # (file, what is wrong with it)
    pending: Tuple[str, ...] = ()
    spare: Tuple[str, ...] = ()
    adapter: bool = False
    encoder_packed: Tuple[Tuple[str, int, int], ...] = ()
    last_layer: Optional[int] = None  # the highest number of a layer, where names say it

    @property
    def complete(self) -> bool:
        """Whether every file and tensor that should be there is."""
        return bool(self.files) and not (self.missing_files or self.missing_tensors or self.broken)


def read_checkpoint(path: str, layers: Optional[int] = None) -> Checkpoint:
    """Look at the weights in a directory, or at one ``.gguf`` file.

    ``layers`` of the model tell next-token-prediction layers apart. GpuFleetError when the directory or its index can't be
    read; what is wrong with single files is in the result.
    """
    if os.path.isfile(path) and path.endswith(".gguf"):
        return _read_gguf(os.path.dirname(path), WeightFiles("gguf", (os.path.basename(path),)))
    if not os.path.isdir(path):
        what = "is a file" if os.path.exists(path) else "does not exist"
        raise GpuFleetError("The model directory %s %s." % (path, what))
    found = find_weights(path)
    if found.format == "gguf":
        return _read_gguf(path, found)
    if found.format == "safetensors":
        return _read_safetensors(path, found, Roles(layers))
    sizes, broken = _sizes(path, found.names)
    return Checkpoint(
        path=path,
        format=found.format,
        files=found.names,
        total_bytes=sum(sizes),
        missing_files=found.missing,
        broken=tuple(broken),
        pending=found.pending,
        spare=found.spare,
        adapter=found.adapter,
    )


def _sizes(path: str, names: Tuple[str, ...]) -> Tuple[List[int], List[Tuple[str, str]]]:
    sizes, broken = [], []
    for name in names:
        try:
            size_bytes = regular_size(os.path.join(path, name))
            with open(os.path.join(path, name), "rb") as handle:
                if handle.read(23) == b"version https://git-lfs":
                    broken.append((name, "is a git-lfs pointer: the weights themselves were not fetched"))
                    continue
        except OSError as exc:
            broken.append((name, _reason(path, name, exc)))
            continue
        if not size_bytes:
            broken.append((name, "is empty"))
        sizes.append(size_bytes)
    return sizes, broken


def _reason(path: str, name: str, exc: OSError) -> str:
    full = os.path.join(path, name)
    if os.path.islink(full) and not os.path.exists(full):
        return "is a link to %s, which is not there" % os.readlink(full)
    return "can't be read: %s" % exc.strerror


def _read_safetensors(path: str, found: WeightFiles, roles: Roles) -> Checkpoint:
    total = Summary()
    broken: List[Tuple[str, str]] = []
    seen: Set[str] = set()
    for name in found.names:
        try:
            raw, data_bytes = read_raw(os.path.join(path, name))
            # Without an index two files may hold the same tensor; it counts once, so all names are needed.
            large = {} if found.promised else {"large": len(raw)}
            one = summarise(raw, data_bytes, roles, set() if found.promised else seen, **large)
        except Broken as exc:
            broken.append((name, str(exc)))
            continue
        except OSError as exc:
            broken.append((name, _reason(path, name, exc)))
            continue
        seen |= one.names or set()
        _merge(total, one)
    missing: List[str] = []
    if not broken and not found.missing and total.tensors < len(found.promised):
        missing = _missing(path, found)
    return Checkpoint(
        path=path,
        format="safetensors",
        files=found.names,
        total_bytes=sum(size for role, size in total.roles.items() if role != UNUSED),
        dtype_bytes=total.dtypes,
        role_bytes=total.roles,
        tensors=total.tensors,
        missing_files=found.missing,
        missing_tensors=tuple(missing),
        broken=tuple(broken),
        pending=found.pending,
        spare=found.spare,
        adapter=found.adapter,
        encoder_packed=tuple(sorted(total.encoder_packed)),
        last_layer=roles.last_layer,
    )


def _merge(total: Summary, one: Summary) -> None:
    for into, what in ((total.roles, one.roles), (total.dtypes, one.dtypes)):
        for name, size_bytes in what.items():
            into[name] = into.get(name, 0) + size_bytes
    total.tensors += one.tensors
    total.encoder_packed |= one.encoder_packed


def _missing(path: str, found: WeightFiles) -> List[str]:
    """Tensors that the index promises and no file has."""
    seen: Set[str] = set()
    for name in found.names:
        raw, data_bytes = read_raw(os.path.join(path, name))
        seen |= summarise(raw, data_bytes, Roles(None), set(), large=len(raw)).names or set()
    return sorted(set(found.promised) - seen)


def _read_gguf(path: str, found: WeightFiles) -> Checkpoint:
    dtypes: Dict[str, int] = {}
    by_role: Dict[str, int] = {}
    broken: List[Tuple[str, str]] = []
    tensors = 0
    roles = Roles(None)
    for name in found.names:
        try:
            header = read_gguf(os.path.join(path, name))
        except GpuFleetError as exc:
            broken.append((name, exc.msg.split(" ", 1)[-1].rstrip(".")))
            continue
        for tensor in header.tensors:
            dtypes[tensor.dtype] = dtypes.get(tensor.dtype, 0) + tensor.size_bytes
            role = roles.of(tensor.name)
            by_role[role] = by_role.get(role, 0) + tensor.size_bytes
        tensors += len(header.tensors)
    return Checkpoint(
        path=path,
        format="gguf",
        files=found.names,
        total_bytes=sum(by_role.values()),
        dtype_bytes=dtypes,
        role_bytes=by_role,
        tensors=tensors,
        missing_files=found.missing,
        broken=tuple(broken),
        pending=found.pending,
    )
