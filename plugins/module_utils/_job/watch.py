# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What is seen of a server while it loads: memory on its GPUs, shards read, the last line of its journal that says how far it is.

Only lines that are known to be about the load are told: everybody on the host may read them.
"""

from __future__ import annotations

import re
from typing import Any, Callable, Dict, List, Optional, Sequence

from .._core.clock import Clock
from .._core.errors import GpuFleetError
from .._core.runner import Runner
from .._gpu.reader import GpuReader
from .._systemd.show import UnitStatus

# A reading of the driver and of the journal, in seconds between two. The first is late: most servers on small hosts are up by then.
_EVERY_S = 2.0
_FIRST_S = 1.0
_LINES = 60
_LONGEST = 160

_OF_INTEREST = re.compile(
    r"Loading weights|Loading \w+ checkpoint shards|Loading model|Model loading took|torch\.compile|Compiling|Dynamo bytecode|"
    r"GPU KV cache size|Available KV cache memory|Maximum concurrency|Graph captur|Capturing|init engine|Starting vLLM|gpu-guard:"
)
_SHARDS = re.compile(r"checkpoint shards:.*?(\d+)/(\d+)")
_CONTROL = re.compile(r"\x1b\[[0-9;]*[A-Za-z]|[\x00-\x1f\x7f]")


class Watch:
    """Looks now and then, and never so long that a crash would be seen late: a driver that hangs once is not asked again."""

    def __init__(self, gpus: Sequence[int], open_reader: Callable[[], GpuReader], runner: Runner, clock: Clock) -> None:
        self._gpus = [str(gpu) for gpu in gpus]
        self._open = open_reader
        self._reader: Optional[GpuReader] = None
        self._blind = not gpus
        self._runner = runner
        self._clock = clock
        self._next = clock.monotonic() + _FIRST_S

    def news(self, status: UnitStatus) -> Dict[str, Any]:
        """What is to be told now; {} when it is not yet time to look again."""
        if self._clock.monotonic() < self._next:
            return {}
        found = dict(self._memory(), **self._journal(status))
        self._next = self._clock.monotonic() + _EVERY_S
        return found

    def close(self) -> None:
        """Let go of the driver."""
        if self._reader is not None:
            self._reader.close()
            self._reader = None

    def _memory(self) -> Dict[str, Any]:
        if self._blind:
            return {}
        try:
            if self._reader is None:
                self._reader = self._open()
            snapshot = self._reader.snapshot(self._gpus, processes=False)
        except (GpuFleetError, OSError, RuntimeError):
            self._blind = True
            return {}
        if not snapshot.available:
            self._blind = True
            return {}
        used = [gpu.used_mib for gpu in snapshot.gpus if gpu.used_mib is not None]
        total = [gpu.total_mib for gpu in snapshot.gpus if gpu.total_mib is not None]
        return {"gpu_used_mib": sum(used), "gpu_total_mib": sum(total)}

    def _journal(self, status: UnitStatus) -> Dict[str, Any]:
        if not status.invocation_id:
            return {}
        words = ["journalctl", "--no-pager", "--quiet", "--all", "--boot", "--output=cat", "--lines=%d" % _LINES]
        words += ["_SYSTEMD_UNIT=" + status.unit, "_SYSTEMD_INVOCATION_ID=" + status.invocation_id]
        done = self._runner.run(words, timeout=3.0)
        return of_interest(done.stdout.splitlines()) if done.ok else {}


def of_interest(lines: List[str]) -> Dict[str, Any]:
    """The last line about the load, and the shards that have been read, as ``12/64``."""
    found: Dict[str, Any] = {}
    for line in reversed(lines):
        text = _CONTROL.sub("", line).strip()
        if "line" not in found and _OF_INTEREST.search(text):
            found["line"] = text[:_LONGEST]
        shards = _SHARDS.search(text)
        if shards is not None:
            found["shards"] = "%s/%s" % shards.groups()
            break
    return found
