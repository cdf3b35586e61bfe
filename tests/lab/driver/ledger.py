# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The memory book of one GPU: who allocated, what is on its way back, what leaked. Pure: the clock is passed in.

Memory that a process gives up does not return at once: it counts as used until the stages of the GPU's release
schedule have passed, and the part that leaks stays until the GPU is reset. Sizes are MiB, times are CLOCK_MONOTONIC
seconds.
"""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass
class Allocation:
    """Memory that one connection holds. `pids` is the allocating process's pid in every namespace, outermost first."""

    number: int
    mib: int
    kinds: frozenset[str]
    pids: tuple[int, ...]
    mig: int | None = None
    listed: bool = True
    as_pid: int | None = None
    alive: bool = True


@dataclass
class Release:
    """Memory on its way back: `stages` are (when, MiB) still to come."""

    pids: tuple[int, ...]
    mib: int
    mig: int | None
    begun_at: float
    stages: list[tuple[float, int]]


@dataclass(frozen=True)
class Freed:
    """Memory that came back: what tests measure reaction times from."""

    mib: int
    pids: tuple[int, ...]
    released_at: float
    freed_at: float


@dataclass(frozen=True)
class ReleaseSchedule:
    """How a GPU gives memory back: cumulative shares (0..1) at seconds after the release."""

    stages: tuple[tuple[float, float], ...] = ((0.0, 1.0),)

    def split(self, mib: int, begun_at: float) -> list[tuple[float, int]]:
        """The stages of giving mib MiB back, as (when, MiB); the last one carries the rounding."""
        out: list[tuple[float, int]] = []
        done = 0
        for delay, share in self.stages:
            upto = mib if share >= 1.0 else int(mib * share)
            if upto > done:
                out.append((begun_at + delay, upto - done))
                done = upto
        return out


@dataclass
class Ledger:
    """The book of one GPU."""

    allocations: dict[int, Allocation] = field(default_factory=dict)
    releases: list[Release] = field(default_factory=list)
    history: list[Freed] = field(default_factory=list)
    leaked_mib: int = 0

    def settle(self, now: float) -> None:
        """Take out of the book what has come back by now."""
        for release in self.releases:
            while release.stages and release.stages[0][0] <= now:
                when, mib = release.stages.pop(0)
                self.history.append(Freed(mib, release.pids, release.begun_at, when))
        self.releases = [release for release in self.releases if release.stages]

    def in_use_mib(self, mig: int | None = None, whole: bool = True) -> int:
        """What allocations and unfinished releases hold; of one MIG device when whole is False."""
        held = sum(each.mib for each in self.allocations.values() if whole or each.mig == mig)
        held += sum(mib for release in self.releases if whole or release.mig == mig for _when, mib in release.stages)
        return held + (self.leaked_mib if whole else 0)

    def release(self, number: int, now: float, schedule: ReleaseSchedule, leak_mib: int) -> None:
        """End an allocation: up to leak_mib MiB in all never come back, the rest follows the schedule."""
        gone = self.allocations.pop(number)
        lost = max(0, min(gone.mib, leak_mib - self.leaked_mib))
        self.leaked_mib += lost
        returning = gone.mib - lost
        if returning:
            self.releases.append(Release(gone.pids, returning, gone.mig, now, schedule.split(returning, now)))
        self.settle(now)

    def reschedule(self, now: float, schedule: ReleaseSchedule) -> None:
        """Apply a changed schedule to what is on its way back; nothing comes back earlier than now."""
        self.settle(now)
        for release in self.releases:
            left = sum(mib for _when, mib in release.stages)
            returned = release.mib - left
            stages: list[tuple[float, int]] = []
            for when, mib in schedule.split(release.mib, release.begun_at):
                already = min(returned, mib)
                returned -= already
                if mib > already:
                    stages.append((max(now, when), mib - already))
            release.stages = stages
        self.settle(now)

    def reset(self) -> None:
        """What a GPU reset or a power cycle does: nothing is on its way back and nothing is leaked any more."""
        self.releases.clear()
        self.leaked_mib = 0
