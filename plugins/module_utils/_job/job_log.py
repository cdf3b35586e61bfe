# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The log of a change that is carried out by the job: each intention on disk before it is acted on, the progress for people."""

from __future__ import annotations

import sys
from contextlib import AbstractContextManager
from typing import Any, Dict, Mapping, Optional

from .._core.scrub import Scrub
from .._service.change_log import COMMITTING, ROLLING_BACK, ChangeLog
from .._service.outcome import Undo
from .._service.ports import Ports
from .._systemd.show import UnitStatus
from .._unit.change_unit import CHANGE_UNIT
from .progress import Progress
from .record import Record
from .signals import Signals
from .store import Store
from .watch import Watch

_STEP_S = 0.5


class JobLog(ChangeLog):
    """Writes into one record."""

    def __init__(
        self, record: Record, store: Store, progress: Progress, signals: Signals, scrub: Scrub, ports: Ports
    ) -> None:
        self._record = record
        self._store = store
        self._progress = progress
        self._signals = signals
        self._scrub = scrub
        self._clock = ports.clock
        self._last = 0.0
        self._watch: Optional[Watch] = None
        self._timings: Mapping[str, Optional[float]] = {}

    def time(self, timings: Mapping[str, Optional[float]]) -> None:
        """From now on what these say is kept with each intention: an attempt after this one tells it as well."""
        self._timings = timings

    def watch(self, watch: Watch) -> None:
        """From now on looks at a server are told with what this sees."""
        self._watch = watch

    def intend(self, stage: str, undo: Undo, more: Optional[Dict[str, Any]] = None) -> None:
        if stage in (COMMITTING, ROLLING_BACK):
            self._signals.undoing = True
        self._record.stage = stage
        self._record.undo = undo
        self._record.more.update(more or {})
        self._record.timings.update(self._timings)
        self._record.stage_at = self._clock.time()
        self._store.save(self._record.to_json())

    def phase(self, name: str) -> None:
        if name == "commit":
            self._signals.undoing = True
        if self._watch is not None:
            self._watch.close()  # so that it isn't seen among those who hold the GPUs
        self._progress.tell(phase=name, phase_since=self._clock.time(), detail="")

    def tell(self, **news: Any) -> None:
        now = self._clock.monotonic()
        if now - self._last >= _STEP_S:
            self._last = now
            self._progress.tell(**news)

    def seen(self, status: UnitStatus, detail: str) -> None:
        now = self._clock.monotonic()
        news = self._watch.news(status) if self._watch is not None else {}
        if news or now - self._last >= _STEP_S:
            self._last = now
            self._progress.tell(**self._scrub(dict(news, detail=detail)))

    def may_undo(self) -> None:
        # First of all: asking systemd takes a while, and whoever asks the change to end meanwhile must not end its way back.
        self._signals.undoing = True
        # Also when nobody has sent a signal yet: a server that ends with its host is no failed server.
        self._signals.leave_with_host()

    def fault(self, trace: str) -> str:
        sys.stderr.write(self._scrub.text(trace))
        return "what `journalctl -u %s` says." % CHANGE_UNIT

    def heard(self) -> AbstractContextManager[None]:
        """Inside, whoever asks the change to end is listened to (``signals.py``)."""
        return self._signals.heard()
