# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What is known of a process and of the one who started it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Optional, Tuple


@dataclass(frozen=True)
class ProcessInfo:
    """One process as /proc shows it.

    ``start_ticks`` is field 22 of stat (clock ticks since boot), which together with the pid names one process for good;
    ``start_time`` the same as seconds since the epoch. ``cmdline`` is the whole title, arguments joined with spaces.
    ``exe`` is None where the link may not be read. ``state`` is the letter of stat. ``nspids`` are its pids from the
    outermost visible pid namespace to its own. ``terminal`` is the number of its controlling terminal's device, 0 for none.
    """

    pid: int
    ppid: int
    comm: str
    state: str
    start_ticks: int
    start_time: Optional[float]
    uid: int
    user: str
    cmdline: str
    argv: Tuple[str, ...] = ()
    exe: Optional[str] = None
    nspids: Tuple[int, ...] = ()
    wchan: Optional[str] = None
    terminal: int = 0

    @property
    def zombie(self) -> bool:
        """Whether it has ended and only waits to be reaped."""
        return self.state in ("Z", "X")


@dataclass(frozen=True)
class CgroupOwner:
    """Who started a process, read from its cgroup.

    ``unit`` is the systemd unit that answers for it: a service (or scope) of the system manager, or of a user's manager when
    ``user_unit`` is true (``uid`` then says whose). ``container`` is the id or name of the container, machine or scheduler's job,
    ``runtime`` what runs it. ``session`` is the login session's id.
    """

    unit: Optional[str] = None
    user_unit: bool = False
    uid: Optional[int] = None
    slice: Optional[str] = None
    scope: Optional[str] = None
    container: Optional[str] = None
    runtime: Optional[str] = None
    session: Optional[str] = None


@dataclass(frozen=True)
class Classification:
    """What the rules make of a process.

    ``protected_by`` names the rule's reason; ``kept_by`` says which scheduler or container runtime answers for it although no cgroup
    of its own tells so.
    """

    vllm: bool
    orphan: bool
    protected: bool
    protected_by: Optional[str]
    kept_by: Optional[str] = None
