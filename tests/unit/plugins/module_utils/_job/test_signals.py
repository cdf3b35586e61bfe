# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The job is asked to end: by somebody, or by a host that goes down."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.gpufleet.vllm.plugins.module_utils._job.signals import Leave, Signals
from ansible_collections.gpufleet.vllm.plugins.module_utils._service.interrupts import Interrupted
from ansible_collections.gpufleet.vllm.tests.unit.plugins.module_utils._job.host import NEW, OLD, Host, Quiet, patch


def test_somebody_who_stops_it_undoes_it_once() -> None:
    runner: Any = Quiet()
    signals = Signals(runner)
    with signals.handled():
        with pytest.raises(Interrupted, match="SIGTERM"):
            signal.raise_signal(signal.SIGTERM)
        signal.raise_signal(signal.SIGTERM)  # on the way back nobody is listened to
        runner.stopping = True
        with pytest.raises(Leave):
            signal.raise_signal(signal.SIGALRM)  # unless the host goes down meanwhile
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL and signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)


def test_past_the_point_of_return_it_goes_on() -> None:
    runner: Any = Quiet()
    signals = Signals(runner)
    signals.undoing = True
    with signals.handled():
        signal.raise_signal(signal.SIGTERM)


def test_a_host_that_goes_down_undoes_nothing_and_the_next_boot_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    patch(monkeypatch)
    host = Host(tmp_path)
    host.install("old")
    host.begin()
    bring_up = host.units.bring_up

    def down(unit: str) -> None:
        bring_up(unit)
        if unit == NEW:  # systemd stops the servers too, and the new one is seen to end
            host.units.units[NEW] = host.units.units[NEW].__class__(NEW, "loaded", "failed", "failed")
            host.units.started_at.pop(NEW)
            host.runner.stopping = True

    monkeypatch.setattr(host.units, "bring_up", down)
    with pytest.raises(Leave):
        host.live()
    assert host.store.exists() and not any(each.startswith("start " + OLD) for each in host.done)
    monkeypatch.setattr(host.units, "bring_up", bring_up)
    host.runner.stopping = False
    host.revive(True)
    host.live()
    assert host.serving() == [OLD] == host.at_boot() and not host.store.exists()
    assert "The host went down" in host.result()["msg"] and host.result()["rolled_back"]
