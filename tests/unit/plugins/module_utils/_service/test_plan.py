# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""From what is asked and what is there to the steps in between."""

from __future__ import annotations

from ansible_collections.gpufleet.vllm.plugins.module_utils._core.files import FileChange, WantedFile
from ansible_collections.gpufleet.vllm.plugins.module_utils._service.plan import (
    Orphan,
    Plan,
    Rival,
    View,
    make_plan,
    summary,
)
from ansible_collections.gpufleet.vllm.plugins.module_utils._service.request import Request
from ansible_collections.gpufleet.vllm.tests.unit.plugins.module_utils._service.world import managed, status

UNIT = "vllm-kimi.service"
OLD = "vllm-old.service"


def request(**more: object) -> Request:
    return Request(name="kimi", model="/models/kimi", **more)  # type: ignore[arg-type]


def view(state: str = "inactive", **more: object) -> View:
    extra = dict(more.pop("status", {}))  # type: ignore[call-overload]
    return View(unit=UNIT, status=status(UNIT, state, **extra), gpus=(0, 1), **more)  # type: ignore[arg-type]


def rival(state: str, enabled: bool = True) -> Rival:
    return Rival(managed("old"), status(OLD, state, unit_file_state="enabled" if enabled else "disabled"), "it has GPU 0")


def change(path: str = "/etc/systemd/system/" + UNIT, what: str = "content") -> FileChange:
    return FileChange(WantedFile(path, None if what == "removed" else b"new"), what, b"old", 0o644)


def actions(plan: Plan) -> list[tuple[str, str]]:
    return [(step.action, step.target) for step in plan.steps]


def test_nothing_is_done_where_it_runs_as_declared() -> None:
    plan = make_plan(request(enabled=True), view("active", status={"unit_file_state": "enabled"}))
    assert actions(plan) == []
    assert not plan.changed


def test_a_swap_stops_proves_starts_and_only_then_hands_over() -> None:
    plan = make_plan(request(enabled=True, drain_timeout=30.0), view(rivals=(rival("active"),)))
    assert actions(plan) == [
        ("drain", OLD), ("stop", OLD), ("prove_free", "0,1"), ("start", UNIT), ("enable", UNIT), ("disable", OLD),
    ]


def test_the_new_service_takes_the_old_ones_place_at_boot_when_nothing_else_is_said() -> None:
    assert ("enable", UNIT) in actions(make_plan(request(), view(rivals=(rival("active"),))))
    assert ("enable", UNIT) not in actions(make_plan(request(), view(rivals=(rival("active", enabled=False),))))


def test_a_swap_that_died_after_the_start_only_hands_over_on_the_next_run() -> None:
    plan = make_plan(request(enabled=True), view("active", rivals=(rival("inactive"),)))
    assert actions(plan) == [("enable", UNIT), ("disable", OLD)]


def test_a_rival_that_runs_beside_the_declared_service_is_stopped_without_a_restart() -> None:
    plan = make_plan(request(), view("active", rivals=(rival("active", enabled=False),)))
    assert actions(plan) == [("stop", OLD)]


def test_changed_files_restart_a_running_service_and_reload_once() -> None:
    changes = (change(), change("/etc/vllm/kimi.yaml"))
    seen = view("active", changes=changes, definition_changed=True, unit_text_changed=True)
    assert actions(make_plan(request(), seen)) == [
        ("write", "/etc/systemd/system/" + UNIT), ("write", "/etc/vllm/kimi.yaml"), ("daemon_reload", UNIT),
        ("stop", UNIT), ("prove_free", "0,1"), ("start", UNIT),
    ]


def test_a_new_guard_alone_restarts_nothing() -> None:
    seen = view("active", changes=(change("/usr/local/lib/gpufleet/gpu-guard.pyz"),))
    assert actions(make_plan(request(), seen)) == [("write", "/usr/local/lib/gpufleet/gpu-guard.pyz")]


def test_a_process_older_than_its_files_or_one_that_does_not_serve_is_started_anew() -> None:
    for reason in ({"stale": "its process is older"}, {"unwell": "it runs but does not serve"}):
        plan = make_plan(request(), view("active", **reason))
        assert [action for action, _target in actions(plan)] == ["stop", "prove_free", "start"]
        assert plan.steps[0].reason == next(iter(reason.values()))


def test_a_service_on_its_way_up_is_waited_for_and_one_that_crash_loops_is_started_anew() -> None:
    assert actions(make_plan(request(), view("activating"))) == []
    looping = view("activating", status={"sub_state": "auto-restart", "n_restarts": 3})
    plan = make_plan(request(), looping)
    assert [action for action, _target in actions(plan)] == ["stop", "prove_free", "start"]
    assert "3 restarts" in plan.steps[0].reason


def test_orphans_are_ended_before_the_proof() -> None:
    seen = view(orphans=(Orphan(4711, "VLLM::Worker_TP0", 0, 96801),))
    plan = make_plan(request(), seen)
    assert [action for action, _target in actions(plan)] == ["end_process", "prove_free", "start"]
    assert "96801 MiB on GPU 0" in plan.steps[0].reason


def test_present_touches_no_process() -> None:
    seen = view("active", changes=(change(),), definition_changed=True, unit_text_changed=True)
    assert [action for action, _target in actions(make_plan(request(state="present"), seen))] == ["write", "daemon_reload"]


def test_stopped_and_absent() -> None:
    running = {"unit_file_state": "enabled"}
    assert actions(make_plan(request(state="stopped"), view("active", status=running))) == [("stop", UNIT)]
    assert actions(make_plan(request(state="stopped"), view("inactive"))) == []
    gone = view("active", status=running, changes=(change(what="removed"),), unit_text_changed=True)
    assert [action for action, _target in actions(make_plan(request(state="absent"), gone))] == [
        "stop", "disable", "remove", "daemon_reload",
    ]
    assert actions(make_plan(request(state="absent"), view("inactive"))) == []


def test_stopped_enables_only_what_can_be_enabled() -> None:
    asked = request(state="stopped", enabled=True)
    assert actions(make_plan(asked, view("inactive"))) == [("enable", UNIT)]
    assert actions(make_plan(asked, view("inactive", file_missing=True))) == []
    assert actions(make_plan(asked, view("active", file_missing=True))) == [("stop", UNIT)]
    assert actions(make_plan(asked, view("active", status={"load_state": "masked"}))) == [("stop", UNIT)]
    left = view("inactive", file_missing=True, status={"unit_file_state": "enabled"})
    assert actions(make_plan(request(state="stopped", enabled=False), left)) == [("disable", UNIT)]


def test_restarted_restarts_what_runs_well() -> None:
    plan = make_plan(request(state="restarted"), view("active"))
    assert [action for action, _target in actions(plan)] == ["stop", "prove_free", "start"]


def test_every_step_has_words_for_a_person() -> None:
    seen = view("active", account_missing=True, changes=(change(), change("/etc/vllm/kimi.env", "removed")), definition_changed=True,
                unit_text_changed=True, rivals=(rival("active"),), orphans=(Orphan(1, "x", 0, None),))
    lines = summary(make_plan(request(drain_timeout=5.0, enabled=True), seen))
    assert len(lines) == len(make_plan(request(drain_timeout=5.0, enabled=True), seen).steps)
    assert any("? MiB" in line for line in lines)
