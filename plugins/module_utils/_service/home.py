# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The directory that a service writes to, when its first deployment is undone."""

from __future__ import annotations

import os
import shutil

from .._core.errors import GpuFleetError

# Where downloads go when the model is a repository's name: hours of them are worth keeping for the next try.
_DOWNLOADS = "huggingface"


def remove_new_home(path: str) -> bool:
    """Remove ``path``, which was not there before the change. Returns whether nothing of it is left.

    Only the caches of a server that never served are in it. What it has downloaded is kept. Nothing outside of the directory
    is touched: a link in its place stays, links in it are removed as links. Raises GpuFleetError when it can't be removed.
    """
    if os.path.islink(path) or not os.path.isdir(path):
        return not os.path.lexists(path)
    try:
        if _has_files(os.path.join(path, _DOWNLOADS)):
            return False
        shutil.rmtree(path)
    except OSError as exc:
        raise GpuFleetError("%s could not be removed: %s." % (path, exc.strerror or exc)) from exc
    return True


def _has_files(directory: str) -> bool:
    return any(files for _path, _directories, files in os.walk(directory))
