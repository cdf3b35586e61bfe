# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Who began a change, as far as the host knows: the account, and where its connection came from."""

from __future__ import annotations

import os
from typing import Dict

from .._process.procfs import ancestors, user_name


def began_by(proc_root: str = "/proc") -> str:
    """Such as ``anna from 192.0.2.7``. A privilege tool drops its caller's environment, so the ancestors are asked too."""
    user, where = "", ""
    for pid in [os.getpid()] + ancestors(os.getpid(), proc_root):
        found = _environment(pid, proc_root)
        user = user or found.get("SUDO_USER", "")
        where = where or found.get("SSH_CONNECTION", "").partition(" ")[0]
        if user and where:
            break
    user = user or user_name(os.getuid())
    return "%s from %s" % (user, where) if where else "%s on this host" % user


def _environment(pid: int, proc_root: str) -> Dict[str, str]:
    try:
        with open("%s/%d/environ" % (proc_root, pid), "rb") as handle:
            raw = handle.read()
    except OSError:
        return {}  # ended since, or not ours to read
    pairs = (entry.partition("=") for entry in raw.decode("utf-8", "replace").split("\0"))
    return {name: value for name, equals, value in pairs if equals}
