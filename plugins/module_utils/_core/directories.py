# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Directories that others have to come through: the umask of whoever is the first to need one must not close it."""

from __future__ import annotations

import os


def make_directories(path: str, mode: int = 0o755) -> None:
    """Make ``path`` and what it lies in, each that is made with just this mode; what is there stays as it is. Raises OSError."""
    if not path or os.path.isdir(path):
        return
    make_directories(os.path.dirname(path), mode)
    try:
        os.mkdir(path, mode)
    except FileExistsError:
        if not os.path.isdir(path):
            raise
    else:
        os.chmod(path, mode)
