# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What people read of a change while it is under way, and who is no person."""

from __future__ import annotations

import pytest

from ansible_collections.gpufleet.vllm.plugins.plugin_utils._progress import line_of
from ansible_collections.gpufleet.vllm.plugins.plugin_utils._terminal import for_people, pace_for

LOADING = {
    "service": "kimi", "phase": "load", "since": 1000.0, "phase_since": 1012.0, "now": 1034.9, "shards": "12/64",
    "gpu_used_mib": 308224, "gpu_total_mib": 783096, "detail": "nothing listens on port 8000",
}  # fmt: skip


def test_a_line_says_host_time_phase_shards_memory_and_what_the_server_says() -> None:
    line = "(Worker_TP0 pid=187) INFO 11-29 19:54:43 [gpu_model_runner.py:6516] Graph capturing finished in 2 secs"
    assert line_of("gpu01", {**LOADING, "line": line}) == (
        "gpu01   34 s  loading kimi (22 s): shards 12/64, GPUs 301 of 765 GiB, Graph capturing finished in 2 secs"
    )


def test_a_progress_bar_drawn_for_another_terminal_is_told_as_numbers() -> None:
    drawn = "Loading safetensors checkpoint shards:  20% Completed | 25/125 [00:01<00:06, 15.85it/s]"
    assert line_of("gpu01", {**LOADING, "line": drawn}).endswith("GPUs 301 of 765 GiB, nothing listens on port 8000")


def test_what_a_host_says_cannot_drive_the_terminal_or_fill_it() -> None:
    line = line_of("gpu01", {**LOADING, "line": "\x1b[2Jboo\nnew line " + "x" * 400}, 100)
    assert "\x1b" not in line and "\n" not in line and len(line) == 100 and line.endswith("...")


def test_a_roll_back_is_loud_and_nothing_of_the_new_servers_last_line_is_said() -> None:
    line = line_of("gpu01", {**LOADING, "phase": "rollback", "line": "Loading weights took 3 s"})
    assert "ROLLING BACK" in line and "weights" not in line and "12/64" not in line


@pytest.mark.parametrize(
    "news", [{"unknown": True}, {"phase": "a phase of tomorrow"}, {}, {"phase": "load", "gpu_total_mib": 5, "gpu_used_mib": None}]
)
def test_news_that_say_little_are_no_fault(news: dict[str, object]) -> None:
    assert line_of("gpu01", news).startswith("gpu01 ")


def test_reading_into_the_page_cache_says_how_much() -> None:
    line = line_of("gpu01", {"phase": "warm", "service": "kimi", "warm_read_mib": 20480, "warm_total_mib": 552960})
    assert line.endswith("reading kimi into the page cache: 20 of 540 GiB")


@pytest.mark.parametrize("name", ["default", "ansible.builtin.default", "minimal", "ansible.posix.debug", "community.general.yaml"])
def test_callbacks_for_people(name: str) -> None:
    assert for_people(name)


@pytest.mark.parametrize(
    "name", ["json", "ansible.posix.json", "ansible.posix.jsonl", "null", "community.general.dense", "my.own.thing", None]
)
def test_callbacks_for_machines_and_those_nobody_knows_get_nothing(name: str | None) -> None:
    assert not for_people(name)


def test_the_more_hosts_the_less_is_said_of_each() -> None:
    assert pace_for(1).every == pace_for(3).every == 10.0
    assert pace_for(30).every == 45.0 and pace_for(1000).every == 60.0
    assert pace_for(100).steady > pace_for(1).steady
