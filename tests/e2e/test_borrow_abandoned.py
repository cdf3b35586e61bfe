# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What begins after a borrowing that nobody carries out any more: it is followed to its end first, for as long as its command takes."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from e2e.adhoc import module
from e2e.changes import OLD_UNIT, RECORD, at_stage, inside, kill_for_good, prepared
from e2e.playbook import Ran, playbook

from lab import Host, Lab

MODEL = "qwen3-0.6b"
GO = "/run/borrow-go"
ATTENDS = "pgrep -f '[c]hange.pyz attend'"


@pytest.fixture(params=["gpu01", "gpu03"], ids=["bookworm", "trixie"])
def host(lab: Lab, request: pytest.FixtureRequest) -> Iterator[Host]:
    """A host whose GPU 4 is borrowed for a command that goes on until there is a file, and the borrowing's job killed for good."""
    one = prepared(lab.hosts[request.param], 0.5)
    one.vllm.behave(MODEL, load_seconds=0.2)
    command = f"echo begun > /run/borrow-begun; while [ ! -e {GO} ]; do sleep 0.1; done"
    begun = module(one, "gpu_borrow", command=command, gpus=["4"], grace=2, wait=False)
    assert not begun["failed"] and "first" not in begun["job"], begun
    inside(one, f"{at_stage('borrowing')} && test -e /run/borrow-begun")
    kill_for_good(one)
    yield one
    one.run(f"touch {GO}; systemctl stop 'gpufleet-borrow-*'", check=False)


def borrowing_next(host: Host) -> Any:
    """The result of another borrowing's task."""
    return module(host, "gpu_borrow", command="echo next", gpus=["4"], grace=2)


def test_a_swap_follows_it_with_news_and_over_lost_connections(host: Host, tmp_path: Path) -> None:
    ended: list[Ran] = []
    words = ("-e", f"model={MODEL}", "-e", f"target={host.name}")
    thread = threading.Thread(target=lambda: ended.append(playbook("swap_model", *words, reports=tmp_path)))
    thread.start()
    try:
        inside(host, ATTENDS)
        host.enter(f"kill -9 $({ATTENDS})")  # as by a connection that is gone
        inside(host, ATTENDS)
        host.enter("sleep 4")  # for a line of how far it is
        assert thread.is_alive() and host.exists(RECORD), "it waits for the command"
    finally:
        host.enter(f"touch {GO}")
        thread.join(240)
    ran = ended[0].expect()
    assert "first this is brought to its end: gpu_borrow of GPU 4 for a command, it was begun before" in ran.out, ran.out
    assert "running the command" in ran.out and "answers again" in ran.out, ran.out
    assert ran.report is not None and [row["result"] for row in ran.report["rows"]] == ["swapped"], ran.out
    actions = [each["action"] for each in ran.report["hosts"][host.name]["actions"]]
    assert actions[0] == "complete" and "complete" not in actions[1:], actions
    assert not host.exists(RECORD)


def test_so_does_another_borrowing(host: Host) -> None:
    results: list[Any] = []
    thread = threading.Thread(target=lambda: results.append(borrowing_next(host)))
    thread.start()
    try:
        inside(host, ATTENDS)
    finally:
        host.enter(f"touch {GO}")
        thread.join(240)
    (done,) = results
    assert not done["failed"] and done["outcome"] == "succeeded" and done["output"] == "next\n", done
    assert done["actions"][0]["action"] == "complete" and done["put_back"], json.dumps(done["actions"])
    assert host.enter(["systemctl", "is-active", OLD_UNIT], check=False).stdout.strip() == "active"
