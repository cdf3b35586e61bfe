# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A worker process: one rank, told by EngineCore what to do; it ends when EngineCore does."""

from __future__ import annotations

import os
import select
import signal
from collections.abc import Callable
from typing import Any

from . import log, processes
from .behaviours import Misused, misused
from .plan import Failure, Plan
from .processes import Link
from .rank import Rank


def title(plan: Plan, local_rank: int, data_rank: int) -> str:
    """Worker_DP1_PP0_TP3_EP7 and the like: only what is split is named."""
    parallel = plan.parallel
    pipeline_rank, tensor_rank = divmod(local_rank, parallel.tensor)
    name = "Worker"
    if parallel.data > 1 and plan.model.experts:
        name += f"_DP{data_rank}"
    if parallel.pipeline > 1:
        name += f"_PP{pipeline_rank}"
    if parallel.tensor > 1:
        name += f"_TP{tensor_rank}"
    if parallel.expert:
        name += f"_EP{data_rank * parallel.tensor + tensor_rank}"
    return name


class Worker:
    """The process of one rank. link leads to EngineCore; death becomes readable when EngineCore is gone."""

    def __init__(self, plan: Plan, local_rank: int, data_rank: int, link: Link, death: int) -> None:
        self._plan = plan
        self._link = link
        self._death = death
        self._data_rank = data_rank
        self._leaving = False
        self._orphaned = False
        self._rank = Rank(plan, local_rank, data_rank=data_rank)

    def run(self) -> int:
        """Start, then obey until EngineCore ends or SIGTERM comes. The process's exit code."""
        signal.signal(signal.SIGTERM, self._on_signal)
        signal.signal(signal.SIGINT, self._on_signal)
        processes.unblock_signals()
        processes.set_title("Worker")
        try:
            self._rank.init_device()
            processes.set_title(title(self._plan, self._rank.rank, self._data_rank))
            self._rank.load_model()
        except Failure as failure:
            log.error(
                "multiproc_executor.py:1057",
                "WorkerProc failed to start.\n" + log.traceback(failure.frames, failure.last),
            )
            return 0
        except Misused as error:
            misused(error)
        self._link.send({"ready": True})
        self._obey()
        self._rank.close()
        return 0

    def _on_signal(self, number: int, _frame: Any) -> None:
        if self._leaving or self._orphaned or self._deaf():
            return
        self._leaving = True
        raise SystemExit(0)

    def _deaf(self) -> bool:
        try:
            return bool(self._plan.behaviours["workers_ignore_sigterm"])
        except Misused as error:
            misused(error)

    def _obey(self) -> None:
        poller = select.poll()
        poller.register(self._link, select.POLLIN)
        poller.register(self._death, select.POLLIN)
        while True:
            ready = {descriptor for descriptor, _event in poller.poll()}
            if self._death in ready:
                if self._rank.first:
                    log.info("multiproc_executor.py:944", "Parent process exited, terminating worker queues")
                return
            message = self._link.receive()
            if message is None:
                poller.unregister(self._link)  # the death pipe says when to go
                continue
            if message["call"] == "orphan":
                self._become_orphan(message["escape"])
            self._link.send(self._call(message))

    def _call(self, message: dict[str, Any]) -> dict[str, Any]:
        steps: dict[str, Callable[..., Any]] = {
            "profile": self._rank.profile,
            "init_kv_cache": self._rank.init_kv_cache,
            "warm_up": self._rank.warm_up,
            "sleep": self._rank.sleep,
            "wake_up": self._rank.wake_up,
        }
        try:
            return {"result": steps[message["call"]](*message.get("arguments", ()))}
        except Failure as failure:
            log.error(
                "multiproc_executor.py:1189",
                "WorkerProc hit an exception.\n" + log.traceback(failure.frames, failure.last),
            )
            return {"error": failure.text}
        except Misused as error:
            misused(error)

    def _become_orphan(self, escape: bool) -> None:
        """Live on, whatever happens to the rest, until SIGKILL."""
        self._orphaned = True
        os.setsid()
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
        if escape:
            try:
                processes.leave_cgroup()
            except OSError as error:
                log.raw(f"vllm stand-in: escape_cgroup: {error}")
        self._link.send({"result": None})
        while True:
            signal.pause()
