# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The job is asked to end (SIGTERM) at every moment of its life that takes time: the host always ends with a server, and no record."""

from __future__ import annotations

import signal
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.gpufleet.vllm.plugins.module_utils._core.errors import GpuFleetError
from ansible_collections.gpufleet.vllm.plugins.module_utils._job.job import Job
from ansible_collections.gpufleet.vllm.plugins.module_utils._job.signals import Signals
from ansible_collections.gpufleet.vllm.tests.unit.plugins.module_utils._job.host import NEW, OLD, Host, patch
from ansible_collections.gpufleet.vllm.tests.unit.plugins.module_utils._job.test_death import (
    Case,
    changed,
    failing_change,
    failing_overlap,
    failing_swap,
    overlapped,
    swap,
)

Scenario = Callable[[Host], dict[str, Any]]
_UNITS = ("statuses", "start", "stop", "enable", "disable", "daemon_reload", "reset_failed")
_SERVER = ("health", "models", "complete", "metrics")


class Moments:
    """What takes time on a host: systemctl, a request to a server, a sleep, something that comes to the disk.

    Each is known by the calls that lead to it. The signal comes in the first of those that were called in this way.
    """

    def __init__(self, host: Host, wanted: str | None) -> None:
        self.seen: list[str] = []
        self._wanted = wanted
        self._inside = False
        for name in _UNITS:
            self._tell_of(host.units, name)
        self._tell_of(host.units.clock, "sleep")
        self._tell_of(host, "mutation")
        self._tell_of(host.runner, "run")
        make = host.units.server

        def server(*given: Any, **more: Any) -> Any:
            made = make(*given, **more)
            for name in _SERVER:
                self._tell_of(made, name)
            return made

        host.units.server = server  # type: ignore[method-assign]

    def _tell_of(self, thing: Any, name: str) -> None:
        real = getattr(thing, name)

        def call(*given: Any, **more: Any) -> Any:
            self._here(name)
            return real(*given, **more)

        setattr(thing, name, call)

    def _here(self, name: str) -> None:
        if self._inside:
            return
        stack = [
            "%s:%d" % (frame.name, frame.lineno or 0)
            for frame in traceback.extract_stack()
            if "/plugins/module_utils/" in frame.filename and "/tests/unit/" not in frame.filename
        ]
        moment = "%s < %s" % (name, " < ".join(reversed(stack)))
        if moment in self.seen:
            return
        self.seen.append(moment)
        if moment == self._wanted:
            self._inside = True
            try:
                signal.raise_signal(signal.SIGTERM)
            finally:
                self._inside = False


def _live(host: Host, wanted: str | None) -> list[str]:
    """Run the job to its end with a signal in one moment of it; the moments that there were."""
    runner: Any = host.runner
    signals = Signals(runner)
    moments = Moments(host, wanted)
    host.count = 0
    with signals.handled():
        Job(host.ports(), host.store, signals, "boot-%d" % host.boots, str(host.root / "run" / "progress.json")).run()
    return moments.seen


def _at_rest(case: Case, said: str) -> str:
    """The unit that serves. Where the change has failed that is the old one, with its files, and what was stopped is said to be back."""
    host = case.host
    serving, result, after = host.serving(), host.result(), host.snapshot()
    assert not host.store.exists() and len(serving) == 1 and serving == host.at_boot(), said
    unit = serving[0]
    assert host.started_with[unit] == host.definition(unit), said + " runs with other files than there are"
    if not result.get("failed"):
        assert case.works and unit == NEW, said
        return unit
    assert unit == case.old and after == case.before, said
    touched = any(what.startswith(("stop ", "start ")) for what in host.done)
    assert result["rolled_back"] or not touched, said
    assert "asked to end" in result["msg"] or not case.works, said
    return unit


# After a death before this mutation the job begins for the second time: the record says what is to be put back.
@pytest.mark.parametrize(("scenario", "dies"), [
    (swap, None), (failing_swap, None), (changed, None), (failing_change, None), (overlapped, None), (failing_overlap, None),
    (swap, "stop"), (failing_swap, "start"),
])  # fmt: skip
def test_whoever_asks_at_any_moment_leaves_a_host_that_serves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, scenario: Scenario, dies: str | None
) -> None:
    patch(monkeypatch)
    at: int | None = None

    def fresh(name: str) -> Case:
        case = Case(scenario, tmp_path / name)
        case.host.begin(**case.params)
        if at is not None:
            case.host.live(die_at=at)
            case.host.revive(False)
        return case

    if dies is not None:
        case = fresh("dies")
        case.host.done.clear()
        case.host.live()
        at = 1 + next(k for k, what in enumerate(case.host.done) if what.startswith(dies + " vllm-"))
    moments = _live(fresh("undisturbed").host, None)
    assert len(moments) > 20
    ends = set()
    for number, moment in enumerate(moments):
        case = fresh(str(number))
        try:
            _live(case.host, moment)
        except GpuFleetError as exc:
            pytest.fail("asked to end in %s: %s" % (moment, exc.msg))
        ends.add(_at_rest(case, "asked to end in %s: %s" % (moment, case.host.describe())))
    assert case.old in ends and (not case.works or NEW in ends)
    assert ends <= {NEW, OLD}
