# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What to tell of a host that was taken out of the load balancer, of which nothing more can be read than that."""

from __future__ import annotations

import os
from typing import Mapping, Optional

from .._service.ports import Paths
from .._service.taken_out import FILE


def unreadable(out: Mapping[str, Optional[str]], directory: str = Paths.records) -> Optional[str]:
    """What to do about a file that says nothing; None where ``out``, what was read of it, says something."""
    if any(out.values()):
        return None
    return (
        "%s says that a swap took this host out of the load balancer, and what it says can't be read: see whether the host gets "
        "requests, take it back if it doesn't, then remove the file" % os.path.join(directory, FILE)
    )
