# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Whether there is room: for caches and kernels on disk, for shared memory between ranks, for the journal."""

from __future__ import annotations

import os
from typing import List, Optional, Tuple

from .._model.parallel import Check
from .asked import Asked, Places, fail, passed, skip, warn

_MIB = 1 << 20
# Compiled graphs and kernels of one model: some hundred MiB, seldom more than a GiB.
CACHE_WISH_MIB, CACHE_LEAST_MIB = 2048, 32
# vLLM hands work to its ranks through shared memory (about 160 MiB), NCCL adds its own for every pair on a host.
SHM_WISH_MIB, SHM_LEAST_MIB = 1024, 32
JOURNAL_WISH_MIB = 16
# Enough for a unit, its configuration and the guard.
FILES_LEAST_MIB = 1


def check_room(asked: Asked, places: Places) -> List[Check]:
    """The checks ``disk``, ``shm`` and ``journal``."""
    return [_disk(asked, places), _shm(asked, places), *_journal(places)]


def _disk(asked: Asked, places: Places) -> Check:
    files = _free(places.etc)
    if files is not None and files[1] < FILES_LEAST_MIB:
        return fail("disk", "there is no room for the unit's files: {:,} MiB free in {}".format(files[1], files[0]), "Make room there.")
    found = _free(asked.home)
    if found is None:
        return skip("disk", "the free room in %s can't be read" % asked.home)
    place, free, inodes = found
    said = "{:,} MiB are free for caches in {}".format(free, place)
    if inodes == 0:
        return fail("disk", "no more files can be made in %s (no inodes left)" % place, "Remove what is not needed there.")
    if free < CACHE_LEAST_MIB:
        return fail("disk", said, "Make room: kernels and graphs are compiled into it at the start.")
    if free < CACHE_WISH_MIB:
        return warn("disk", said, "Make room: a start compiles up to about {:,} MiB into it.".format(CACHE_WISH_MIB))
    return passed("disk", said)


def _shm(asked: Asked, places: Places) -> Check:
    found = _free(places.shm)
    if found is None:
        return skip("shm", "the free room in %s can't be read" % places.shm)
    said = "{:,} MiB are free in {}".format(found[1], places.shm)
    if asked.ranks < 2:
        return passed("shm", said)
    fix = "Make it larger (mount -o remount,size=... %s) or remove what was left in it." % places.shm
    if found[1] < SHM_LEAST_MIB:
        return fail("shm", "%s, and %d ranks talk to each other through it" % (said, asked.ranks), fix)
    if found[1] < SHM_WISH_MIB:
        return warn("shm", "%s, and %d ranks talk to each other through it" % (said, asked.ranks), fix)
    return passed("shm", said)


def _journal(places: Places) -> List[Check]:
    for path in places.journal:
        if os.path.isdir(path):
            found = _free(path)
            if found is not None and found[1] < JOURNAL_WISH_MIB:
                detail = "{:,} MiB are free for the journal in {}: why a start fails may not be told".format(found[1], path)
                return [warn("journal", detail, "Make room there, or run journalctl --vacuum-size=100M.")]
            return []
    return []


def _free(path: str) -> Optional[Tuple[str, int, Optional[int]]]:
    """(the nearest directory that exists, MiB an ordinary user may still take there, inodes; None for a system without)."""
    while not os.path.exists(path):
        parent = os.path.dirname(path.rstrip("/"))
        if parent in ("", path):
            return None
        path = parent
    try:
        found = os.statvfs(path)
    except OSError:
        return None
    return path, found.f_bavail * found.f_frsize // _MIB, found.f_favail if found.f_files else None
