# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The step of a change in which the new model is read while the old server still serves."""

from __future__ import annotations

import os
from typing import Callable, Optional

from .._core.clock import Deadline
from .ports import Ports
from .warm import budget_bytes, warm


def read_ahead(path: str, timeout: float, ports: Ports, tell: Callable[[int, int], None]) -> Optional[str]:
    """Read the weights in ``path`` into the page cache, for ``timeout`` seconds at most; what there is to warn of.

    ``tell`` gets (read, total) in MiB. A model for which there is only partly room is nothing to warn of. Raises only what
    ends the change.
    """
    deadline = Deadline(ports.clock, timeout)
    try:
        with open(os.path.join(ports.paths.proc, "meminfo"), encoding="ascii", errors="replace") as handle:
            budget = budget_bytes(handle.read())
        done = warm(path, budget, lambda: not deadline.expired, tell)
    except (OSError, RuntimeError) as exc:
        return "The model could not be read ahead: %s." % exc
    return None if done.complete else "The model was not read ahead whole (%d of %d MiB): %s." % (done.read_mib, done.total_mib, done.note)
