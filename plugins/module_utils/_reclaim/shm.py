# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Leftovers in shared memory: what dead vLLM processes left in /dev/shm, which eats the host's RAM until somebody removes it.

Only known names, only regular files that no live process has open or mapped, and only what two looks some time apart saw
unchanged: a segment may for a moment belong to nobody while it is handed from one process to another.
"""

from __future__ import annotations

import os
import re
import stat
from dataclasses import dataclass
from typing import AbstractSet, FrozenSet, List, Optional, Sequence, Set, Tuple

from .._core.errors import GpuFleetError
from .._process.holders import all_pids
from .done import ShmEntry


@dataclass(frozen=True)
class Pattern:
    """A name that is removed when stale. ``anybody``: the name alone says vLLM or NCCL, whoever owns the file."""

    regex: str
    what: str
    anybody: bool


PATTERNS: Tuple[Pattern, ...] = (
    Pattern(r"vllm_offload_[0-9A-Za-z._-]+", "KV cache offloaded to the CPU by vLLM", True),
    Pattern(r"(?:sem\.)?vllm[_-][0-9A-Za-z._-]+", "segments and locks of vLLM", True),
    Pattern(r"nccl-[0-9A-Za-z]+", "NCCL's transport between the GPUs of a host", True),
    Pattern(r"psm_[0-9a-f]+", "Python's SharedMemory, as vLLM's message queues use it", False),
    Pattern(r"sem\.mp-[0-9A-Za-z_]+", "Python's multiprocessing locks", False),
)


def find_stale(
    uids: FrozenSet[int],
    shm_root: str = "/dev/shm",
    proc_root: str = "/proc",
    strict: bool = False,
    without: AbstractSet[int] = frozenset(),
) -> List[ShmEntry]:
    """The stale entries, by name. Names that any Python program uses count only when owned by one of ``uids``; ``strict``: all names.

    A file with a second name is left alone: whoever uses it by that one would not be found. What only the pids of ``without`` have
    open counts as stale: they are about to be ended. Raises GpuFleetError when the open files of some process can't be seen: then
    nothing is proven stale.
    """
    found: List[Tuple[Tuple[int, int], ShmEntry]] = []
    for name in _names(shm_root):
        pattern = _pattern(name)
        if pattern is None:
            continue
        path = os.path.join(shm_root, name)
        try:
            status = os.lstat(path)
        except FileNotFoundError:
            continue
        theirs = status.st_uid in uids or (pattern.anybody and not strict)
        if not stat.S_ISREG(status.st_mode) or status.st_nlink != 1 or not theirs:
            continue
        mib = (status.st_blocks * 512 + 2**20 - 1) // 2**20
        entry = ShmEntry(path, mib, status.st_ino, status.st_mtime_ns, status.st_uid, pattern.what)
        found.append(((status.st_dev, status.st_ino), entry))
    if not found:
        return []
    used = _in_use({entry.path for _key, entry in found}, proc_root, without)
    return [entry for key, entry in found if key not in used]


def remove(entries: Sequence[ShmEntry], again: Sequence[ShmEntry]) -> Tuple[ShmEntry, ...]:
    """Remove what both looks saw unchanged; returns what was removed. Raises GpuFleetError for what can't be."""
    still = {(entry.path, entry.inode, entry.mtime) for entry in again}
    removed: List[ShmEntry] = []
    for entry in entries:
        if (entry.path, entry.inode, entry.mtime) not in still:
            continue
        try:
            now = os.lstat(entry.path)
            if (now.st_ino, now.st_mtime_ns) != (entry.inode, entry.mtime):
                continue  # somebody put another one in its place since the second look
            os.unlink(entry.path)
        except FileNotFoundError:
            continue
        except OSError as exc:
            raise GpuFleetError("Cannot remove %s: %s." % (entry.path, exc.strerror)) from exc
        removed.append(entry)
    return tuple(removed)


def _names(shm_root: str) -> List[str]:
    try:
        return sorted(os.listdir(shm_root))
    except FileNotFoundError:
        return []


def _pattern(name: str) -> Optional[Pattern]:
    for pattern in PATTERNS:
        if re.fullmatch(pattern.regex, name):
            return pattern
    return None


def _in_use(paths: Set[str], proc_root: str, without: AbstractSet[int]) -> Set[Tuple[int, int]]:
    """(device, inode) of what live processes, but those of ``without``, have open or mapped under a name that ``paths`` end in.

    By name first, since asking for the file behind every descriptor could hang on a dead network file system; then by what
    the name really is, since a container sees the same file at another place.
    """
    names = {os.path.basename(path) for path in paths}
    keys: Set[Tuple[int, int]] = set()
    for pid in set(all_pids(proc_root)) - without:
        base = "%s/%d" % (proc_root, pid)
        try:
            keys |= _opened(base, names) | _mapped(base, names)
        except (FileNotFoundError, ProcessLookupError):
            continue  # it ended meanwhile and has nothing open any more
        except PermissionError as exc:
            if pid == 1:
                continue  # systemd, which some sandboxes hide even from root: it has no part in vLLM's segments
            raise GpuFleetError(
                "The open files of pid %d can't be seen, so nothing in shared memory is proven stale. Set become: true." % pid
            ) from exc
    return keys


def _opened(base: str, names: Set[str]) -> Set[Tuple[int, int]]:
    keys: Set[Tuple[int, int]] = set()
    for descriptor in os.listdir(base + "/fd"):
        link = base + "/fd/" + descriptor
        try:
            if os.path.basename(os.readlink(link)) in names:
                status = os.stat(link)
                keys.add((status.st_dev, status.st_ino))
        except FileNotFoundError:
            continue  # closed between the listing and now
    return keys


def _mapped(base: str, names: Set[str]) -> Set[Tuple[int, int]]:
    keys: Set[Tuple[int, int]] = set()
    with open(base + "/maps", encoding="utf-8", errors="surrogateescape") as handle:
        for line in handle:
            fields = line.rstrip("\n").split(None, 5)
            if len(fields) == 6 and os.path.basename(fields[5]) in names:
                major, minor = (int(part, 16) for part in fields[3].split(":"))
                keys.add((os.makedev(major, minor), int(fields[4])))
    return keys
