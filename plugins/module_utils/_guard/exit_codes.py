# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""How the guard ends. None of these is used by vLLM (0, 1, 2, 130, 143) or by systemd (200 and above).

====  ==============  ==================================================================================
code  name            meaning
====  ==============  ==================================================================================
0     PASS            the memory is free and stays free, the port and the unit's cgroup are free
64    USAGE           bad arguments
69    DRIVER          the driver can't be read, hangs, or says that one of the GPUs is lost or needs a reset
70    INTERNAL        a fault of the guard itself; the traceback stands above
72    ABSENT          one of the GPUs is not on this host or not at its index, or the selection means several
73    LOCKED          another unit was still starting on one of the GPUs when the time was over
75    MEMORY          the memory did not come free in time, or never stayed as it was
76    PORT            another process has the port, or the address can't be bound here
77    CGROUP          processes of an earlier run of the unit are still in its cgroup
78    NEVER           it can never pass: more memory is asked for than the GPU has
====  ==============  ==================================================================================

"""

from __future__ import annotations

from typing import Dict

PASS = 0
USAGE = 64
DRIVER = 69
INTERNAL = 70
ABSENT = 72
LOCKED = 73
MEMORY = 75
PORT = 76
CGROUP = 77
NEVER = 78

NAMES: Dict[int, str] = {
    PASS: "PASS",
    USAGE: "USAGE",
    DRIVER: "DRIVER",
    INTERNAL: "INTERNAL",
    ABSENT: "ABSENT",
    LOCKED: "LOCKED",
    MEMORY: "MEMORY",
    PORT: "PORT",
    CGROUP: "CGROUP",
    NEVER: "NEVER",
}
