# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Bad parameters are refused with one message before anything is looked at."""

from __future__ import annotations

from typing import Any, Dict

import pytest

from ansible_collections.gpufleet.vllm.plugins.module_utils._core.errors import GpuFleetError
from ansible_collections.gpufleet.vllm.plugins.module_utils._reclaim.parameters import to_request
from ansible_collections.gpufleet.vllm.plugins.module_utils._reclaim.request import (
    Candidate,
    ReclaimRequest,
    check,
    unit_name,
)

DEFAULTS: Dict[str, Any] = {
    "gpus": ["all"],
    "scope": "orphans",
    "services": [],
    "max_used_mib": 1024,
    "grace": 20.0,
    "timeout": 120.0,
    "settle": 1.0,
    "protect": [],
    "min_age": 0.0,
    "users": [],
    "reset": "never",
    "clean_shm": False,
    "select": None,
    "accept": "nothing",
    "candidates": None,
}


def test_the_defaults_are_those_of_the_request() -> None:
    assert to_request(DEFAULTS) == ReclaimRequest()
    check(ReclaimRequest())


@pytest.mark.parametrize(
    ("parameters", "words"),
    [
        ({"scope": "services"}, "it names none"),
        ({"services": ("x",)}, "only used with scope: services"),
        ({"scope": "everything"}, "scope must be one of orphans, services, all"),
        ({"accept": "all"}, "accept must be one of nothing, in_use, anything"),
        ({"reset": "always"}, "reset must be one of never, if_needed"),
        ({"max_used_mib": -1}, "max_used_mib must not be negative"),
        ({"grace": float("nan")}, "grace must be a number"),
        ({"timeout": float("inf")}, "timeout must be a number"),
        ({"timeout": 1.0, "settle": 1.0}, "must be longer than settle"),
        ({"scope": "services", "services": ("vllm-*",)}, "write it out"),
        ({"scope": "services", "services": ("--now",)}, "is no unit name"),
    ],
)
def test_what_cannot_be_meant_is_refused(parameters: Dict[str, Any], words: str) -> None:
    with pytest.raises(GpuFleetError) as caught:
        check(ReclaimRequest(**parameters))
    assert words in caught.value.msg


@pytest.mark.parametrize(
    ("user", "words"),
    [
        ("", "is empty; leave `users` out to mean everybody's"),
        (" ", "is empty"),
        ("root,vllm", "is not one name; give a list: users: [root, vllm]"),
        ("root vllm", "give a list: users: [root, vllm]"),
        ("root,", "give a list: users: [root]"),
        (" root", "has a space"),
        ("-1", "is no user: give a name, or a number from 0 up"),
    ],
)
def test_a_user_that_cannot_be_one_is_refused(user: str, words: str) -> None:
    with pytest.raises(GpuFleetError, match="in `users` ") as caught:
        check(ReclaimRequest(users=(user,)))
    assert words in caught.value.msg
    check(ReclaimRequest(users=("root", "0", "svc-llm", "DOM\\\\bob")))


@pytest.mark.parametrize(
    "pattern",
    [
        "users:alice", "unitt:foo", "Unit:foo", "unit:", "user: ", "", " ", "unit:[abc", "[!abc", "re:.*", "unit: foo", "train* ", ":x",
        "sshd: bob",
    ],
)
def test_a_pattern_that_would_protect_nobody_is_refused(pattern: str) -> None:
    with pytest.raises(GpuFleetError, match="in `protect` "):
        check(ReclaimRequest(protect=(pattern,)))


def test_patterns_that_may_protect_somebody() -> None:
    check(ReclaimRequest(protect=(
        "alice", "unit:train*", "process:VLLM::Worker*", "VLLM::Worker*", "user:alice", "*", "[ab]*", "process:[!x]y", "process:sshd: bob",
        "process:a:b", "run-r8.scope", "*--port 80?0*", "process:[]]x",
    )))


@pytest.mark.parametrize("gpus", [[], [""], ["0", " "]])
def test_an_empty_list_of_gpus_does_not_mean_all(gpus: "list[str]") -> None:
    with pytest.raises(GpuFleetError, match="`gpus` names no GPU"):
        to_request(dict(DEFAULTS, gpus=gpus))


def test_every_fault_is_in_the_one_message() -> None:
    with pytest.raises(GpuFleetError) as caught:
        check(ReclaimRequest(scope="services", max_used_mib=-5, min_age=-1.0))
    assert caught.value.msg.count(";") == 2


def test_the_grace_leaves_room_for_the_kill_and_the_proof() -> None:
    assert ReclaimRequest().effective_grace == 20.0
    assert ReclaimRequest(timeout=13.0).effective_grace == 5.0
    assert ReclaimRequest(timeout=2.0, settle=1.0).effective_grace == 0.0


def test_unit_names() -> None:
    assert unit_name("vllm-kimi") == "vllm-kimi.service"
    assert unit_name(" vllm-kimi-k2.5.service ") == "vllm-kimi-k2.5.service"


def test_select_is_never_dropped_on_the_way_to_the_module() -> None:
    with pytest.raises(GpuFleetError, match="action plugin"):
        to_request(dict(DEFAULTS, select="vllm"))
    with pytest.raises(GpuFleetError, match="give .select. itself"):
        to_request(dict(DEFAULTS, candidates=[]))
    assert to_request(dict(DEFAULTS, select="vllm", candidates=[])).candidates == ()
    chosen = to_request(dict(DEFAULTS, select="vllm", candidates=[{"pid": 5, "start_time": 7.25}]))
    assert chosen.candidates == (Candidate(5, 7.25),)
