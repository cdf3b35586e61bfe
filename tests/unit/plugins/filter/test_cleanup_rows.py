# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a clean-up came to on a host, in one row."""

from __future__ import annotations

from typing import Any, Dict, List

import pytest
from ansible.errors import AnsibleFilterError

from ansible_collections.gpufleet.vllm.plugins.filter.cleanup_rows import FilterModule, cleanup_rows
from ansible_collections.gpufleet.vllm.plugins.module_utils._reclaim.reasons import NO_SUCH_USER


def result(**more: Any) -> Dict[str, Any]:
    """A result of gpu_reclaim."""
    values: Dict[str, Any] = {
        "changed": False, "freed": True, "freed_mib": 0, "stopped_units": [], "signalled": [], "held": [], "unkillable": [],
        "resets": [], "shm_removed": [], "reboot_required": False, "timings": {"total": 1.5},
    }
    values.update(more)
    return values


def held(gpu: int, verdict: str, *holders: Dict[str, Any], used: Any = 96801) -> Dict[str, Any]:
    """An entry of held."""
    return {"gpu": gpu, "verdict": verdict, "used_mib": used, "holders": list(holders)}


WORKER = {"pid": 7, "name": "VLLM::Worker_TP", "unit": "vllm-a.service", "reason": "it belongs to vllm-a.service"}
STUCK = {"pid": 8, "name": "VLLM::EngineCor", "unit": None, "reason": "survived SIGKILL"}
SIGNALLED = [{"pid": 8, "name": "VLLM::EngineCor", "gpus": [0, 1], "signals": ["TERM", "KILL"], "outcome": "survived"}]
PLANNED = [{"pid": 8, "name": "VLLM::EngineCor", "gpus": [0], "signals": [], "outcome": "would_signal"}]


@pytest.mark.parametrize(
    ("outcome", "word", "fine"),
    [
        (result(), "clean", True),
        (result(changed=True), "freed", True),
        (result(freed=False, held=[held(0, "in_use", WORKER)]), "in use", True),
        (result(freed=False, changed=True, held=[held(0, "in_use", WORKER)]), "freed, in use", True),
        (result(freed=False, failed=True, held=[held(0, "in_use", WORKER)]), "IN USE", False),
        (result(freed=False, failed=True, held=[held(0, "in_use", WORKER), held(1, "dirty")]), "DIRTY", False),
        (result(freed=False, failed=True, held=[held(0, "unreadable", used=None)]), "DIRTY", False),
        (result(freed=False, failed=True), "FAILED", False),
        # failed_when turns a failure into a success; what it came to does not change
        (result(freed=False, held=[held(0, "dirty")]), "DIRTY", False),
        ({"failed": True, "msg": "no root"}, "FAILED", False),
        (result(freed=False, failed=True, lock_holder={"pid": 7}), "BUSY", False),
        ({"unreachable": True, "msg": "no route"}, "UNREACHABLE", False),
        ({}, "not run", False),
        (result(freed=False, changed=True, signalled=PLANNED, held=[held(0, "dirty")], timings={"total": 0.0}), "would free", True),
        (result(freed=False, held=[held(0, "dirty")], timings={"total": 0.0}), "would stay dirty", True),
        (result(timings={"total": 0.0}), "clean", True),
    ],
)
def test_the_word_for_it_and_whether_it_is_fine(outcome: Dict[str, Any], word: str, fine: bool) -> None:
    (row,) = cleanup_rows({"gpu01": outcome})
    assert (row["host"], row["result"], row["ok"]) == ("gpu01", word, fine)


def test_what_was_ended_and_how() -> None:
    (row,) = cleanup_rows({"gpu01": result(
        changed=True,
        freed_mib=96801,
        stopped_units=[
            {"unit": "vllm-a.service", "user": None, "result": "killed"}, {"unit": "train.service", "user": "alice", "result": "stopped"},
        ],
        signalled=SIGNALLED,
        resets=[{"gpu": 3, "done": True}, {"gpu": 4, "done": False}],
        shm_removed=[{"path": "/dev/shm/vllm_offload_1", "mib": 512}],
    )})
    assert row["ended"] == (
        "vllm-a.service (killed); train.service of user alice (stopped); "
        "VLLM::EngineCor pid 8 on GPU 0,1 (TERM+KILL); GPU 3 reset; /dev/shm/vllm_offload_1 (512 MiB)"
    )
    assert (row["freed_mib"], row["total_s"], row["left"]) == (96801, 1.5, None)


def test_a_plan_says_what_would_be_ended() -> None:
    (row,) = cleanup_rows({"gpu01": result(changed=True, freed=False, signalled=PLANNED, timings={"total": 0.0})})
    assert row["ended"] == "VLLM::EngineCor pid 8 on GPU 0 (would signal)"


def test_what_is_left_is_said_once_for_gpus_with_the_same_holders() -> None:
    rows: List[Dict[str, Any]] = cleanup_rows({"gpu01": result(
        freed=False,
        failed=True,
        held=[
            held(0, "in_use", WORKER), held(1, "in_use", WORKER), held(2, "dirty", STUCK), held(3, "dirty"),
            {**held(4, "unreadable", used=None), "state": "lost", "error": "GPU is lost"},
        ],
        unkillable=[{"pid": 8, "name": "VLLM::EngineCor", "state": "D"}],
        reboot_required=True,
    )})
    assert rows[0]["left"] == (
        "GPU 2 (96801 MiB): VLLM::EngineCor pid 8: survived SIGKILL; "
        "GPU 3 (96801 MiB): held by no process that can be seen; "
        "GPU 4: can't be read (lost: GPU is lost); "
        "GPU 0 (96801 MiB), 1 (96801 MiB): in use by vllm-a.service; "
        "pid 8 (VLLM::EngineCor) can't be ended, state D; reboot required"
    )


def test_a_failure_without_details_shows_its_message() -> None:
    (row,) = cleanup_rows({"gpu01": {"failed": True, "msg": "This task runs as uid 1000. Set become: true.\nmore"}})
    assert row["left"] == "This task runs as uid 1000. Set become: true."


def test_anything_else_is_refused() -> None:
    with pytest.raises(AnsibleFilterError, match="dictionary of results"):
        cleanup_rows([result()])
    assert FilterModule().filters() == {"cleanup_rows": cleanup_rows}


def test_a_plan_shows_what_would_come_free_and_only_what_would_stay() -> None:
    ended = {"pid": 8, "name": "VLLM::Worker_TP", "unit": "old.service", "reason": "it would be ended", "used_mib": 96801}
    small = dict(ended, used_mib=3000)
    stopped = dict(ended, pid=9, unit="train.service", reason="its unit would be stopped", used_mib=500)
    kimi = {"pid": 7, "name": "VLLM::EngineCor", "unit": "vllm-kimi.service", "reason": "it belongs to it", "used_mib": 90000}
    (row,) = cleanup_rows({"gpu01": result(
        changed=True, freed=False, signalled=PLANNED, timings={"total": 0.0}, held=[
            dict(held(0, "dirty", ended, stopped, used=97303), limit_mib=1024),
            dict(held(2, "dirty", kimi, small, used=93002), limit_mib=1024),
            dict(held(3, "in_use", kimi, used=90002), limit_mib=1024),
            dict(held(5, "dirty", small, used=10000), limit_mib=1024),
            dict(held(6, "dirty", dict(ended, used_mib=None), used=5000), limit_mib=1024),
            dict(held(7, "dirty", used=7002), limit_mib=1024),
        ],
    )})
    assert row["freed_mib"] == 96801 + 500 + 3000 + 3000
    assert row["left"] == (
        "GPU 2 (90002 MiB): VLLM::EngineCor pid 7: it belongs to it; "
        "GPU 5 (7000 MiB), 7 (7002 MiB): held by no process that can be seen; "
        "GPU 3 (90002 MiB): in use by vllm-kimi.service"
    )


def missing(*names: str) -> List[Dict[str, Any]]:
    """Entries of left_alone."""
    return [{"pid": None, "name": name, "reason": "there is no such unit on this host"} for name in names]


def test_a_named_unit_that_no_host_has_is_a_slip_and_said_on_each() -> None:
    broken = result(freed=False, failed=True, msg="driver_hung", left_alone=[])
    rows = cleanup_rows({"gpu01": result(left_alone=missing("vllm-reel.service")), "gpu02": result(left_alone=missing("vllm-reel.service")),
                         "gpu03": broken})
    assert [(row["result"], row["ok"]) for row in rows] == [("NO SUCH UNIT", False), ("NO SUCH UNIT", False), ("FAILED", False)]
    assert rows[0]["left"] == "there is no unit vllm-reel.service on this host: correct gpu_reclaim_services"


def test_a_slip_is_read_before_what_is_in_use_and_named_apart_from_what_only_this_host_lacks() -> None:
    kimi = {"pid": 7, "name": "VLLM::EngineCor", "unit": "vllm-kimi.service", "reason": "it belongs to it"}
    busy = result(freed=False, held=[held(0, "in_use", kimi)], left_alone=missing("vllm-a.service", "vllm-reel.service"))
    (row, _other) = cleanup_rows({"gpu01": busy, "gpu02": result(left_alone=missing("vllm-reel.service"))})
    assert (row["result"], row["left"]) == (
        "NO SUCH UNIT",
        "there is no unit vllm-reel.service on this host: correct gpu_reclaim_services; "
        "GPU 0 (96801 MiB): in use by vllm-kimi.service; "
        "there is no unit vllm-a.service on this host",
    )


def test_a_user_that_no_host_knows_is_a_slip() -> None:
    unknown = [{"pid": None, "name": "alcie", "reason": NO_SUCH_USER}]
    rows = cleanup_rows({"gpu01": result(left_alone=unknown), "gpu02": result(left_alone=unknown)})
    said = "there is no user alcie on this host: correct gpu_reclaim_users"
    assert [(row["result"], row["ok"], row["left"]) for row in rows] == [("NO SUCH USER", False, said)] * 2
    rows = cleanup_rows({"gpu01": result(left_alone=unknown), "gpu02": result(left_alone=[])})
    assert [row["ok"] for row in rows] == [True, True]


def test_what_ends_with_a_unit_on_other_gpus_stands_in_the_table() -> None:
    unit = {"unit": "train.service", "user": None, "result": "would_stop", "seconds": 0.0,
            "processes": [{"pid": 7, "name": "python3", "gpus": [3]}, {"pid": 8, "name": "python3", "gpus": [2]}]}
    (row,) = cleanup_rows({"gpu01": result(changed=True, stopped_units=[unit], gpus_before=[{"index": 3}])})
    assert row["ended"] == "train.service with python3 pid 8 on GPU 2 (would stop)"


def test_a_named_unit_that_some_host_has_is_no_slip_and_said_where_it_is_not() -> None:
    rows = cleanup_rows({"gpu01": result(left_alone=missing("vllm-a.service")), "gpu02": result(left_alone=[])})
    assert [(row["result"], row["ok"], row["left"]) for row in rows] == [
        ("clean", True, "there is no unit vllm-a.service on this host"), ("clean", True, None),
    ]


def test_a_plan_says_which_gpu_would_be_reset() -> None:
    (row,) = cleanup_rows({"gpu01": result(
        changed=True, freed=False, timings={"total": 0.0}, held=[held(1, "dirty"), held(2, "dirty")],
        resets=[{"gpu": 1, "done": False, "detail": "it would be reset"},
                {"gpu": 2, "done": False, "detail": "it would not be reset: it is in use by x (pid 5)"}],
    )})
    assert (row["result"], row["ended"]) == ("would free", "GPU 1 (would reset)")
    assert row["left"] == "GPU 2 (96801 MiB): held by no process that can be seen"
