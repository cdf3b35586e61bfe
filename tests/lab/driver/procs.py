# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Pids as the kernel side sees them: one process has a number in each PID namespace it is in."""

from __future__ import annotations

import os
import socket
import struct
from pathlib import Path

_PROC = Path("/proc")


def peer(connection: socket.socket) -> tuple[int, int]:
    """(pid, uid) of the process that made a connection, in the daemon's own PID namespace; pid 0: not visible."""
    raw = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    pid, uid, _gid = struct.unpack("3i", raw)
    return pid, uid


def pid_chain(pid: int) -> tuple[int, ...]:
    """A process's pid in each namespace from the daemon's down to its own; just (pid,) when it is already gone."""
    try:
        for row in (_PROC / str(pid) / "status").read_text(encoding="utf-8", errors="replace").splitlines():
            if row.startswith("NSpid:"):
                return tuple(int(each) for each in row.split()[1:])
    except (FileNotFoundError, ProcessLookupError):
        pass
    return (pid,)


def pid_at(chain: tuple[int, ...], depth: int) -> int:
    """The pid of a chain as seen from a namespace that is depth levels deep (1: the daemon's own)."""
    return chain[min(len(chain), depth) - 1]


def open_pidfd(pid: int) -> int | None:
    """A descriptor that becomes readable when the process ends; None when it has ended already."""
    try:
        return os.pidfd_open(pid)
    except ProcessLookupError:
        return None


def name_of(pid: int) -> str | None:
    """A process's name as the driver reports it: its executable's or title's first word; None when it is gone."""
    try:
        raw = (_PROC / str(pid) / "cmdline").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return raw.split(b"\0")[0].decode("utf-8", "surrogateescape") or None
