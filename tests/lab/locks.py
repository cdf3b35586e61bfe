# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Locks between the processes that use one lab or one cache."""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from collections.abc import Iterator
from pathlib import Path

from lab.errors import LabError


@contextlib.contextmanager
def exclusive(path: Path, timeout: float, what: str) -> Iterator[None]:
    """Hold an exclusive lock on ``path`` (made if missing); ``what`` tells in the error who is waited for.

    The file may be removed by the one that holds the lock; who waited for it then starts over with the new file.
    """
    deadline = time.monotonic() + timeout
    while True:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            _take(handle, deadline, path, what)
            current = os.stat(path)
            if os.fstat(handle).st_ino != current.st_ino:
                raise FileNotFoundError
        except FileNotFoundError:
            os.close(handle)
            continue
        except BaseException:
            os.close(handle)
            raise
        break
    try:
        yield
    finally:
        os.close(handle)


def _take(handle: int, deadline: float, path: Path, what: str) -> None:
    while True:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            if time.monotonic() > deadline:
                raise LabError(f"waited too long for {what} to finish (it holds the lock {path})") from None
            time.sleep(0.05)
