# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Who is ended and who is left alone, with the reason: every holder in exactly one place."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, List, Tuple

import pytest

from ansible_collections.gpufleet.vllm.plugins.module_utils._process.rules import host_unit_reason
from ansible_collections.gpufleet.vllm.plugins.module_utils._reclaim import result
from ansible_collections.gpufleet.vllm.plugins.module_utils._reclaim.plan import make_plan
from ansible_collections.gpufleet.vllm.plugins.module_utils._reclaim.planned import Plan
from ansible_collections.gpufleet.vllm.plugins.module_utils._reclaim.reasons import NO_SUCH_USER
from ansible_collections.gpufleet.vllm.plugins.module_utils._reclaim.request import Candidate, ReclaimRequest
from ansible_collections.gpufleet.vllm.plugins.module_utils._reclaim.seen import Holder, Start, UnitView, View
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


def plan(look: View, **request: Any) -> Plan:
    """The plan of a request."""
    return make_plan(ReclaimRequest(**request), look)


def ended(made: Plan) -> Tuple[List[str], List[int], List[int]]:
    """(units stopped, pids signalled, pids skipped)."""
    return (
        [stop.unit.unit for stop in made.stops],
        [each.holder.pid for each in made.signals],
        [skip.pid for skip in made.skips if skip.pid is not None],
    )


def only_reason(made: Plan) -> str:
    """The reason of the one skip of a plan that does nothing."""
    assert made.empty and len(made.skips) == 1, made
    return made.skips[0].reason


def in_unit(pid: int, name: str = KIMI, **more: Any) -> Holder:
    """A process of a vLLM unit."""
    return holder(pid, unit=(name, None), vllm=True, name="VLLM::Worker_TP", **more)


def test_orphans_are_ended_and_others_left_alone() -> None:
    made = plan(view([orphan(10), in_unit(11), holder(12)], [unit(KIMI)]))
    assert ended(made) == ([], [10], [11, 12])
    reasons = {skip.pid: skip.reason for skip in made.skips}
    assert reasons[11] == "it belongs to %s, which is active (scope: orphans leaves that alone)" % KIMI
    assert reasons[12] == "it is no process of vLLM (scope: orphans leaves that alone)"
    assert all(skip.rightful for skip in made.skips)


def test_only_holders_of_the_selected_gpus_count() -> None:
    made = plan(view([orphan(10, [0]), orphan(11, [1]), orphan(12, [1, 2])], selected=[2]))
    assert ended(made) == ([], [12], [])


def test_what_outlived_its_unit_is_signalled_not_stopped() -> None:
    made = plan(view([orphan(10, unit=(KIMI, None))], [unit(KIMI, inactive=True)]))
    assert ended(made) == ([], [10], [])


def test_an_orphan_whose_unit_is_back_is_left_alone() -> None:
    assert only_reason(plan(view([orphan(10, unit=(KIMI, None))], [unit(KIMI)]))) == "its unit %s is active again" % KIMI


def test_named_units_are_stopped_with_the_orphans() -> None:
    made = plan(view([in_unit(11), orphan(10), holder(12)], [unit(KIMI)]), scope="services", services=("vllm-kimi",))
    assert ended(made) == ([KIMI], [10], [12])
    assert made.stops[0].pids == (11,) and made.stops[0].gpus == (0,)


def test_a_named_unit_on_its_way_up_holds_nothing_yet_and_is_stopped() -> None:
    for way in ({"rising": True}, {"loads": True}):
        assert ended(plan(view([], [unit(KIMI, **way)]), scope="services", services=(KIMI,))) == ([KIMI], [], [])
    back = make_plan(ReclaimRequest(scope="services", services=(KIMI,)), view([], [unit(KIMI)]), {(KIMI, None)})
    assert ended(back) == ([KIMI], [], []), "this run stopped it, and somebody starts it again"


def test_a_named_unit_that_is_on_no_gpu_and_not_on_its_way_to_one_is_left_alone() -> None:
    made = plan(view([], [unit("nginx.service")]), scope="services", services=("nginx",))
    assert only_reason(made).startswith("no process of it is on a GPU, as far as can be seen") and made.skips[0].rightful
    # Its server may be on the GPU that does not answer, which was not selected.
    look = view([], [unit(KIMI, loads=True)], selected=[0])
    hung = replace(look, snapshot=snapshot(gpu(0), gpu(1, None, state="error", unanswered=True)))
    assert only_reason(plan(hung, scope="services", services=(KIMI,))).endswith("; GPU 1 does not answer")


def test_a_named_unit_is_judged_by_the_gpus_that_it_claimed_or_that_its_processes_took_elsewhere() -> None:
    for gpus, stops in (({0}, [KIMI]), ({4}, [])):
        claimed = replace(view([], [unit(KIMI, rising=True)]), claims={(KIMI, None): frozenset(gpus)})
        escaped = view([], [unit(KIMI, elsewhere=frozenset(gpus))])
        for look, does in ((claimed, "starts on"), (escaped, "holds")):
            made = plan(look, scope="services", services=(KIMI,))
            assert ended(made)[0] == stops
            assert stops or only_reason(made) == "it %s GPU 4, none of those selected" % does


def test_a_named_unit_with_the_driver_open_is_stopped_where_the_drivers_list_is_worth_nothing() -> None:
    units = [unit(KIMI, opens_driver=True), unit("nginx.service")]
    request: Any = {"scope": "services", "services": (KIMI, "nginx")}
    assert ended(plan(view([], units, processes_reliable=False), **request))[0] == [KIMI]
    assert plan(view([], units), **request).empty


def test_a_named_unit_on_other_gpus_is_left_alone() -> None:
    made = plan(view([in_unit(11, gpus=[4, 5])], [unit(KIMI)], selected=[0]), scope="services", services=(KIMI,))
    assert only_reason(made) == "it holds GPU 4, 5, none of those selected"


def test_a_unit_that_is_named_by_an_alias_is_judged_by_its_own_processes() -> None:
    real = unit(KIMI, aliases=frozenset({"model.service"}))
    for gpus, stops in (([0], [KIMI]), ([4], [])):
        look = view([in_unit(11, gpus=gpus)], [real], selected=[0])
        look = replace(look, units={**look.units, ("model.service", None): real})
        for names in (("model",), ("model", KIMI)):
            assert ended(plan(look, scope="services", services=names))[0] == stops
    # A process whose cgroup has the old name is in the same unit.
    old = replace(look, holders=(holder(11, unit=("model.service", None)),))
    made = plan(old, scope="all")
    assert ended(made) == ([KIMI], [], []) and made.stops[0].pids == (11,)


def test_a_named_unit_that_does_not_exist_or_does_not_run_is_no_fault() -> None:
    units = [unit(KIMI, inactive=True), unit("vllm-x.service", inactive=True, exists=False)]
    made = plan(view([], units), scope="services", services=(KIMI, "vllm-x"))
    assert made.empty
    assert [(skip.name, skip.pid, skip.reason) for skip in made.skips] == [
        ("vllm-x.service", None, "there is no such unit on this host")
    ]


@pytest.mark.parametrize("field", ["protected_by", "host_unit"])
def test_a_named_unit_that_must_not_be_stopped_is_not(field: str) -> None:
    against: Any = {field: "the way into the host"}
    look = view([in_unit(11)], [unit(KIMI, **against)])
    made = plan(look, scope="services", services=(KIMI,))
    assert only_reason(made) == "its unit %s is left alone: it must not be stopped: the way into the host" % KIMI


def test_a_named_unit_that_runs_a_container_is_stopped_that_is_how_such_a_container_ends() -> None:
    made = plan(view([in_unit(11, container="c0ffee")], [unit(KIMI)]), scope="services", services=(KIMI,))
    assert ended(made) == ([KIMI], [], [])


def test_scope_all_stops_units_as_units_and_signals_the_rest() -> None:
    made = plan(view([in_unit(11), in_unit(12), holder(13), orphan(14)], [unit(KIMI)]), scope="all")
    assert ended(made) == ([KIMI], [13, 14], [])
    assert made.stops[0].pids == (11, 12)


def test_who_only_has_the_node_open_is_ended_when_memory_is_held_that_nobody_accounts_for() -> None:
    monitor = holder(20, [0], used_mib={})
    assert ended(plan(view([holder(11), monitor]), scope="all")) == ([], [11], [20])
    assert "it has GPU 0 open, but holds no memory there" == plan(view([holder(11), monitor]), scope="all").skips[0].reason
    look = view([monitor])
    assert plan(look, scope="all").empty
    hidden = replace(look, snapshot=snapshot(gpu(0, 50000)))
    assert ended(plan(hidden, scope="all")) == ([], [20], [])
    assert ended(plan(replace(look, snapshot=snapshot(gpu(0, None, state="reset_required"))), scope="all")) == ([], [20], [])
    assert ended(plan(view([orphan(20, used_mib={})]), scope="all")) == ([], [20], [])


def test_a_unit_of_which_one_process_holds_memory_is_stopped_although_another_only_has_the_node_open() -> None:
    server, worker = holder(20, unit=(KIMI, None), used_mib={}), in_unit(21)
    assert ended(plan(view([server, worker], [unit(KIMI)]), scope="all")) == ([KIMI], [], [])
    assert plan(view([server], [unit(KIMI)]), scope="all").empty
    assert ended(plan(view([server], [unit(KIMI)]), scope="services", services=(KIMI,))) == ([KIMI], [], [])


def test_a_unit_that_would_take_another_one_along_is_left_alone_unless_that_goes_too() -> None:
    bound = unit("train.service", takes_along=("web.service",))
    look = view([holder(11, unit=("train.service", None))], [bound, unit("web.service")])
    for scope in ({"scope": "all"}, {"scope": "services", "services": ("train",)}):
        made = plan(look, **scope)
        assert "systemd would stop web.service with it" in only_reason(made) and made.skips[0].rightful
    both = plan(look, scope="services", services=("train", "web"))
    assert ended(both) == (["train.service", "web.service"], [], [])


WEB, BATCH, OTHER = "web.service", "batch.service", "other.service"


def riding(carrier: Holder, *units: UnitView, **more: Any) -> Plan:
    """The plan where all of these units are named but OTHER and KIMI, and only the carrier is on a GPU."""
    names = tuple(each.unit for each in units if each.unit not in (OTHER, KIMI))
    return plan(replace(view([carrier, *more.pop("holders", ())], units), **more), scope="services", services=names)


def test_a_named_unit_on_no_gpu_goes_along_with_one_that_is_stopped() -> None:
    train = holder(11, unit=("train.service", None))
    chain = [unit(BATCH), unit(WEB, takes_along=(BATCH,)), unit("train.service", takes_along=(WEB,))]
    assert ended(riding(train, *chain))[0] == [BATCH, "train.service", WEB], "also through another such, in whatever order"
    assert ended(riding(train, *chain[::-1]))[0] == [BATCH, "train.service", WEB]


def test_it_stays_where_the_one_that_would_take_it_along_stays() -> None:
    """For a reason of its own, for a third unit, for a server that loads; and two that hang together don't carry each other."""
    train = holder(11, unit=("train.service", None))
    both = [unit(WEB, takes_along=(BATCH,)), unit(BATCH, takes_along=(WEB,))]
    server = holder(12, unit=(KIMI, None), vllm=True, used=500)
    loads = Start((KIMI, None), frozenset({0}), NOW - 30)
    for made in (
        riding(train, unit("train.service", takes_along=(WEB, BATCH, OTHER)), *both, unit(OTHER)),
        riding(train, unit("train.service", takes_along=(WEB, BATCH)), *both, unit(KIMI), holders=[server], starts=(loads,)),
        riding(train, unit("train.service", takes_along=(WEB, BATCH), protected_by="it runs Xorg (pid 9)"), *both),
    ):
        assert made.empty
        reasons = {skip.name: skip.reason for skip in made.skips}
        assert reasons[WEB].startswith("no process of it is on a GPU") and reasons[BATCH].startswith("no process of it is on a GPU")
        assert len(made.skips) == len({(skip.pid, skip.name) for skip in made.skips})


def test_one_that_would_itself_take_another_one_along_keeps_its_carrier() -> None:
    made = riding(holder(11, unit=("train.service", None)), unit("train.service", takes_along=(WEB,)), unit(WEB, takes_along=(OTHER,)),
                  unit(OTHER))
    reasons = {skip.name: skip.reason for skip in made.skips}
    assert made.empty and reasons[WEB].endswith("systemd would stop other.service with it, which is not asked for; name both in `services`")
    assert reasons["python3"].endswith("systemd would stop web.service with it, which is left alone itself"), "it was asked for"


def test_user_units_are_told_apart_from_system_units_of_the_same_name() -> None:
    look = view([holder(11, unit=("train.service", 1000)), holder(12, unit=("train.service", None))], [
        unit("train.service", uid=1000, user="alice"), unit("train.service", inactive=True),
    ])
    made = plan(look, scope="all")
    assert [(stop.unit.uid, stop.unit.label) for stop in made.stops] == [(1000, "train.service of user alice")]
    assert [each.holder.pid for each in made.signals] == [12]


def test_a_scope_is_no_unit_that_starts_anything_again() -> None:
    made = plan(view([holder(11, unit=("session-3.scope", None))], [unit("session-3.scope", host_unit="a login session")]), scope="all")
    assert ended(made) == ([], [11], [])


def test_a_scope_whose_process_would_start_its_like_again_is_stopped_as_a_unit() -> None:
    look = view([holder(11, unit=("run-r8.scope", None))], [unit("run-r8.scope", supervisor="sh (pid 9)")])
    assert ended(plan(look, scope="all")) == (["run-r8.scope"], [], [])
    assert ended(plan(look)) == ([], [], [11])


def test_what_ends_with_a_unit_on_other_gpus_is_named() -> None:
    made = plan(view([in_unit(11, gpus=[3]), in_unit(12, gpus=[2])], [unit(KIMI)], selected=[3]), scope="all")
    assert ended(made) == ([KIMI], [], []) and made.stops[0].gpus == (2, 3)
    planned = result.planned(made, (gpu(3),), False, [], [])
    (stopped,) = planned.to_result()["stopped_units"]
    assert [(each["pid"], each["gpus"]) for each in stopped["processes"]] == [(11, [3]), (12, [2])]
    assert "GPU 2: pid 12 VLLM::Worker_TP (with %s)\n" % KIMI in result.diff(planned)["before"]


def test_a_helper_of_a_named_unit_does_not_lock_it_and_is_never_signalled() -> None:
    logger = holder(12, unit=(KIMI, None), used_mib={}, protected_by="GPU tool")
    look = view([in_unit(11), logger], [unit(KIMI, helpers=frozenset({12}))])
    assert ended(plan(look, scope="services", services=(KIMI,))) == ([KIMI], [], [])
    locked = view([in_unit(11), logger], [unit(KIMI)])
    assert plan(locked, scope="services", services=(KIMI,)).empty and plan(locked, scope="all").empty


def test_a_user_that_is_nobody_here_is_said() -> None:
    made = plan(replace(view([orphan(11)]), unknown_users=("alcie",)), users=("alcie",))
    assert made.empty and [(skip.pid, skip.name, skip.reason) for skip in made.skips][0] == (None, "alcie", NO_SUCH_USER)


def test_what_a_daemon_of_the_host_launched_is_signalled_the_daemon_is_not() -> None:
    cron = unit("cron.service", host_unit="the host's own services", main_pid=50)
    assert ended(plan(view([holder(51, unit=("cron.service", None))], [cron]), scope="all")) == ([], [51], [])
    made = plan(view([holder(50, unit=("cron.service", None))], [cron]), scope="all")
    assert "must not be stopped: the host's own services" in only_reason(made)


@pytest.mark.parametrize("scope", ["orphans", "all"])
def test_a_job_is_left_alone_and_named_whatever_tells_it(scope: str) -> None:
    kept = orphan(11, orphan=False, kept_by="it runs below condor_starter (pid 40: job scheduler); end the job through that")
    for job, words in (
        (kept, "it runs below condor_starter (pid 40: job scheduler); end the job through that"),
        (holder(11, container="job.12.4711.1", runtime="lsf", stop_command="bkill '12'"),
         "it belongs to LSF's job 12; to end it: bkill '12'"),
        (holder(11, container="x@gpu01", runtime="htcondor"), "it belongs to HTCondor's job x@gpu01; end the job through its scheduler"),
    ):
        made = plan(view([job]), scope=scope)
        assert only_reason(made) == words and made.skips[0].rightful
    # Its unit is left running for it; one that is named is stopped, as one with a container in it is.
    inside = view([in_unit(11, kept_by=kept.kept_by), in_unit(12)], [unit(KIMI)])
    assert plan(inside, scope="all").empty
    assert ended(plan(inside, scope="services", services=(KIMI,))) == ([KIMI], [], [])


@pytest.mark.parametrize("scope", ["orphans", "all"])
@pytest.mark.parametrize("inactive", [False, True])
@pytest.mark.parametrize("name", [
    "slurmd.service", "pbs.service", "condor.service", "lsfd.service", "sgeexecd.service", "nomad.service", "kubelet.service",
    "podman.service",
])
def test_a_job_that_no_cgroup_tells_from_its_scheduler_is_left_alone(name: str, inactive: bool, scope: str) -> None:
    """Also while the daemon is down: its jobs outlive it."""
    daemon = unit(name, inactive, host_unit=host_unit_reason(name), main_pid=50)
    made = plan(view([orphan(51, unit=(name, None))], [daemon]), scope=scope)
    assert "its unit %s must not be touched: it carries" % name in only_reason(made) and made.skips[0].rightful


def test_a_unit_with_a_protected_process_is_left_running() -> None:
    made = plan(view([holder(11, unit=("desk.service", None))], [unit("desk.service", protected_by="it runs Xorg (pid 9)")]), scope="all")
    assert only_reason(made) == "its unit desk.service must not be stopped: it runs Xorg (pid 9)"


@pytest.mark.parametrize("scope", ["orphans", "all"])
def test_protected_processes_are_never_touched(scope: str) -> None:
    made = plan(view([orphan(11, protected_by="display server")]), scope=scope)
    assert only_reason(made) == "protected: display server"


@pytest.mark.parametrize("scope", ["orphans", "all"])
def test_a_container_is_named_with_the_command_that_would_stop_it(scope: str) -> None:
    made = plan(view([holder(11, container="abc", stop_command="docker stop abc")]), scope=scope)
    assert only_reason(made) == "it runs in container abc, which may start it again; to end it: docker stop abc"


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"state": "gone", "info": None}, "it has ended"),
        ({"state": "zombie"}, "waits for its parent (pid 1) to reap it"),
        ({"state": "not_visible", "info": None}, "another PID namespace"),
        ({"proven": False}, "has no GPU device node open"),
    ],
)
def test_what_cannot_be_proven_is_never_signalled_and_holds_nothing_by_right(more: Any, words: str) -> None:
    made = plan(view([orphan(11, **more)]), scope="all")
    assert words in only_reason(made) and not made.skips[0].rightful


def test_nobody_is_touched_on_the_word_of_a_list_that_failed_validation() -> None:
    made = plan(view([orphan(11), in_unit(12)], [unit(KIMI)], processes_reliable=False), scope="all")
    assert made.empty and all("failed validation" in skip.reason for skip in made.skips)


def test_named_units_do_not_depend_on_that_list() -> None:
    look = view([in_unit(12)], [unit(KIMI)], processes_reliable=False)
    assert ended(plan(look, scope="services", services=(KIMI,))) == ([KIMI], [], [])


def test_users_by_name_and_number() -> None:
    assert ended(plan(view([orphan(11), orphan(12, user="bob")]), users=("bob",))) == ([], [12], [11])
    assert ended(plan(view([orphan(11)]), users=("1000",))) == ([], [11], [])


def test_min_age() -> None:
    young, old, unknown = orphan(11, start_time=NOW - 59), orphan(12, start_time=NOW - 60), orphan(13, start_time=None)
    made = plan(view([young, old, unknown]), min_age=60.0)
    assert ended(made) == ([], [12], [11, 13])
    assert made.skips[0].reason == "it is 59 s old (min_age is 60 s)"


def test_select_chooses_by_pid_and_start() -> None:
    look = view([orphan(11), orphan(12), orphan(13, start_time=NOW - 10)])
    chosen = (Candidate(11, NOW - 3600), Candidate(13, NOW - 3600))
    made = plan(look, candidates=chosen)
    assert ended(made) == ([], [11], [12, 13])
    assert {skip.reason for skip in made.skips} == {"`select` is not true for it"}


def test_a_select_that_chose_nobody_is_not_one_that_was_not_given() -> None:
    assert plan(view([orphan(11)]), candidates=()).empty


@pytest.mark.parametrize("request_", [{"users": ("bob",)}, {"min_age": 7200.0}, {"candidates": (Candidate(11, NOW - 3600),)}])
def test_a_unit_is_only_stopped_when_all_of_its_gpu_processes_are_chosen(request_: Any) -> None:
    first = in_unit(11, user="bob", start_time=NOW - 3600 if "candidates" in request_ else NOW - 9000)
    second = in_unit(12, gpus=[5])
    made = plan(view([first, second], [unit(KIMI)]), scope="all", **request_)
    assert "also runs VLLM::Worker_TP (pid 12), which is left alone" in only_reason(made)
    named = plan(view([first, second], [unit(KIMI)]), scope="services", services=(KIMI,), **request_)
    assert named.empty


def test_a_filter_by_process_cannot_choose_a_unit_without_one() -> None:
    made = plan(view([], [unit(KIMI)]), scope="services", services=(KIMI,), users=("bob",))
    assert made.empty and "no process on a GPU" in made.skips[0].reason


def test_plans_do_not_depend_on_the_order_of_the_look() -> None:
    holders = [orphan(pid) for pid in (30, 10, 20)] + [in_unit(5)]
    units: List[UnitView] = [unit(KIMI)]
    assert plan(view(holders, units), scope="all") == plan(view(holders[::-1], units), scope="all")
