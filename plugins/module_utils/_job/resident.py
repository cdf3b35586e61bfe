# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The module's work without the module: a host that has been changed before has all of its code, in the program of its job.

Ansible would pack that code, send it, and have Python compile it, each time anew, for every look at every host. What
runs has to be what the controller's collection says all the same. So the controller names the digest that its own
sources make, and a program that is made of others does nothing.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
from typing import Any, Dict

from .._service.program import UNPACKED


def serve(digest: str, program: str, seen: os.stat_result) -> Dict[str, Any]:
    """The answer to the request on standard input: ``other`` when ``program`` is not the one that is meant, or ``result``.

    ``seen`` is its status when this process began: one that was replaced since is not what runs here.
    A request has ``params``, which have been checked, ``check_mode``, ``wait`` and ``diff``.
    """
    with open(program, "rb") as handle:
        if not _runs_here(os.fstat(handle.fileno()), seen) or hashlib.sha256(handle.read()).hexdigest() != digest:
            return {"id": digest, "other": True}
    request = json.load(sys.stdin)
    from .answer import answer

    return {"id": digest, "result": answer(request["params"], request["check_mode"], request["wait"], request["diff"])}


def _runs_here(now: os.stat_result, seen: os.stat_result) -> bool:
    mark = (now.st_ino, now.st_size, now.st_mtime_ns)
    if mark != (seen.st_ino, seen.st_size, seen.st_mtime_ns):
        return False
    # Unpacked, the directory of what runs says of which program it was made (``_core/unpacked.py``).
    return not __file__.startswith(UNPACKED + "/") or "/%d-%d-%d/" % mark in __file__
