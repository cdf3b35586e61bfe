# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The account that load generators run as."""

from __future__ import annotations

import os
import pwd
from typing import Optional

from .._core.errors import GpuFleetError


def account_of(user: Optional[str]) -> Optional[pwd.struct_passwd]:
    """The account that tools run as; None where they run as we do. Raises GpuFleetError for one that doesn't exist."""
    if user is None or os.geteuid() != 0:
        return None
    try:
        return pwd.getpwnam(user)
    except KeyError as exc:
        raise GpuFleetError("There is no user %s on this host to run the load generator as. Make it, or set user." % user) from exc
