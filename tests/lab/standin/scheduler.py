# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Which requests run and when their tokens come: as many as max_num_seqs and the KV cache allow, the others wait."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Any

_DEFAULT_RATE = 2000.0  # tokens per second of one request
_DEFAULT_FIRST_TOKEN_S = 0.004
_SHORTEST_STEP_S = 0.005


@dataclass
class _Request:
    identifier: int
    blocks: int
    remaining: int
    due: float  # when the first token may come
    credit: float = 0.0


class Scheduler:
    """Requests of one engine. Times are those of a monotonic clock, in seconds."""

    def __init__(self, max_num_seqs: int, kv_blocks: int, block_size: int) -> None:
        self._max_num_seqs = max_num_seqs
        self._kv_blocks = kv_blocks
        self._block_size = block_size
        self._used_blocks = 0
        self._running: dict[int, _Request] = {}
        self._waiting: deque[_Request] = deque()
        self._last = 0.0
        self._next = 0.0
        self._rate = _DEFAULT_RATE
        self._total_rate: float | None = None
        self._first_token_s = _DEFAULT_FIRST_TOKEN_S

    def throttle(self, settings: dict[str, float] | None) -> None:
        """Take on the speed of the behaviour `throttle`; None: the default."""
        settings = settings or {}
        self._rate = settings.get("tokens_per_s", _DEFAULT_RATE)
        self._total_rate = settings.get("max_tokens_per_s")
        self._first_token_s = settings.get("ttft_s", _DEFAULT_FIRST_TOKEN_S)

    def add(self, identifier: int, prompt_tokens: int, output_tokens: int, now: float) -> None:
        """Queue a request."""
        blocks = -(-(prompt_tokens + output_tokens) // self._block_size)
        self._waiting.append(_Request(identifier, blocks, output_tokens, now))
        self._admit(now)

    def abort(self, identifier: int) -> None:
        """Forget a request; one that isn't there is no error."""
        request = self._running.pop(identifier, None)
        if request is not None:
            self._used_blocks -= request.blocks
        self._waiting = deque(each for each in self._waiting if each.identifier != identifier)

    def abort_all(self) -> list[int]:
        """Forget every request and tell which they were."""
        gone = [*self._running, *(each.identifier for each in self._waiting)]
        self._running.clear()
        self._waiting.clear()
        self._used_blocks = 0
        return gone

    @property
    def idle(self) -> bool:
        return not self._running and not self._waiting

    def seconds_to_step(self, now: float) -> float | None:
        """Time until the next step is due; None: nothing runs."""
        return max(self._next - now, 0.0) if self._running else None

    def stats(self) -> dict[str, Any]:
        """What metrics show."""
        return {
            "running": len(self._running),
            "waiting": len(self._waiting),
            "kv_usage": min(self._used_blocks / max(self._kv_blocks, 1), 1.0),
        }

    def step(self, now: float) -> list[tuple[int, int, bool]]:
        """Make the tokens that are due: (request, how many, whether these are its last)."""
        elapsed = min(now - self._last, 1.0)
        self._last = now
        made: list[tuple[int, int, bool]] = []
        rate = self._current_rate()
        for request in list(self._running.values()):
            if now < request.due:
                continue
            if request.credit == 0.0:
                request.credit = 1.0
            else:
                request.credit += rate * elapsed
            count = min(int(request.credit + 1e-6), request.remaining)
            if not count:
                continue
            request.credit = max(request.credit - count, 1e-9)
            request.remaining -= count
            made.append((request.identifier, count, not request.remaining))
            if not request.remaining:
                self.abort(request.identifier)
        self._admit(now)
        self._next = now + max(1.0 / self._current_rate(), _SHORTEST_STEP_S)
        return made

    def _current_rate(self) -> float:
        if self._total_rate is None or not self._running:
            return self._rate
        return min(self._rate, self._total_rate / len(self._running))

    def _admit(self, now: float) -> None:
        if not self._running:
            self._last = now
            self._next = now + self._first_token_s
        while self._waiting and len(self._running) < self._max_num_seqs:
            request = self._waiting[0]
            if self._running and self._used_blocks + request.blocks > self._kv_blocks:
                return
            self._waiting.popleft()
            request.due = now + self._first_token_s
            self._used_blocks += request.blocks
            self._running[request.identifier] = request
            self._next = min(self._next, request.due) if self._next > now else request.due
