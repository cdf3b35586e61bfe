# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Reading a model's files into the page cache while the old server still serves.

A load is mostly the reading of its weights. What is read before the stop is not waited for after it: the whole takes as
long, the time without a server is shorter. Nothing depends on it: whatever goes wrong here is told, and the swap goes on.
"""

from __future__ import annotations

import errno
import os
import threading
import time
from dataclasses import dataclass, field
from typing import Callable, List, Optional, Tuple

# One sequential reader does not keep a fast disk busy, and many slow each other down on a slow one.
_READERS = 4
_CHUNK_BYTES = 8 * 1024 * 1024
# The rest of the memory that could be had stays with whoever else needs it, the new server itself above all.
_SHARE_OF_AVAILABLE = 0.7
# The formats that vLLM loads, in the order in which it prefers them: only the first that is there is read.
_WEIGHTS = (".safetensors", ".bin", ".pt", ".gguf")
_MIB = 1024 * 1024
_LOOK_S = 0.2
# A file server that gives nothing for so long is not waited for: the new server may have more patience.
_STUCK_S = 60.0


@dataclass(frozen=True)
class Warmed:
    """What was read. ``note`` says why it was not all (None when it was), ``complete`` whether it was all that could be wanted."""

    read_mib: int
    total_mib: int
    note: Optional[str]
    complete: bool


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
    path: str,
    budget: int,
    goes_on: Callable[[], bool],
    on_progress: Optional[Callable[[int, int], None]] = None,
    stuck_s: float = _STUCK_S,
) -> Warmed:
    """Read the weights in ``path`` (bytes up to ``budget``) once, and keep nothing of them but what the kernel caches.

    ``goes_on`` is asked several times a second; when it says no, reading ends, and so it does when no reader gets anything for
    ``stuck_s`` seconds: a reader that hangs is left behind. ``on_progress`` gets (read, total) in MiB, as often.
    """
    files = weight_files(path)
    total = sum(size for _file, size in files)
    work = _Work(_within(files, budget))
    readers = [threading.Thread(target=work.read_files, daemon=True) for _number in range(min(_READERS, len(files)))]
    stuck = False
    try:
        for reader in readers:
            reader.start()
        last, since = -1, time.monotonic()
        while (busy := next((reader for reader in readers if reader.is_alive()), None)) is not None and goes_on():
            busy.join(_LOOK_S)
            if work.got != last:
                last, since = work.got, time.monotonic()
                if on_progress is not None:
                    on_progress(last // _MIB, total // _MIB)
            elif time.monotonic() - since >= stuck_s:
                stuck = True
                break
    finally:
        work.ended.set()  # also when somebody has asked this process to end
    if on_progress is not None:
        on_progress(work.got // _MIB, total // _MIB)
    complete = not work.errors and not stuck and work.unread == 0
    return Warmed(work.got // _MIB, total // _MIB, _note(files, total, budget, work, stuck), complete)


def _within(files: List[Tuple[str, int]], budget: int) -> List[Tuple[str, int]]:
    chosen, left = [], budget
    for file, size in files:  # the first ones are loaded first: they are the ones to have
        if left <= 0:
            break
        chosen.append((file, min(size, left)))
        left -= size
    return chosen


@dataclass
class _Work:
    """What the readers share. ``left`` are files and the bytes to read of each."""

    left: List[Tuple[str, int]]
    got: int = 0
    errors: List[str] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)
    ended: threading.Event = field(default_factory=threading.Event)
    unread: int = 0

    def __post_init__(self) -> None:
        self.left = list(reversed(self.left))
        self.unread = len(self.left)

    def read_files(self) -> None:
        """One reader's work."""
        buffer = bytearray(_CHUNK_BYTES)
        while not self.ended.is_set():
            with self.lock:
                if not self.left:
                    return
                file, limit = self.left.pop()
            try:
                self._read(file, limit, buffer)
            except OSError as exc:
                self.errors.append("%s: %s" % (file, exc.strerror or exc))
            if not self.ended.is_set():
                with self.lock:
                    self.unread -= 1

    def _read(self, file: str, limit: int, buffer: bytearray) -> None:
        with open(file, "rb", buffering=0) as handle:
            at = 0
            while at < limit and not self.ended.is_set():
                begins = _next_data(handle.fileno(), at, limit)
                if begins == at:
                    count = handle.readinto(memoryview(buffer)[: min(_CHUNK_BYTES, limit - at)]) or 0
                    if not count:
                        return
                else:
                    count = handle.seek(begins) - at  # a hole, which no disk has to be asked for
                at += count
                with self.lock:
                    self.got += count


def _next_data(fd: int, at: int, limit: int) -> int:
    """Where the file goes on with something that was written; ``limit`` where nothing follows."""
    try:
        begins = os.lseek(fd, at, os.SEEK_DATA)
    except OSError as exc:
        if exc.errno == errno.ENXIO:
            return limit
        os.lseek(fd, at, os.SEEK_SET)  # a file system without such knowledge: all of it is data
        return at
    return min(begins, limit)


def _note(files: List[Tuple[str, int]], total: int, budget: int, work: _Work, stuck: bool) -> Optional[str]:
    if not files:
        return "no weight files were found"
    if work.errors:
        return "%d files could not be read (%s)" % (len(work.errors), work.errors[0])
    if stuck:
        return "nothing came from the disk any more"
    if work.unread > 0:
        return "the time for it was up"
    if budget < total:
        return "there is room for %d of %d MiB in the page cache" % (max(0, budget) // _MIB, total // _MIB)
    return None
