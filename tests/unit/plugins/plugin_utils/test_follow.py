# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Following a job to its end: one answer at a time, whatever happens to the connection."""

from __future__ import annotations

from typing import Any

import pytest

from ansible_collections.gpufleet.vllm.plugins.plugin_utils._follow import (
    Ended,
    Follower,
    Host,
    Lost,
    Unanswered,
    parse_answer,
)
from ansible_collections.gpufleet.vllm.plugins.plugin_utils._terminal import Pace

DONE = {"id": "a", "done": True, "result": {"changed": True, "ready": True}}


def under_way(phase: str, **more: Any) -> dict[str, Any]:
    return {"id": "a", "done": False, "unfinished": True, "phase": phase, **more}


def told(answer: Any) -> dict[str, Any]:
    """An answer, or the error that stands in its place."""
    if isinstance(answer, Exception):
        raise answer
    return dict(answer)


class Script(Host):
    """A host that answers by a script; what it was asked, told and warned of is kept."""

    def __init__(self, answers: list[Any], again: list[Any] | None = None, results: list[Any] | None = None) -> None:
        self.results = [Unanswered("exit status 126: not allowed")] if results is None else results
        self.answers = answers
        self.again_answers = again or []
        self.asked: list[tuple[str, str]] = []
        self.runs = 0
        self.resumed: list[str] = []
        self.resume_answers: list[Any] = []
        self.told: list[str] = []
        self.warned: list[str] = []
        self.resets = 0
        self.now = 0.0

    def attend(self, change: str, phase: str, seconds: float, steady: float) -> dict[str, Any]:
        self.asked.append((change, phase))
        self.now += 1.0
        return told(self.answers.pop(0) if len(self.answers) > 1 else self.answers[0])

    def result(self, change: str, seconds: float) -> dict[str, Any]:
        return told(self.results.pop(0))

    def resume(self, change: str) -> dict[str, Any]:
        self.resumed.append(change)
        return told(self.resume_answers.pop(0) if self.resume_answers else {"id": change, "unfinished": True})

    def again(self) -> dict[str, Any]:
        self.runs += 1
        return told(self.again_answers.pop(0))

    def reset(self) -> None:
        self.resets += 1

    def tell(self, news: Any) -> None:
        self.told.append(news["phase"])

    def warn(self, text: str) -> None:
        self.warned.append(text)

    def sleep(self, seconds: float) -> None:
        self.now += seconds

    def follow(self, patience: float = 60.0, twice: bool = True) -> dict[str, Any]:
        return Follower(self, Pace(10.0, 1.0), patience, lambda: self.now, self.sleep, twice).end_of("a")


def test_each_answer_is_told_and_the_next_one_asked_for_beyond_it() -> None:
    host = Script([under_way("stop"), under_way("load"), under_way("load"), DONE])
    assert host.follow() == {"changed": True, "ready": True}
    assert host.asked == [("a", ""), ("a", "stop"), ("a", "load"), ("a", "load")]
    assert host.told == ["stop", "load", "load"] and not host.warned


def test_a_lost_connection_is_said_once_reset_and_found_again() -> None:
    host = Script([under_way("load"), Lost("broken pipe"), Lost("timed out"), under_way("load"), DONE])
    assert host.follow()["ready"]
    assert host.resets == 2
    assert len(host.warned) == 2 and "broken pipe" in host.warned[0] and "goes on on the host" in host.warned[0]
    assert "answers again" in host.warned[1]


def test_patience_ends_and_says_that_the_change_goes_on() -> None:
    host = Script([Lost("no route to host")])
    with pytest.raises(Lost, match="goes on on the host.*same command"):
        host.follow(patience=30.0)
    assert 30.0 <= host.now < 50.0


def test_a_job_that_is_gone_is_started_again_and_the_module_is_not_run() -> None:
    host = Script([under_way("load", job="failed"), DONE])
    assert host.follow()["ready"] and host.resumed == ["a"] and not host.runs


def test_a_change_that_ends_while_its_job_is_started_again_is_at_its_end() -> None:
    for twice in (True, False):
        host = Script([under_way("load", job="inactive"), DONE])
        host.resume_answers = [{"id": "a", "unfinished": False}]
        assert host.follow(twice=twice)["ready"] and not host.runs


def test_a_connection_that_is_lost_while_the_job_is_started_again_is_borne() -> None:
    host = Script([under_way("load", job="failed"), under_way("load", job="failed"), DONE])
    host.resume_answers = [Lost("broken pipe")]
    assert host.follow()["ready"] and host.resets == 1 and len(host.resumed) == 2


def test_a_job_that_never_comes_to_an_end_is_not_started_for_ever() -> None:
    host = Script([under_way("load", job="failed")])
    with pytest.raises(Ended, match="journalctl"):
        host.follow()
    assert len(host.resumed) == 3 and not host.runs


def test_a_change_that_another_one_has_followed_is_no_success() -> None:
    with pytest.raises(Ended, match="another one after it"):
        Script([{"id": "a", "done": False, "unfinished": False, "unknown": True}]).follow()


def test_what_stands_between_us_and_the_program_leaves_the_module_to_wait() -> None:
    host = Script([Unanswered("exit status 126: not allowed")], again=[Lost("gone"), {"changed": True, "ready": True}])
    assert host.follow()["ready"] and host.runs == 2
    assert "126" in host.warned[0]


@pytest.mark.parametrize("twice", [True, False])
def test_an_answer_that_is_none_begins_nothing_new_where_the_end_can_be_asked_for(twice: bool) -> None:
    no = Unanswered("exit status 1: ModuleNotFoundError")
    host = Script([no], results=[{"id": "a", "done": False}, Lost("gone"), DONE])
    assert host.follow(twice=twice)["ready"] and host.runs == 0
    assert sum("cannot be told" in text for text in host.warned) == 1
    with pytest.raises(Ended, match="another one after it"):
        Script([no], results=[{"id": "a", "done": False, "unknown": True}]).follow(twice=twice)


def test_what_would_do_its_work_twice_is_not_run_again() -> None:
    host = Script([Unanswered("exit status 126: not allowed")])
    with pytest.raises(Ended, match="Nothing was begun again"):
        host.follow(twice=False)
    assert host.runs == 0


def test_a_login_may_print_before_the_answer() -> None:
    assert parse_answer(0, 'Welcome to gpu01\n{"id": "a", "done": false}\n', "")["id"] == "a"


@pytest.mark.parametrize(("rc", "error"), [(255, Lost), (143, Lost), (127, Unanswered), (0, Unanswered), (1, Unanswered)])
def test_no_answer_is_a_lost_connection_or_a_fault(rc: int, error: type[Exception]) -> None:
    with pytest.raises(error, match="why"):
        parse_answer(rc, "{broken\n", "first\nwhy\n")
