# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""How long after the driver let go a clean-up returns, on a lab host.

Runs on the host what the module runs there, beside a process of its own that asks the driver every few milliseconds when the last
GPU came free. Both use the host's clock.
"""

from __future__ import annotations

import base64
import json
import subprocess
from dataclasses import dataclass
from pathlib import Path

from e2e.programs import Programs

from lab import Host

ROOT = Path(__file__).resolve().parents[2]
GPUS = (0, 1, 2, 3)
DELAYS = (0.0, 0.5, 1.0, 2.0, 4.0, 7.0, 10.0)
SETTLE_S = 1.0
_BASE = "/root/latency/ansible_collections/gpufleet/vllm"

_WATCH = """
import sys, time
import pynvml
pynvml.nvmlInit()
handles = [pynvml.nvmlDeviceGetHandleByIndex(index) for index in range(4)]
free = None
print("watching", flush=True)
while free is None or time.time() - free < 0.5:
    held = any(pynvml.nvmlDeviceGetMemoryInfo(each).used > 4096 * 2**20 for each in handles)
    if held:
        free = None
    elif free is None:
        free = time.time()
    time.sleep(0.002)
print(free, flush=True)
"""

_RECLAIM = """
import json, subprocess, sys, time
watcher = subprocess.Popen([sys.executable, "-c", sys.argv[1]], stdout=subprocess.PIPE, text=True)
watcher.stdout.readline()
from ansible_collections.gpufleet.vllm.plugins.module_utils._reclaim.ports import host_ports
from ansible_collections.gpufleet.vllm.plugins.module_utils._reclaim.request import ReclaimRequest
from ansible_collections.gpufleet.vllm.plugins.module_utils._reclaim.run import reclaim
request = ReclaimRequest(settle=float(sys.argv[2]), grace=5.0)
result = reclaim(request, host_ports(request))
returned = time.time()
print(json.dumps([result.freed, returned - float(watcher.stdout.readline())]))
"""


@dataclass(frozen=True)
class Latency:
    """One delay, and how long after the driver's release and the settle time the call came back. Seconds."""

    delay: float
    beyond: float


def measure(host: Host) -> list[Latency]:
    """One clean-up for each delay. Ends by an AssertionError where one did not free the memory."""
    utils = subprocess.run(["tar", "-c", "plugins/module_utils"], cwd=ROOT, capture_output=True, check=True).stdout
    host.run(f"mkdir -p {_BASE} && base64 -d | tar -x -C {_BASE}", input=base64.b64encode(utils).decode())
    found = []
    on = Programs(host)
    for delay in DELAYS:
        host.gpu.clear()
        for position, gpu in enumerate(GPUS):
            host.gpu.set(gpu, release_delay_s=delay * (position + 1) / len(GPUS))
        on.orphan(GPUS)
        told = host.run(["env", "PYTHONPATH=/root/latency", "python3", "-c", _RECLAIM, _WATCH, str(SETTLE_S)], timeout=60).stdout
        freed, after = json.loads(told)
        assert freed, f"not freed with a delay of {delay:g} s"
        found.append(Latency(delay, float(after) - SETTLE_S))
    host.gpu.clear()
    return found
