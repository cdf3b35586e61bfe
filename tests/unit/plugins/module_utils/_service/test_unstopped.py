# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a person is told of a unit that could not be stopped: what is left of it, and no more than is known."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ansible_collections.gpufleet.vllm.plugins.module_utils._core.errors import GpuFleetError
from ansible_collections.gpufleet.vllm.plugins.module_utils._reclaim.done import StoppedUnit
from ansible_collections.gpufleet.vllm.plugins.module_utils._service import rollback, transaction
from ansible_collections.gpufleet.vllm.plugins.module_utils._service.unstopped import why_unstopped
from ansible_collections.gpufleet.vllm.tests.unit.plugins.module_utils._process.proc import Proc
from ansible_collections.gpufleet.vllm.tests.unit.plugins.module_utils._service.test_transaction import NEW, OLD, Swap
from ansible_collections.gpufleet.vllm.tests.unit.plugins.module_utils._service.world import Behaviour

AGAIN = "it is started again each time it is stopped"


def test_each_process_that_is_left_is_named_with_where_it_waits(tmp_path: Path) -> None:
    proc = Proc(tmp_path)
    proc.add(4711, ["VLLM::Worker_TP0"], state="D")
    proc.add(4712, ["VLLM::Worker_TP1"], state="D")
    proc.add(4713, ["VLLM::Worker_TP2"], state="Z")  # on its way out
    (tmp_path / "4711" / "wchan").write_text("uvm_spin_loop")
    (tmp_path / "4712" / "wchan").write_text("0")
    said = why_unstopped(StoppedUnit(OLD, "failed", 65.0, (4711, 4712, 4713, 4714), None, "it is still deactivating"), proc.root)
    assert said.startswith(
        "it is still deactivating. SIGKILL did not end pid 4711 (VLLM::Worker_TP) in state D, waiting in uvm_spin_loop; "
        "pid 4712 (VLLM::Worker_TP) in state D. It is blocked in the kernel and no signal ends it: reboot the host"
    )
    assert "4713" not in said and "4714" not in said and not said.endswith(".")


def test_of_many_processes_some_are_named_and_the_others_counted(tmp_path: Path) -> None:
    proc = Proc(tmp_path)
    for pid in range(10, 19):
        proc.add(pid, ["python3"], state="D")
    said = why_unstopped(StoppedUnit(OLD, "failed", 65.0, tuple(range(10, 19)), None, "it is still deactivating"), proc.root)
    assert "pid 13 (python3)" in said and "pid 14" not in said and "; 5 more." in said


@pytest.mark.parametrize(
    ("stopped", "has", "has_not"),
    [
        (StoppedUnit(OLD, "failed", 9.0, (), None, AGAIN, restarted=True), "TriggeredBy", "SIGKILL"),
        (StoppedUnit(OLD, "failed", 30.0, (), None, "systemd did not answer within 30 s"), "systemd did not answer within 30 s", "SIGKILL"),
        (StoppedUnit(OLD, "failed", 65.0, (4711,), None, "it is still deactivating"), "systemctl status %s" % OLD, "SIGKILL"),
    ],
    ids=["started again", "systemd is silent", "gone meanwhile"],
)
def test_nobody_is_said_to_have_survived_who_was_not_seen_to(tmp_path: Path, stopped: StoppedUnit, has: str, has_not: str) -> None:
    said = why_unstopped(stopped, Proc(tmp_path).root)
    assert has in said and has_not not in said


def test_a_swap_whose_old_server_does_not_stop_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    swap = Swap(tmp_path)
    monkeypatch.setattr(transaction, "stop_units", lambda *_args: [StoppedUnit(OLD, "failed", 9.0, (), None, AGAIN, restarted=True)])
    with pytest.raises(GpuFleetError) as caught:
        swap.run()
    assert "%s could not be stopped: %s. Find what starts it" % (OLD, AGAIN) in caught.value.msg


def test_a_roll_back_whose_new_server_does_not_stop_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    swap = Swap(tmp_path)
    swap.world.behaviours[NEW] = Behaviour(load=100.0, dies=2.0)

    def stop(_systemd: Any, unit: str, *_more: Any) -> StoppedUnit:
        return StoppedUnit(unit, "failed", 30.0, (), None, "systemd did not answer within 30 s")

    monkeypatch.setattr(rollback, "stop_unit", stop)
    with pytest.raises(GpuFleetError) as caught:
        swap.run()
    assert "%s could not be stopped (systemd did not answer within 30 s. Look at `systemctl status %s`)" % (NEW, NEW) in caught.value.msg
