# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a swap asks of the controller: a worker process for each task and host, and a look at all of them now and then."""

from __future__ import annotations

import configparser
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
META, ROLE, TASKS = "ansible.builtin.meta", "ansible.builtin.import_role", "ansible.builtin.import_tasks"


def plays() -> dict[str, list[dict[str, Any]]]:
    found = yaml.safe_load((ROOT / "playbooks" / "swap_model.yml").read_text(encoding="utf-8"))
    return {play["name"]: list(leaves(play["tasks"])) for play in found}


def leaves(tasks: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """The tasks that run when nothing fails, in order; a role's own in the place of its import."""
    for task in tasks:
        if task.get(META) == "end_play":
            if "hooked" in task["when"]:
                continue
            return
        if "block" in task:
            yield from leaves(task["block"])
        elif ROLE in task:
            role = task[ROLE]["name"].rpartition(".")[2]
            yield from leaves(yaml.safe_load((ROOT / "roles" / role / "tasks" / "main.yml").read_text(encoding="utf-8")))
        elif TASKS in task:
            yield from leaves(yaml.safe_load((ROOT / "playbooks" / task[TASKS]).read_text(encoding="utf-8")))
        else:
            yield task


def workers(tasks: list[dict[str, Any]], once: bool) -> list[str]:
    """The tasks that need a process of their own; what is only decided (meta) is decided by the controller itself."""
    return [task["name"] for task in tasks if META not in task and bool(task.get("run_once")) is once]


@pytest.mark.parametrize(
    ("play", "each", "once"),
    [
        ("Plan the swap on every host", ["Look at the host and plan"], 1),
        ("Swap", ["Make the chosen model the one that serves"], 0),
        ("Swap between the hooks", ["Before this host", "Make the chosen model the one that serves", "After this host"], 0),
        ("Report", [], 1),
    ],
)
def test_a_host_takes_no_more_tasks_than_these(play: str, each: list[str], once: int) -> None:
    tasks = plays()[play]
    assert workers(tasks, once=False) == each
    assert len(workers(tasks, once=True)) == once


def test_a_swap_without_a_failure_ends_before_the_tasks_that_fail() -> None:
    found = yaml.safe_load((ROOT / "playbooks" / "swap_model.yml").read_text(encoding="utf-8"))
    told = {play["name"]: [task.get(META) for task in play["tasks"]] for play in found}
    assert told["Report"] == [None, "end_play", None, None]
    assert told["Plan the swap on every host"] == [None, None, "end_play", None]


def test_ansible_does_not_look_a_thousand_times_a_second() -> None:
    settings = configparser.ConfigParser()
    settings.read(ROOT / "ansible.cfg", encoding="utf-8")
    assert 0.01 <= settings.getfloat("defaults", "internal_poll_interval") <= 0.05
