# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The proof while it is under way: who comes up meanwhile, and when there is nothing more to wait for."""

from __future__ import annotations

from typing import Optional, Tuple

from .._gpu.types import Snapshot
from .._process.rules import QUIET
from .left import all_in_use, out_of_reach
from .planned import Plan
from .proof import Proof, held_mib, prove_free
from .seen import Holder
from .situation import Situation

# Between two looks at processes and units while the memory is watched; the first comes sooner.
_LOOK_S = 1.0
_FIRST_LOOK_S = 0.2
# The last look at who is there begins this long before the settle time is over, so that nobody waits for it.
_LAST_LOOK_S = 0.15
# How long something has to look out of reach before it is taken for that.
_DOUBT_S = 0.8
# Settle time where no process is there that could take memory: enough to see memory that is in motion.
_IDLE_SETTLE_S = 0.15


class Watch:
    """Watches the memory of a situation until it is proven free, or until waiting makes no sense."""

    def __init__(self, situation: Situation) -> None:
        self._now = situation
        self.next: Optional[Plan] = None
        self.looked_last = False
        self._next_look = 0.0
        self._last_used: Optional[Tuple[Optional[int], ...]] = None
        self._doubted_at: Optional[float] = None
        self._in_use_since: Optional[float] = None

    def prove(self, reserve: float) -> Proof:
        """One proof; ``next`` says afterwards what there is to end before another. ``reserve`` seconds are left for a reset."""
        now, clock = self._now, self._now.ports.clock
        self.next = self._last_used = self._in_use_since = None
        self.looked_last = False
        self._next_look = clock.monotonic() + _FIRST_LOOK_S if now.done.changed else 0.0
        start = clock.monotonic()
        proof = prove_free(
            now.reader,
            now.selected,
            now.limits,
            self._settle(),
            max(0.0, now.deadline.remaining - reserve),
            clock,
            on_wait=self._look_last,
            give_up=self._give_up,
        )
        now.done.timings.settle += clock.monotonic() - start
        return proof

    def _look(self) -> None:
        self._now.look()
        self._next_look = self._now.ports.clock.monotonic() + _LOOK_S

    def _look_last(self, so_far: Proof) -> None:
        """Look who is there once more, at the end of the settle time; the readings of the driver go on after it."""
        if so_far.settle_s == 0.0:
            self.looked_last = False  # it begins anew
        used = [(held_mib(gpu), self._now.limits[gpu.index]) for gpu in so_far.gpus]
        free = all(mib is not None and mib <= limit for mib, limit in used)
        if not self.looked_last and free and self._settle() - so_far.settle_s <= _LAST_LOOK_S:
            self._look()
            self.looked_last = self._now.view.snapshot.available

    def _settle(self) -> float:
        """The settle time; where nothing was done and nobody is there who could take memory, a short one is proof enough."""
        now = self._now
        quiet = all(self._takes_none(holder) for holder in now.view.holders if holder.gpus & set(now.selected))
        if not now.done.changed and quiet:
            return min(now.request.settle, _IDLE_SETTLE_S)
        return now.request.settle

    @staticmethod
    def _takes_none(holder: Holder) -> bool:
        """Whether a process will not take memory: it has ended, or it is one of those that serve the host (a display, a monitor).

        Whoever else is protected may be anybody's work that is about to take more: a scheduler's job, what the caller protects.
        """
        return holder.state == "gone" or holder.protected_by in QUIET

    def _give_up(self, snapshot: Snapshot) -> Optional[str]:
        """Asked while memory is held: look who holds it, and stop waiting when there is more to do or nothing to wait for.

        Looking at processes and units costs more than reading the memory, so it is done now and then, and when memory moved.
        """
        now = self._now
        used = tuple(held_mib(gpu) for gpu in snapshot.gpus)
        moved, self._last_used = self._last_used not in (None, used), used
        if now.ports.clock.monotonic() < self._next_look and not moved and not self._settled():
            return None
        self._look()
        if not now.view.snapshot.available:
            return None
        fresh = now.fresh()
        if not fresh.empty:
            self.next = fresh
            return "there is more to end"
        if now.revived():
            return "what was stopped is started again each time"
        held = now.held()
        if all_in_use(held):
            if self._in_use_since is None:
                self._in_use_since = now.ports.clock.monotonic()
            return "what is held belongs to running processes that were left alone" if self._settled() else None
        self._in_use_since = None
        # A process on its way out looks for a moment like one that nobody can reach: only what stays so counts.
        reason = out_of_reach(held, now.view, now.plan)
        at = now.ports.clock.monotonic()
        if reason is None or self._doubted_at is None:
            self._doubted_at = None if reason is None else at
            return None
        return reason if at - self._doubted_at >= _DOUBT_S else None

    def _settled(self) -> bool:
        """Whether for the settle time nothing was held but by right: what came free beside that must not be a dip."""
        since, now = self._in_use_since, self._now
        return since is not None and (not now.done.changed or now.ports.clock.monotonic() - since >= now.request.settle)
