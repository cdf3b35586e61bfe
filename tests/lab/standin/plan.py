# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What one server is going to do: settled before any process is started, inherited by all of them."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import time
from argparse import Namespace
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from . import log
from .behaviours import Behaviours, Death
from .devices import Device
from .model import Model, Parallel

MIB = 1024 * 1024
GIB = 1024 * MIB

# How a load's time is spread over what workers do.
_SHARES = {"device": 0.05, "weights": 0.55, "profile": 0.2, "kv_cache": 0.02, "warmup": 0.06, "graphs": 0.12}


class Failure(Exception):
    """A process fails while loading. last is the traceback's last line, frames the way there."""

    def __init__(self, last: str, frames: tuple[log.Frame, ...] = ()) -> None:
        super().__init__(last)
        self.last = last
        self.frames = frames

    @property
    def text(self) -> str:
        """The exception's text without its class, as it travels in messages between processes."""
        return self.last.partition(": ")[2] or self.last


@dataclass
class Plan:
    """One server's settled configuration."""

    arguments: Namespace
    model: Model
    parallel: Parallel
    devices: list[Device]
    behaviours: Behaviours
    served_names: list[str]
    version: str
    max_model_len: int
    max_num_seqs: int
    death: Death | None
    load_seconds: float
    auto_length: bool = False

    @property
    def utilisation(self) -> float:
        return float(self.arguments.gpu_memory_utilization)

    def pause(self, phase: str, share: float = 1.0) -> None:
        """Sleep for a share of what a phase takes."""
        seconds = self.load_seconds * _SHARES[phase] * share
        if seconds > 0:
            time.sleep(seconds)

    def maybe_die(self, phase: str, process: str, rank: int | None = None) -> None:
        """Die if the behaviours want this process to, in this phase. Raises Failure."""
        death = self.death
        if death is None or death.phase != phase:
            return
        if death.process == "api" and process == "engine" and death.signal is not None:
            os.kill(os.getppid(), death.signal)  # it waits for its engine, which knows how far the load is
            return
        if death.process != process:
            return
        if death.rank is not None and rank is not None and death.rank != rank:
            return
        for line in death.lines:
            if death.raw:
                log.raw(line)
            else:
                log.error("multiproc_executor.py:1057", line)
        if death.signal is not None:
            _die_of(death.signal)
        raise Failure(death.error or "RuntimeError: CUDA error: unspecified launch failure")


def _die_of(number: int) -> NoReturn:
    if number not in (signal.SIGKILL, signal.SIGSTOP):
        signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)
    time.sleep(5)
    os._exit(1)


def cache_root() -> Path:
    """VLLM_CACHE_ROOT, or what vLLM takes without it."""
    chosen = os.environ.get("VLLM_CACHE_ROOT")
    if chosen:
        return Path(os.path.expanduser(chosen))
    base = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return Path(base) / "vllm"


def count_start(name: str, epoch: str) -> int:
    """Count this start of the server called name, and tell which it is, from 1. OSError: nowhere to write."""
    directory = Path(os.environ.get("STANDIN_STATE_DIR") or cache_root())
    directory.mkdir(parents=True, exist_ok=True)
    with open(directory / "standin-starts.json", "a+", encoding="utf-8") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        file.seek(0)
        counts = json.loads(file.read() or "{}")
        key = f"{epoch}/{name}"
        counts[key] = counts.get(key, 0) + 1
        file.seek(0)
        file.truncate()
        json.dump(counts, file)
        return int(counts[key])


def format_gib(size: float) -> str:
    """Bytes as vLLM writes GiB in its messages: "95.0"."""
    return f"{round(size / GIB, 2)}"
