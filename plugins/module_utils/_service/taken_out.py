# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a swap has written down on a host that it was about to take out of the load balancer, until the host was taken back.

The playbook ``swap_model`` writes it before ``before_host`` begins, and removes it when ``after_host`` has succeeded: a run that
dies in between, or a host that serves nothing at its end, leaves it. Here it is only read.
"""

from __future__ import annotations

import json
import os
from typing import Dict, Optional

FILE = "taken-out.json"
_KEYS = ("id", "since", "model", "before_host", "after_host")


def taken_out(directory: str) -> Optional[Dict[str, Optional[str]]]:
    """What stands there; None where the host was not taken out, or has been taken back.

    ``since`` is a time in UTC, ``before_host`` and ``after_host`` are files on the controller. What can't be read says all the same
    that the host was taken out: then each of them is None. Never raises for what lies there.
    """
    try:
        with open(os.path.join(directory, FILE), encoding="utf-8") as handle:
            found = json.load(handle)
    except FileNotFoundError:
        return None
    except (OSError, ValueError):
        found = None
    known = found if isinstance(found, dict) else {}
    return {key: known[key] if isinstance(known.get(key), str) and known[key] else None for key in _KEYS}
