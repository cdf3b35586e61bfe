# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Reading a model's files into the page cache while the old server still serves.

A load is mostly the reading of its weights. What is read before the stop is not waited for after it: the whole takes as
long, the time without a server is shorter. Nothing depends on it: whatever goes wrong here is told, and the swap goes on.
"""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Callable, List, Optional, Tuple

# One sequential reader does not keep a fast disk busy, and many slow each other down on a slow one.
_READERS = 4
_CHUNK_BYTES = 8 * 1024 * 1024
# The rest of the memory that could be had stays with whoever else needs it, the new server itself above all.
_SHARE_OF_AVAILABLE = 0.7
# The formats that vLLM loads, in the order in which it prefers them: only the first that is there is read.
_WEIGHTS = (".safetensors", ".bin", ".pt", ".gguf")
_MIB = 1024 * 1024


@dataclass(frozen=True)
class Warmed:
    """What was read. ``note`` says why it was not all (None when it was)."""

    read_mib: int
    total_mib: int
    note: Optional[str]


def weight_files(path: str) -> List[Tuple[str, int]]:
    """The weight files of a model directory, in the order in which they are loaded, with their sizes in bytes."""
    found: List[Tuple[str, int]] = []
    try:
        names = sorted(os.listdir(path))
    except OSError:
        return []
    for ending in _WEIGHTS:
        for name in names:
            if name.endswith(ending):
                file = os.path.join(path, name)
                try:
                    if os.path.isfile(file):
                        found.append((file, os.stat(file).st_size))
                except OSError:
                    continue  # gone since, or a link to nowhere: whoever loads it will say so
        if found:
            return _without_second_copy(found)
    return found


def _without_second_copy(files: List[Tuple[str, int]]) -> List[Tuple[str, int]]:
    """Mistral's directories hold the same weights once more, in files named ``consolidated``."""
    rest = [each for each in files if not os.path.basename(each[0]).startswith("consolidated")]
    return rest or files


def budget_bytes(meminfo: str) -> int:
    """How many bytes may be read, by the text of ``/proc/meminfo``; 0 where it does not say what is available."""
    for line in meminfo.splitlines():
        name, _colon, value = line.partition(":")
        if name == "MemAvailable":
            words = value.split()
            if words and words[0].isdigit():
                return int(int(words[0]) * 1024 * _SHARE_OF_AVAILABLE)
    return 0


def warm(
    path: str, budget: int, goes_on: Callable[[], bool], on_progress: Optional[Callable[[int, int], None]] = None
) -> Warmed:
    """Read the weights in ``path`` (bytes up to ``budget``) once, and keep nothing of them but what the kernel caches.

    ``goes_on`` is asked between chunks; when it says no, reading ends. ``on_progress`` gets (read, total) in MiB after each file.
    """
    files = weight_files(path)
    total = sum(size for _file, size in files)
    chosen, left = [], budget
    for file, size in files:  # the first ones are loaded first: they are the ones to have
        if left <= 0:
            break
        chosen.append((file, min(size, left)))
        left -= size
    read, errors = 0, []
    with ThreadPoolExecutor(_READERS) as pool:
        for file, (got, problem) in zip(
            [each[0] for each in chosen], pool.map(lambda each: _read(each[0], each[1], goes_on), chosen)
        ):
            read += got
            if problem is not None:
                errors.append("%s: %s" % (file, problem))
            if on_progress is not None:
                on_progress(read // _MIB, total // _MIB)
    return Warmed(read // _MIB, total // _MIB, _note(files, total, budget, errors, goes_on()))


def _note(files: List[Tuple[str, int]], total: int, budget: int, errors: List[str], went_on: bool) -> Optional[str]:
    if not files:
        return "no weight files were found"
    if errors:
        return "%d files could not be read (%s)" % (len(errors), errors[0])
    if not went_on:
        return "the time for it was up"
    if budget < total:
        return "there is room for %d of %d MiB in the page cache" % (max(0, budget) // _MIB, total // _MIB)
    return None


def _read(file: str, limit: int, goes_on: Callable[[], bool]) -> Tuple[int, Optional[str]]:
    buffer = bytearray(_CHUNK_BYTES)
    got = 0
    try:
        with open(file, "rb", buffering=0) as handle:
            while got < limit and goes_on():
                count = handle.readinto(buffer)
                if not count:
                    break
                got += count
    except OSError as exc:
        return got, exc.strerror or str(exc)
    return min(got, limit), None
