# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""One start at a time on each GPU, until the server that starts is ready or dead.

Two servers that load at once on one GPU take each other's memory for their own and size their caches wrongly. A file lock can't keep
them apart: the guard that would hold it has ended before the server begins to load, and a helper that stayed behind to hold it
would be one more process in the unit's cgroup, to be mistaken for the server's. So each unit writes a claim, and whoever comes
later looks whether the claimant still starts: its guard is alive, or its cgroup has processes and its port does not answer
yet. A claimant that died in whatever way holds nobody up.

Who comes first is settled without a lock either, because any lock that users of different units can take can be kept by one of
them: it is Lamport's bakery. A unit says that it draws a ticket, draws one behind all others', and waits for those who have a
lower one or are about to draw. That also makes the order that of arrival.
"""

from __future__ import annotations

import os
import socket
from dataclasses import replace
from typing import Callable, Dict, List, Optional, Sequence, Tuple

from .._process.cgroup import systemd_path
from .claims import Claim, Unusable, read_claims, remove_claim, with_ticket, write_claim
from .leftovers import members

# Between the guard's end and the server's first process: systemd needs a moment.
_GRACE_S = 10.0


class StartLock:
    """The claims under one directory. ``now`` gives CLOCK_MONOTONIC, the same for everybody on the host until it reboots."""

    def __init__(
        self,
        directory: str,
        unit: str,
        now: Callable[[], float],
        proc_root: str = "/proc",
        cgroup_root: str = "/sys/fs/cgroup",
        answers: Optional[Callable[[str, int], bool]] = None,
    ) -> None:
        self._directory = directory
        self._unit = unit
        self._now = now
        self._proc = proc_root
        self._cgroup = cgroup_root
        self._answers = answers or port_answers
        self._claim: Optional[Claim] = None
        # Units whose guard has passed and whose cgroup was seen empty -> since when.
        self._empty: Dict[str, float] = {}

    def take(self, gpus: Sequence[str], host: str, port: Optional[int]) -> Optional[Tuple[str, List[str]]]:
        """Claim these GPUs (by UUID); None when they are ours now, else the unit that still starts, and on which of them.

        To be called again until it is None; the place in the queue is kept. Raises Unusable.
        """
        mine = self._claim or self._draw(gpus, host, port)
        for other in read_claims(self._directory, self._unit):
            shared = sorted(set(other.gpus) & set(mine.gpus))
            if shared and _before(other, mine) and self._starting(other):
                return other.unit, shared
        return None

    def passed(self) -> Optional[str]:
        """The guard lets the server start: from now on the server's life decides. What went wrong with saying so, if anything."""
        if self._claim is not None:
            self._claim = replace(self._claim, passed=self._now())
            try:
                write_claim(self._directory, self._claim)
            except Unusable as exc:
                return str(exc)
        return None

    def drop(self) -> None:
        """The guard does not let the server start."""
        if self._claim is not None:
            self._claim = None
            remove_claim(self._directory, self._unit)

    def starting(self) -> List[Claim]:
        """The claims of other units that stand now. Raises Unusable."""
        return [claim for claim in read_claims(self._directory, self._unit) if self._starting(claim)]

    def _draw(self, gpus: Sequence[str], host: str, port: Optional[int]) -> Claim:
        pid = os.getpid()
        claim = Claim(self._unit, tuple(sorted(gpus)), host, port, pid, _start_ticks(pid, self._proc),
                      _text(self._proc + "/self/cgroup"))
        write_claim(self._directory, claim)  # without a ticket: whoever looks from now on waits for it
        claim = with_ticket(claim, read_claims(self._directory, self._unit))
        write_claim(self._directory, claim)
        self._claim = claim
        return claim

    def _starting(self, claim: Claim) -> bool:
        """Whether a claimant still starts. It is judged by what the kernel says of the unit: its user can write what it likes."""
        if claim.passed is None:
            ticks = _start_ticks(claim.pid, self._proc)
            if ticks is None:  # ended, or hidden from other users
                return claim.pid in members(claim.cgroup, claim.unit, self._cgroup)
            return ticks == claim.start_ticks and self._belongs(claim)
        if claim.port is None:
            return False  # nobody can tell when it is ready
        now = self._now()
        if not members(claim.cgroup, claim.unit, self._cgroup):
            # by our own clock too: `passed` may be written anew again and again
            since = self._empty.setdefault(claim.unit, now)
            return bool(0 <= now - claim.passed < _GRACE_S) and now - since < _GRACE_S
        self._empty.pop(claim.unit, None)
        return not self._answers(claim.host, claim.port)

    def _belongs(self, claim: Claim) -> bool:
        """Whether the process that claims runs in the unit that it claims for; true where its cgroup can't be read."""
        text = _text("%s/%d/cgroup" % (self._proc, claim.pid))
        return not text or claim.unit in systemd_path(text).split("/")


def _before(other: Claim, mine: Claim) -> bool:
    """Whether the other one goes first. One that has no ticket yet may still have looked before ours was there."""
    return other.ticket is None or mine.ticket is None or (other.ticket, other.unit) < (mine.ticket, mine.unit)


def port_answers(host: str, port: int) -> bool:
    """Whether somebody listens there: a vLLM server listens only when its model is loaded."""
    address = {"0.0.0.0": "127.0.0.1", "::": "::1", "": "127.0.0.1"}.get(host, host)
    try:
        with socket.create_connection((address, port), timeout=1.0):
            return True
    except (OSError, ValueError):  # ValueError: no name that could be looked up
        return False


def _start_ticks(pid: int, root: str) -> Optional[int]:
    from .._process.procfs import start_ticks

    return start_ticks(pid, root)


def _text(path: str) -> str:
    try:
        with open(path, encoding="utf-8", errors="replace") as handle:
            return handle.read()
    except OSError:
        return ""
