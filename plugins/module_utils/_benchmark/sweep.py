# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The directories of load generators, and what a benchmark that was killed has left of them.

Who works in one holds an flock on it, which the kernel lets go when that process dies, however it dies. So one that nobody holds is
left over.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
import time
from typing import FrozenSet, List, Optional

from .account import account_of

PREFIX = "gpufleet-benchmark-"
# One that was made just now may be about to be held.
_YOUNG_S = 10.0
_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def hold(directory: str) -> int:
    """Say that somebody works in it, as long as the descriptor that comes back is open. Raises OSError."""
    fd = os.open(directory, _FLAGS)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(fd)
        raise
    return fd


def owners_of(user: Optional[str]) -> FrozenSet[int]:
    """Whose directories are this collection's: our own, and those of the tools' user. Raises GpuFleetError."""
    account = account_of(user)
    return frozenset({os.geteuid()} | ({account.pw_uid} if account is not None else set()))


def sweep(owners: FrozenSet[int], now: Optional[float] = None) -> List[str]:
    """Remove what nobody holds any more; returns the paths. ``now`` is seconds since the epoch."""
    place = tempfile.gettempdir()
    moment = time.time() if now is None else now
    left = [os.path.join(place, name) for name in sorted(os.listdir(place)) if name.startswith(PREFIX)]
    return [path for path in left if _swept(path, owners, moment)]


def _swept(path: str, owners: FrozenSet[int], now: float) -> bool:
    try:
        fd = os.open(path, _FLAGS)
    except OSError:
        return False  # no directory, so none of ours, or gone meanwhile
    try:
        status = os.fstat(fd)
        if status.st_uid not in owners or now - status.st_ctime < _YOUNG_S:
            return False
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        # What can't be removed now is tried again by the next benchmark; it is in nobody's way.
        shutil.rmtree(path, ignore_errors=True)
        return not os.path.exists(path)
    except BlockingIOError:
        return False  # somebody works in it
    finally:
        os.close(fd)
