# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The outside world of this room, in one place, so that tests can put their own in."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Callable, Optional

from .._core.clock import Clock
from .._core.runner import Runner
from .._gpu.reader import GpuReader, open_reader
from .._server.http import Server
from .._systemd.journal import Journal
from .._systemd.manager import Systemd

if TYPE_CHECKING:
    from .._preflight.asked import Places


def _open_reader() -> GpuReader:
    return open_reader()


@dataclass(frozen=True)
class Paths:
    """Where things lie on the host. Tests point ``root`` at a directory of their own."""

    units: str = "/etc/systemd/system"
    config: str = "/etc/vllm"
    guard: str = "/usr/local/lib/gpufleet/gpu-guard.pyz"
    program: str = "/usr/local/lib/gpufleet/change.pyz"
    home: str = "/var/lib/vllm"
    records: str = "/var/lib/gpufleet"
    change: str = "/var/lib/gpufleet/change"
    run: str = "/run/gpufleet"
    proc: str = "/proc"


@dataclass(frozen=True)
class Ports:
    """Everything through which a service touches its host."""

    runner: Runner = field(default_factory=Runner)
    clock: Clock = field(default_factory=Clock)
    systemd: Systemd = field(default_factory=lambda: Systemd(Runner()))
    journal: Journal = field(default_factory=lambda: Journal(Runner()))
    open_reader: Callable[[], GpuReader] = _open_reader
    server: Callable[[str, int, Optional[str], bool], Server] = Server
    paths: Paths = Paths()
    places: Optional[Places] = None  # what the checks look at, and nothing is changed in; None: where things lie on a host
