# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Whether a unit of the service's name is this collection's to change. What is not is left alone, whatever is asked."""

from __future__ import annotations

import os
from typing import Optional

from .._core.errors import GpuFleetError
from .._core.files import read_bytes
from .._process.procfs import read_process
from .._systemd.show import UnitStatus
from .._unit.found import ManagedService
from .._unit.render import FORMAT
from .ports import Ports

# How every file begins that this collection writes.
OURS = b"# Managed by gpufleet.vllm"


def refuse_masked(unit: str, status: UnitStatus) -> None:
    """A service that somebody forbade to start is not declared behind his back."""
    if status.masked:
        raise GpuFleetError(
            "%s is masked on this host: somebody forbade it to start. If that is over, run `systemctl unmask %s` and run again."
            % (unit, unit)
        )


def refuse_other_name(name: str, own: Optional[ManagedService]) -> None:
    """Two names that make one unit name would take turns in one service."""
    if own is not None and own.name != name and not own.problem:
        raise GpuFleetError(
            "%s belongs to the service %r, and the name %r would make the same unit of it. Choose a name that differs in "
            "letters, digits, dots or hyphens." % (own.unit, own.name, name)
        )


def refuse_newer(own: Optional[ManagedService]) -> None:
    """A unit that a later version of this collection wrote may say things that this one would throw away."""
    if own is not None and own.format > FORMAT:
        raise GpuFleetError(
            "%s was written by a newer version of this collection (format %d; this one knows %d). It is left alone. Update "
            "the collection on the controller and run again." % (own.unit, own.format, FORMAT)
        )


def refuse_foreign_unit(unit: str, status: UnitStatus, own: Optional[ManagedService], config_path: str, ports: Ports) -> None:
    """A unit of this name that is not ours, wherever its file is, or that runs without one."""
    path = os.path.join(ports.paths.units, unit)
    masked = status.masked or is_mask(path)
    if own is not None or (masked and status.inactive):
        return
    on_disk = os.path.lexists(path) and not masked
    elsewhere = status.fragment_path not in ("", path) and os.path.lexists(status.fragment_path) and not masked
    if on_disk or elsewhere or (not status.inactive and not _started_by_us(status, config_path, ports)):
        where = status.fragment_path or (path if on_disk else "no file")
        raise GpuFleetError(
            "There is a unit %s on this host already (%s, %s), but this collection did not write it. It is left alone. Choose "
            "another name for the service, or stop it and move its file away, and run again."
            % (unit, where, status.active_state or "not loaded")
        )


def is_mask(path: str) -> bool:
    """Whether a unit's file is the link by which it is masked."""
    return os.path.islink(path) and os.readlink(path) == os.devnull


def _started_by_us(status: UnitStatus, config_path: str, ports: Ports) -> bool:
    """Whether a unit whose file is gone was ours: its server reads our configuration, or that still stands there."""
    if status.main_pid > 0:
        process = read_process(status.main_pid, ports.paths.proc)
        return process is not None and config_path in process.argv
    content = read_bytes(config_path)
    return content is not None and content.startswith(OURS)
