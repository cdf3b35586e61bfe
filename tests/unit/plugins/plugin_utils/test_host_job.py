# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Waiting for a job of the host: to its end, or until nobody works on it any more."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Callable, List

import pytest
from ansible.errors import AnsibleConnectionFailure

from ansible_collections.gpufleet.vllm.plugins.module_utils._core.host_lock import HostLock
from ansible_collections.gpufleet.vllm.plugins.plugin_utils._host_job import (
    UNREACHED_S,
    JobLost,
    command_of,
    holder_command,
    state_of,
    wait,
    who_measures,
)

JOB = "j583920174665.4711"
BEGUN = json.dumps({"started": True, "finished": False, "ansible_job_id": JOB})


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


def shell(command: str) -> str:
    return subprocess.run(["sh", "-c", command], capture_output=True, text=True, timeout=60, check=False).stdout


def await_it(ask: Callable[[str], str], clock: Clock, reset: Callable[[], None] = lambda: None, limit: float = 100.0) -> None:
    wait(ask, reset, {"ansible_job_id": JOB, "results_file": "/x"}, limit, 3.0, None, clock)


@pytest.mark.parametrize("directory", ["async", "an async"])
def test_a_real_process_is_seen_and_its_end_too(tmp_path: Path, directory: str) -> None:
    path = tmp_path / directory / JOB
    path.parent.mkdir()
    path.write_text(BEGUN)
    command = command_of(JOB, str(path))
    words = ["async_wrapper.py", JOB.split(".", maxsplit=1)[0], "60"]
    wrapper = subprocess.Popen([sys.executable, "-c", "import sys; sys.stdin.read()", *words], stdin=subprocess.PIPE)
    try:
        assert state_of(shell(command)) == "works"
        path.write_text(json.dumps({"changed": True, "result": {"levels": [1] * 500}}))
        assert state_of(shell(command)) == "ended", "its file says so before its wrapper ends"
        path.write_text(BEGUN)
    finally:
        wrapper.kill()
        wrapper.communicate()
    # A process of another test may end while the list is read, of which grep says 2: that is asked again.
    assert "lost" in {state_of(shell(command)) for _try in range(20)}, "neither grep nor the shell takes itself for the job"
    path.unlink()
    assert "lost" in {state_of(shell(command)) for _try in range(20)}


@pytest.mark.parametrize("first", ["124 ", "2 ", "127 ", "0 /proc/7/cmdline", "", "1 /proc/7/cmdline"])
def test_only_a_list_that_was_read_to_its_end_says_that_nobody_works(first: str) -> None:
    assert state_of("%s\n%s" % (first, BEGUN)) == "works"


def test_a_job_that_was_killed_ends_the_wait() -> None:
    clock = Clock()
    answers = ["0 /proc/7/cmdline\n" + BEGUN] * 3 + ["1 \n" + BEGUN, ""]
    with pytest.raises(JobLost, match="nobody works on it any more.*run again"):
        await_it(lambda command: answers.pop(0), clock)
    assert clock.now == 12.0 and answers == []


def test_a_benchmark_that_measures_on_without_its_wrapper_is_not_called_dead() -> None:
    note = json.dumps({"pid": 4711, "since": 1.0, "purpose": "vllm_benchmark of kimi", "doing": "measures a server of this host"})
    asked: List[str] = []

    def ask(command: str) -> str:
        asked.append(command)
        if command != holder_command():
            return "1 \n" + BEGUN
        if len(asked) == 2:
            raise AnsibleConnectionFailure("gone")  # then nobody knows, and it is asked again
        return note + "\n"

    with pytest.raises(JobLost, match=r"still measures there: pid 4711 \(vllm_benchmark of kimi\)\. Wait until it has ended") as lost:
        await_it(ask, Clock())
    assert "nobody works" not in str(lost.value) and len(asked) == 4


def test_the_lock_of_a_process_that_lives_is_told_and_what_a_dead_one_left_is_not(tmp_path: Path) -> None:
    command = holder_command(str(tmp_path / "change.lock"))
    assert shell(command) == "", "nobody ever took it"
    with HostLock(str(tmp_path), "vllm_benchmark of kimi"):
        assert who_measures(shell(command)) == "pid %d (vllm_benchmark of kimi)" % os.getpid()
        left = (tmp_path / "change.lock").read_text()
    assert shell(command) == ""
    (tmp_path / "change.lock").write_text(left)  # as by a holder that was killed
    assert shell(command) == ""
    with HostLock(str(tmp_path), "vllm_service started kimi"):
        assert shell(command) and who_measures(shell(command)) is None, "no benchmark"


@pytest.mark.parametrize("answer", ["", "\n", "no json", "[]", "7", '{"pid": 7}'])
def test_what_is_no_note_of_a_benchmark_is_none(answer: str) -> None:
    assert who_measures(answer) is None


def test_the_end_of_a_job_ends_the_wait() -> None:
    answers = ["0 /proc/7/cmdline\n" + BEGUN, '1 \n{"changed": true}']
    await_it(lambda command: answers.pop(0), Clock())
    assert answers == []


def test_what_never_ends_ends_the_wait_after_its_time() -> None:
    clock = Clock()
    with pytest.raises(JobLost, match="within the 100 s"):
        await_it(lambda command: "0 /proc/7/cmdline\n" + BEGUN, clock)
    assert clock.now < 170


def test_a_lost_connection_is_made_anew_and_not_for_ever() -> None:
    clock, resets = Clock(), []

    def ask(command: str) -> str:
        if 10 < clock.now < 100:
            raise AnsibleConnectionFailure("gone")
        return ("1 \n{}" if clock.now > 200 else "0 /proc/7/cmdline\n") + BEGUN.replace("started", "x" if clock.now > 200 else "started")

    await_it(ask, clock, lambda: resets.append(clock.now), 1000.0)
    assert len(resets) == 30 and clock.now == 201

    def gone(command: str) -> str:
        raise AnsibleConnectionFailure("gone")

    clock.now = 0.0
    with pytest.raises(AnsibleConnectionFailure):
        await_it(gone, clock)
    assert UNREACHED_S < clock.now < UNREACHED_S + 10


def test_somebody_is_told_that_it_goes_on() -> None:
    told: List[float] = []
    answers = ["0 /proc/7/cmdline\n" + BEGUN] * 3 + ["1 \n{}"]
    wait(lambda command: answers.pop(0), lambda: None, {"ansible_job_id": JOB, "results_file": "/x"}, 100, 3.0, told.append, Clock())
    assert told == [3.0, 6.0, 9.0]


def test_what_is_no_job_never_becomes_part_of_a_command() -> None:
    with pytest.raises(ValueError, match="no job"):
        command_of("x'; reboot", "/x")
    assert command_of(JOB, "/a b;c").endswith(" '/a b;c'")
