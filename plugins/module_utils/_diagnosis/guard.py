# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the memory guard before the server said when it refused to let it start."""

from __future__ import annotations

import re
from typing import Optional, Sequence, Tuple

from .result import Diagnosis

# What the guard talks about -> kind, summary, advice. Its own lines say the numbers, and stand in the evidence.
_MEANINGS: Tuple[Tuple[str, str, str, str], ...] = (
    (
        r"\bport \d+\b.*(in use|taken|listen)",
        "port_in_use",
        "another process listens on the service's port",
        "Find it with `ss -ltnp` and stop it, or give the service another port.",
    ),
    (
        r"driver|NVML|nvidia-smi",
        "driver",
        "the guard could not read the GPU driver",
        "Look at `nvidia-smi` and `dmesg` on the host; after an update of the driver's packages the host needs a reboot.",
    ),
    (
        r"MiB|memory|GPU",
        "memory_not_free",
        "the GPUs' memory did not come free, so the guard did not let the server start",
        "Free it (gpufleet.vllm.gpu_reclaim) or stop what holds it; the evidence names the holders that are known.",
    ),
)


def guard_diagnosis(lines: Sequence[str], status: Optional[int]) -> Optional[Diagnosis]:
    """The diagnosis when the guard failed (its exit status is ``status``), None when it didn't."""
    if status is None:
        return None
    own = [line for line in lines if "gpu-guard" in line and not line.startswith(("Starting", "Control process"))]
    last = own[-3:]
    for pattern, kind, summary, advice in _MEANINGS:
        if any(re.search(pattern, line, re.IGNORECASE) for line in last):
            return Diagnosis(kind, summary, tuple(last), advice)
    return None
