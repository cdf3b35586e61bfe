# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The job is asked to end: by somebody, or by a host that goes down."""

from __future__ import annotations

import os
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.gpufleet.vllm.plugins.module_utils._core.clock import Clock, Deadline
from ansible_collections.gpufleet.vllm.plugins.module_utils._core.errors import GpuFleetError
from ansible_collections.gpufleet.vllm.plugins.module_utils._core.host_lock import HostLock
from ansible_collections.gpufleet.vllm.plugins.module_utils._job.job import Job
from ansible_collections.gpufleet.vllm.plugins.module_utils._job.signals import Leave, Signals
from ansible_collections.gpufleet.vllm.plugins.module_utils._server.http import Server
from ansible_collections.gpufleet.vllm.plugins.module_utils._service import ready, wellness
from ansible_collections.gpufleet.vllm.plugins.module_utils._service.change_log import ChangeLog
from ansible_collections.gpufleet.vllm.plugins.module_utils._service.drain import drain
from ansible_collections.gpufleet.vllm.plugins.module_utils._service.interrupts import Interrupted, shielded
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


def test_what_cannot_be_undone_yet_is_noted_and_heard_as_soon_as_it_can_be() -> None:
    runner: Any = Quiet()
    signals = Signals(runner)
    signals.listening = False
    heard = []
    with signals.handled():
        signal.raise_signal(signal.SIGTERM)
        with pytest.raises(Interrupted, match="SIGTERM"), signals.heard():
            heard.append("never")
        signal.raise_signal(signal.SIGTERM)  # and that once
    assert heard == [] and not signals.listening


def test_the_lock_is_waited_for_and_the_change_is_undone_then(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    patch(monkeypatch)
    host = Host(tmp_path)
    host.install("old")
    host.begin()
    runner: Any = host.runner
    signals = Signals(runner)
    holder = HostLock(host.paths.run, "somebody else")
    holder.__enter__()

    def let_go(_seconds: float) -> None:
        signal.raise_signal(signal.SIGTERM)
        holder.__exit__(None, None, None)

    monkeypatch.setattr(host.units.clock, "sleep", let_go)
    with signals.handled():
        Job(host.ports(), host.store, signals, "boot-1", str(tmp_path / "run" / "progress.json")).run()
    assert host.result()["msg"] == "This change was asked to end (SIGTERM), before anything was touched. Run again to carry it out."
    assert host.serving() == [OLD] and not host.store.exists()


@pytest.fixture
def busy() -> Iterator[Server]:
    """A server that listens and says nothing."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(5)
        yield Server("127.0.0.1", listener.getsockname()[1])


LOOKS: list[Callable[[Server], Any]] = [
    lambda server: drain(server, Clock(), 10.0),
    lambda server: ready._Trouble(server, Clock())._moved(),
    lambda server: wellness._metrics(server, Deadline(Clock(), 10.0)),
]


@pytest.mark.parametrize("look", LOOKS, ids=["drain", "ready", "wellness"])
def test_a_request_that_is_interrupted_is_no_answer_of_the_server(busy: Server, look: Callable[[Server], Any]) -> None:
    runner: Any = Quiet()
    with Signals(runner).handled():
        timer = threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGTERM))
        timer.start()
        with pytest.raises(Interrupted, match="SIGTERM"):
            look(busy)
        timer.join()


def test_whoever_asks_the_module_itself_gets_a_failure_and_the_way_back_is_not_interrupted() -> None:
    with pytest.raises(GpuFleetError, match="asked to end"), shielded():
        signal.raise_signal(signal.SIGTERM)
    went_on = False
    with shielded():
        ChangeLog().may_undo()
        signal.raise_signal(signal.SIGTERM)
        went_on = True
    assert went_on and signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
    ChangeLog().may_undo()
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL


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
