# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Less time without a server: what can run beside the new one is stopped last, and a model is read before the old one is stopped."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ansible_collections.gpufleet.vllm.plugins.module_utils._service import read_ahead as read_ahead_module
from ansible_collections.gpufleet.vllm.plugins.module_utils._service.interrupts import Interrupted
from ansible_collections.gpufleet.vllm.plugins.module_utils._service.plan import Plan, Rival, View, make_plan
from ansible_collections.gpufleet.vllm.plugins.module_utils._service.ports import Paths, Ports
from ansible_collections.gpufleet.vllm.plugins.module_utils._service.read_ahead import read_ahead
from ansible_collections.gpufleet.vllm.plugins.module_utils._service.request import Request
from ansible_collections.gpufleet.vllm.plugins.module_utils._service.rivals import rivals_of
from ansible_collections.gpufleet.vllm.plugins.module_utils._service.warm import Warmed
from ansible_collections.gpufleet.vllm.plugins.module_utils._unit.spec import ServiceSpec
from ansible_collections.gpufleet.vllm.tests.unit.plugins.module_utils._service.world import World, gpu, managed, status

UNIT, OLD, OTHER = "vllm-kimi.service", "vllm-old.service", "vllm-other.service"


def request(**more: Any) -> Request:
    return Request(name="kimi", model="/models/kimi", **more)


def rival(unit: str = OLD, beside: bool = True, state: str = "active") -> Rival:
    name = unit[len("vllm-") : -len(".service")]
    return Rival(managed(name), status(unit, state, unit_file_state="enabled"), "it is listed in replace", beside)


def view(*rivals: Rival, state: str = "inactive", **more: Any) -> View:
    return View(unit=UNIT, status=status(UNIT, state), gpus=(0, 1), rivals=rivals, model="/models/kimi", **more)


def actions(plan: Plan) -> list[tuple[str, str]]:
    return [(step.action, step.target) for step in plan.steps]


def test_what_can_run_beside_is_drained_and_stopped_last() -> None:
    plan = make_plan(request(drain_timeout=30.0), view(rival()))
    assert plan.overlapped
    assert actions(plan) == [
        ("prove_free", "0,1"), ("start", UNIT), ("enable", UNIT), ("disable", OLD), ("drain", OLD), ("stop", OLD),
    ]  # fmt: skip


def test_never_means_the_other_order() -> None:
    plan = make_plan(request(overlap="never"), view(rival()))
    assert not plan.overlapped
    assert actions(plan)[:3] == [("stop", OLD), ("prove_free", "0,1"), ("start", UNIT)]


def test_one_that_is_in_the_way_takes_all_others_with_it() -> None:
    plan = make_plan(request(), view(rival(), rival(OTHER, beside=False)))
    assert not plan.overlapped and actions(plan)[:2] == [("stop", OLD), ("stop", OTHER)]


def test_one_that_runs_and_has_to_be_started_anew_overlaps_with_nobody() -> None:
    assert not make_plan(request(), view(rival(), state="active", definition_changed=True)).overlapped


def test_one_that_serves_already_lets_the_rest_go_without_a_roll_back() -> None:
    plan = make_plan(request(), view(rival(), state="active"))
    assert plan.overlapped and actions(plan)[-1] == ("stop", OLD)


def test_one_that_is_down_is_nothing_to_overlap_with() -> None:
    assert not make_plan(request(), view(rival(state="inactive"))).overlapped


SPEC = ServiceSpec("kimi", "/models/kimi", "kimi", (0, 1, 2, 3))


@pytest.mark.parametrize(("service", "beside"), [
    (managed("old", gpus=(4, 5), port=8001), True),
    (managed("old", gpus=(4, 5), port=8000), False),
    (managed("old", gpus=(3, 4), port=8001), False),
    (managed("old", gpus=(4, 5), port=8001, problem="it cannot be read"), False),
    (managed("old", gpus=(4, 5), port=8000, host="127.0.0.1"), False),
])  # fmt: skip
def test_beside_is_who_is_known_to_share_neither_gpu_nor_port(service: Any, beside: bool) -> None:
    assert _listed([service])[0].beside is beside


def test_a_unit_of_somebody_else_may_have_any_port() -> None:
    assert _listed([])[0].beside is False


def _listed(others: list[Any]) -> tuple[Rival, ...]:
    world: Any = World()
    world.units[OLD] = status(OLD, "active")
    statuses = {service.unit: world.status(service.unit) for service in others}
    asked = request(replace="listed", replace_units=(OLD,))
    return rivals_of(asked, SPEC, others, statuses, [gpu(index) for index in range(4)], Ports(systemd=world))


def test_a_model_is_read_before_the_server_that_serves_is_drained() -> None:
    plan = make_plan(request(drain_timeout=5.0), view(rival(beside=False), model_on_disk=True))
    assert actions(plan)[:3] == [("warm", "/models/kimi"), ("drain", OLD), ("stop", OLD)]


@pytest.mark.parametrize(("asked", "seen"), [
    ({"warm_cache": False}, view(rival(beside=False), model_on_disk=True)),
    ({}, view(rival(beside=False), model_on_disk=False)),
    ({}, view(model_on_disk=True)),  # nothing is stopped: nobody waits
    ({}, view(rival(beside=False, state="activating"), model_on_disk=True)),  # it serves nobody
    ({}, view(rival(), model_on_disk=True)),  # it serves until the new one does
    ({}, view(state="active", definition_changed=True, model_on_disk=True)),  # its own weights were read for its own load
])  # fmt: skip
def test_where_it_would_save_nobody_anything_nothing_is_read(asked: dict[str, Any], seen: View) -> None:
    assert not make_plan(request(**asked), seen).has("warm")


def ports(tmp_path: Path, meminfo: str | None = "MemAvailable: 1000 kB\n") -> Ports:
    if meminfo is not None:
        (tmp_path / "meminfo").write_text(meminfo)
    return Ports(paths=Paths(proc=str(tmp_path)))


def test_reading_ahead_keeps_to_the_room_there_is_and_says_how_far_it_is(tmp_path: Path) -> None:
    model = tmp_path / "m"
    model.mkdir()
    (model / "a.safetensors").write_bytes(b"x" * 3 * 1024 * 1024)
    told: list[tuple[int, int]] = []
    assert read_ahead(str(model), 60.0, ports(tmp_path, "MemAvailable: 2900 kB\n"), lambda *news: told.append(news)) is None
    assert told[-1] == (1, 3)  # 70 % of 2900 kB are not quite 2 MiB


def test_what_goes_wrong_is_a_warning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said = read_ahead("/models/kimi", 60.0, ports(tmp_path, None), lambda *news: None)
    assert said is not None and "could not be read ahead" in said
    monkeypatch.setattr(read_ahead_module, "warm", lambda *given: Warmed(5, 9, "nothing came from the disk any more", False))
    said = read_ahead("/models/kimi", 60.0, ports(tmp_path), lambda *news: None)
    assert said == "The model was not read ahead whole (5 of 9 MiB): nothing came from the disk any more."


def test_whoever_asks_the_change_to_end_is_heard(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def asked(*_given: Any) -> Warmed:
        raise Interrupted("asked to end")

    monkeypatch.setattr(read_ahead_module, "warm", asked)
    with pytest.raises(Interrupted, match="asked to end"):
        read_ahead("/models/kimi", 60.0, ports(tmp_path), lambda *news: None)
