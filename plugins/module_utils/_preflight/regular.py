# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Opening what somebody else has put there: a named pipe under a file's name would hold up its reader for ever."""

from __future__ import annotations

import errno
import os
import stat
from typing import BinaryIO

_POINTER = b"version https://git-lfs"


def open_regular(path: str) -> BinaryIO:
    """A file for reading. OSError for what can't be opened, and for whatever is no regular file. Never waits for a writer."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError(errno.EINVAL, "it is no regular file", path)
        return os.fdopen(descriptor, "rb")
    except BaseException:
        os.close(descriptor)
        raise


def is_lfs_pointer(path: str) -> bool:
    """Whether this is what git leaves of a large file that was not fetched. False for what can't be read."""
    try:
        with open_regular(path) as handle:
            return handle.read(len(_POINTER)) == _POINTER
    except OSError:
        return False
