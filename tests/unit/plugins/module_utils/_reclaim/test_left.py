# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What is said of memory that is still held: the verdict, every holder, the next step."""

from __future__ import annotations

from typing import Any, List

import pytest

from ansible_collections.gpufleet.vllm.plugins.module_utils._gpu.types import GpuProcess
from ansible_collections.gpufleet.vllm.plugins.module_utils._reclaim.left import (
    Held,
    all_in_use,
    failure_message,
    of_survivor,
    out_of_reach,
    what_is_held,
)
from ansible_collections.gpufleet.vllm.plugins.module_utils._reclaim.plan import make_plan
from ansible_collections.gpufleet.vllm.plugins.module_utils._reclaim.request import ReclaimRequest
from ansible_collections.gpufleet.vllm.plugins.module_utils._reclaim.seen import Holder, UnitView, View
from ansible_collections.gpufleet.vllm.tests.unit.plugins.module_utils._reclaim.world import (
    NOW,
    gpu,
    holder,
    orphan,
    snapshot,
    unit,
    view,
)

KIMI = "vllm-kimi.service"


def look(used: int, holders: List[Holder], **more: Any) -> View:
    """One GPU that holds so much, whoever is listed."""
    listed = [GpuProcess(each.pid, "C", each.used_mib[0]) for each in holders if 0 in each.used_mib]
    return View(snapshot(gpu(0, used, listed, **more)), (0,), tuple(holders), {(KIMI, None): unit(KIMI)}, NOW)


def held(seen: View, **fates: Any) -> List[Held]:
    """What is held after a run that tried everything in its plan."""
    return what_is_held(seen, make_plan(ReclaimRequest(), seen), {0: 1024}, fates.get("fates", {}))


def test_a_free_gpu_is_not_held() -> None:
    assert held(look(1024, [])) == []


def test_what_an_active_service_holds_is_in_use() -> None:
    (each,) = held(look(90000, [holder(5, unit=(KIMI, None), vllm=True)]))
    assert each.verdict == "in_use" and all_in_use([each])
    assert each.to_result()["holders"][0]["reason"].startswith("it belongs to %s" % KIMI)


@pytest.mark.parametrize(("used", "verdict"), [(91000, "in_use"), (91025, "dirty")])
def test_memory_beyond_what_the_rightful_hold_is_dirty(used: int, verdict: str) -> None:
    assert held(look(used, [holder(5, unit=(KIMI, None))]))[0].verdict == verdict


def test_unknown_memory_of_a_listed_process_proves_nothing_against_it() -> None:
    assert held(look(90000, [holder(5, used=None, unit=(KIMI, None))]))[0].verdict == "in_use"


def test_a_daemon_that_only_has_the_node_open_explains_no_memory() -> None:
    daemon = holder(5, used_mib={}, protected_by="NVIDIA persistence daemon")
    (each,) = held(look(90000, [daemon]))
    assert each.verdict == "dirty"
    assert "protected: NVIDIA persistence daemon" in failure_message([each], [], None, 1.0, "never", [])


def test_a_survivor_is_no_rightful_holder() -> None:
    stuck = orphan(5)
    (each,) = held(look(90000, [stuck]), fates={stuck.identity: "survived SIGKILL"})
    assert each.verdict == "dirty" and each.holders[0][1] == "survived SIGKILL"


def test_an_unreadable_gpu_is_neither() -> None:
    seen = View(snapshot(gpu(0, None, state="lost", error="GPU is lost")), (0,), (), {}, NOW)
    (each,) = held(seen)
    assert each.verdict == "unreadable" and not all_in_use([each])
    message = failure_message([each], [], None, 1.0, "never", [])
    assert "GPU 0 can't be read (lost: GPU is lost)" in message and "Xid" in message


def reach(seen: View) -> Any:
    """Whether waiting is of no use."""
    plan = make_plan(ReclaimRequest(), seen)
    return out_of_reach(what_is_held(seen, plan, {0: 1024}, {}), seen, plan)


def test_waiting_is_of_no_use_for_what_others_hold() -> None:
    assert reach(look(90000, [holder(5, state="not_visible", info=None)])) == "what is held is out of reach from here"
    assert reach(look(90000, [orphan(5, proven=False)])) is not None
    assert reach(look(90000, [], state="lost")) is not None


def test_waiting_is_of_use_for_the_dying_and_for_what_nobody_holds() -> None:
    assert reach(look(90000, [holder(5, state="gone", info=None)])) is None
    assert reach(look(90000, [orphan(5, state="zombie")])) is None
    assert reach(look(90000, [])) is None
    assert reach(look(180000, [holder(5, unit=(KIMI, None))])) is None, "half of it is nobody's"


def test_a_list_that_failed_validation_ends_the_waiting() -> None:
    seen = view([orphan(5)], processes_reliable=False)
    assert "failed validation" in str(reach(seen))


def test_the_message_names_gpu_holder_memory_unit_and_reason() -> None:
    stuck = orphan(5, unit=(KIMI, None), user="vllm")
    (each,) = held(look(96801, [stuck]), fates={stuck.identity: "survived SIGKILL"})
    said = failure_message([each], [of_survivor(5, "VLLM::EngineCor", "D", "uvm_spin_loop")], None, 120.04, "never", ["One more thing"])
    for words in (
        "still held after 120.0 s",
        "GPU 0: 96801 MiB used, at most 1024 count as free",
        "VLLM::Worker_TP (pid 5, user vllm, unit %s, 90000 MiB): survived SIGKILL" % KIMI,
        "6801 MiB that no listed process accounts for",
        "pid 5 (VLLM::EngineCor) can't be ended (state D, in uvm_spin_loop)",
        "reboot the host",
        "One more thing.",
    ):
        assert words in said, said


def test_a_frozen_process_is_thawed_not_rebooted_away() -> None:
    for wchan in ("__refrigerator", "do_freezer_trap"):
        assert "thaw its cgroup" in of_survivor(5, "x", "D", wchan).advice
    assert "reboot" in of_survivor(5, "x", "R", None).advice


def next_step(holders: List[Holder], units: List[UnitView], accept: str = "nothing", **request: Any) -> str:
    """The last sentence about GPU 0 after a run that left all of them alone."""
    seen = view(holders, units)
    asked = ReclaimRequest(accept=accept, **request)
    made = make_plan(asked, seen)
    assert made.empty
    all_held = what_is_held(seen, made, {0: 1024}, {})
    return failure_message(all_held, [], None, 1.0, "never", [], asked.scope, accept).rpartition("Next: ")[2]


def test_the_next_step_is_one_that_is_left() -> None:
    active, other = holder(5, unit=(KIMI, None)), holder(6, unit=("x.service", None))
    both = [unit(KIMI), unit("x.service")]
    assert next_step([active], both) == (
        "select other GPUs, or widen the scope (scope: services with services: [%s], or scope: all), or accept it with accept: "
        "in_use." % KIMI
    )
    assert next_step([active], both, "in_use").endswith("services: [%s], or scope: all)." % KIMI), "it is accepted already"
    protected = holder(5, unit=(KIMI, None), protected_by="display server")
    assert "services: [x.service], or scope: all)" in next_step([protected, other], both), "what was refused is no next step"
    assert next_step([protected], both) == next_step([protected], both, scope="all") == (
        "select other GPUs, or accept it with accept: in_use."
    )
    assert next_step([holder(5, unit=(KIMI, None))], [unit(KIMI, inactive=True)]) == (
        "select other GPUs, or widen the scope (scope: all), or accept it with accept: in_use."
    )
    for filters, words in (({"users": ("bob",)}, "users"), ({"min_age": 1e9}, "min_age"), ({"candidates": ()}, "select")):
        assert next_step([holder(5)], [], scope="all", **filters) == (
            "select other GPUs, or widen %s, or accept it with accept: in_use." % words
        )
    bound = [unit(KIMI, takes_along=("web.service",)), unit("web.service")]
    assert next_step([active], bound, scope="all") == "select other GPUs, or accept it with accept: in_use.", "its reason names both"


def test_memory_that_nobody_holds_may_still_be_on_its_way_back() -> None:
    for reset in ("never", "if_needed"):
        assert "with a longer timeout" in failure_message(held(look(90000, [])), [], None, 2.0, reset, [])
