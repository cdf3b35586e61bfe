# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Which files of a model directory hold its weights, and which should be there but aren't."""

from __future__ import annotations

import errno
import json
import os
import re
import stat
from dataclasses import dataclass, field
from typing import Dict, List, Mapping, Sequence, Set, Tuple

from .._core.errors import GpuFleetError

# A million tensors would fit.
_INDEX_LIMIT_BYTES = 256 * 1024 * 1024
_MOST_FILES = 20000
_SHARD = re.compile(r"^(.*?)-(\d{1,6})-of-(\d{1,6})(\.safetensors|\.bin|\.gguf)$")
_PENDING = (".incomplete", ".part", ".aria2", ".tmp", ".crdownload", ".download", ".partial", ".lock.tmp")
# Beside the weights without being any.
_NO_WEIGHTS = re.compile(r"^(training_args|optimizer|scheduler|rng_state|trainer_state|adapter_model|mmproj)")


@dataclass(frozen=True)
class WeightFiles:
    """``names`` that vLLM would load, ``missing`` that should be there, ``pending`` that a download has not finished.

    ``promised`` are the tensors of the index, ``spare`` the files that hold the same weights once more.
    """

    format: str  # safetensors, pytorch, gguf, or "" when there are no weights
    names: Tuple[str, ...] = ()
    missing: Tuple[str, ...] = ()
    pending: Tuple[str, ...] = ()
    spare: Tuple[str, ...] = ()
    promised: Mapping[str, str] = field(default_factory=dict)
    adapter: bool = False


def find_weights(path: str) -> WeightFiles:
    """Look at the names in a directory and at its index. GpuFleetError when one of them can't be read."""
    try:
        listing = sorted(os.listdir(path))[:_MOST_FILES]
    except OSError as exc:
        raise GpuFleetError("The model directory %s can't be read: %s." % (path, exc.strerror)) from exc
    pending = _pending(path, listing)
    there = set(listing)
    for form, suffix, index in (
        ("safetensors", ".safetensors", "model.safetensors.index.json"),
        ("pytorch", ".bin", "pytorch_model.bin.index.json"),
    ):
        names = [name for name in listing if name.endswith(suffix) and not _NO_WEIGHTS.match(name)]
        if index in there:
            promised = _read_index(os.path.join(path, index))
            needed = sorted(set(promised.values()))
            spare = [name for name in names if name not in needed]
            return WeightFiles(
                form,
                tuple(name for name in needed if name in there),
                tuple(name for name in needed if name not in there),
                pending,
                tuple(spare),
                promised,
            )
        if names:
            kept = _without_copies(names)
            spare = [name for name in names if name not in kept]
            return WeightFiles(form, tuple(kept), _absent_shards(kept), pending, tuple(spare))
    for form, suffixes in (("pytorch", (".pt", ".pth")), ("gguf", (".gguf",))):
        names = [name for name in listing if name.endswith(suffixes) and not _NO_WEIGHTS.match(name)]
        if names:
            kept = [name for name in names if _family(name) == _family(names[0])] if form == "gguf" else names
            return WeightFiles(form, tuple(kept), _absent_shards(kept), pending)
    return WeightFiles("", pending=pending, adapter="adapter_config.json" in there)


def regular_size(path: str) -> int:
    """The size in bytes of a file. OSError for what is no file: to open a pipe would wait for ever."""
    found = os.stat(path)
    if not stat.S_ISREG(found.st_mode):
        raise OSError(errno.EINVAL, "it is no regular file", path)
    return found.st_size


def _read_index(path: str) -> Mapping[str, str]:
    """The file of each tensor."""
    try:
        if regular_size(path) > _INDEX_LIMIT_BYTES:
            raise GpuFleetError("%s is larger than any index of weights. Fetch it again." % path)
        with open(path, "rb") as handle:
            found = json.loads(handle.read())
    except OSError as exc:
        raise GpuFleetError("%s can't be read: %s." % (path, exc.strerror)) from exc

    except (ValueError, RecursionError) as exc:
        raise GpuFleetError("%s is no JSON (%s). Is the download complete? Fetch it again." % (path, exc)) from exc
    promised = found.get("weight_map") if isinstance(found, dict) else None
    if not isinstance(promised, dict) or not promised or not all(isinstance(name, str) for name in promised.values()):
        raise GpuFleetError("%s names no weights. Is the download complete? Fetch it again." % path)
    strange = next(
        (name for name in set(promised.values()) if not name or name in (".", "..") or "/" in name or "\0" in name),
        None,
    )
    if strange is not None:
        raise GpuFleetError("%s places weights in %r, which is no file of this directory. Fetch the model again." % (path, strange[:80]))
    return promised


def _family(name: str) -> str:
    """What the shards of one file have in common."""
    found = _SHARD.match(name)
    return "%s of %s" % (found.group(1), found.group(3)) if found else name


def _without_copies(names: Sequence[str]) -> List[str]:
    """Without an index: one family of shards where several stand for the same weights (model and consolidated)."""
    plain = [name for name in names if not name.startswith("consolidated")]
    return plain or list(names)


def _absent_shards(names: Sequence[str]) -> Tuple[str, ...]:
    """Shards that the names of others tell of: model-00003-of-00005 where 1, 2, 4 and 5 are."""
    seen: Dict[Tuple[str, str, str], Set[int]] = {}
    for name in names:
        found = _SHARD.match(name)
        if found:
            key = (found.group(1), found.group(3), found.group(4))
            seen.setdefault(key, set()).add(int(found.group(2)))
    absent = []
    for (stem, count, suffix), numbers in seen.items():
        first = 0 if 0 in numbers else 1
        width = len(count)
        for number in range(first, min(int(count), _MOST_FILES) + first):
            if number not in numbers:
                absent.append("%s-%0*d-of-%s%s" % (stem, width, number, count, suffix))
    return tuple(absent)


def _pending(path: str, listing: Sequence[str]) -> Tuple[str, ...]:
    """Files of a download that goes on, or was left: beside the weights, and where the hub's client keeps them."""
    found = [name for name in listing if name.endswith(_PENDING)]
    hidden = os.path.join(path, ".cache", "huggingface", "download")
    try:
        found += [name for name in sorted(os.listdir(hidden))[:_MOST_FILES] if name.endswith(".incomplete")]
    except OSError:
        pass  # it needn't be there, and is only a hint
    return tuple(found)
