# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What is heard of a declaration that is not refused: root's rights, a drop-in that stays, a listed unit that isn't there."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ansible_collections.gpufleet.vllm.plugins.module_utils._model.parallel import Check
from ansible_collections.gpufleet.vllm.plugins.module_utils._server.http import CompletionResult
from ansible_collections.gpufleet.vllm.plugins.module_utils._server.ready import ReadyState
from ansible_collections.gpufleet.vllm.plugins.module_utils._service.account import Account
from ansible_collections.gpufleet.vllm.plugins.module_utils._service.checks import refusal
from ansible_collections.gpufleet.vllm.plugins.module_utils._service.notices import missing_units, notices
from ansible_collections.gpufleet.vllm.plugins.module_utils._service.plan import Plan, Step
from ansible_collections.gpufleet.vllm.plugins.module_utils._service.request import Request
from ansible_collections.gpufleet.vllm.tests.unit.plugins.module_utils._service.test_transaction import Swap
from ansible_collections.gpufleet.vllm.tests.unit.plugins.module_utils._service.world import FakeServer, World, status

UNIT = "vllm-new.service"


def seen(
    tmp_path: Path, uid: int | None = 990, doubt: str | None = None, going: tuple[str, ...] = (), serves: ReadyState | None = None
) -> tuple[Any, Any]:
    changes = tuple(SimpleNamespace(wanted=SimpleNamespace(path=path)) for path in going)
    view = SimpleNamespace(unit=UNIT, changes=changes)
    look = SimpleNamespace(doubt=doubt, account=Account("vllm", "vllm", uid, uid), view=view, serves=serves)
    world = World(units={"there.service": status("there.service")})
    return look, SimpleNamespace(paths=SimpleNamespace(units=str(tmp_path)), systemd=world)


def asked(**more: Any) -> Request:
    return Request(name="new", model="/models/new", **more)


def test_a_service_that_runs_as_root_is_warned_about_whatever_the_user_is_called(tmp_path: Path) -> None:
    look, ports = seen(tmp_path, uid=0)
    for state in ("started", "restarted", "present"):
        (said,) = notices(asked(state=state, user="toor"), look, Plan(()), ports)
        assert "as user toor, with root's rights" in said and "Leave `user` out" in said
    assert notices(asked(state="stopped"), look, Plan(()), ports) == []
    for uid in (990, None):
        look, ports = seen(tmp_path, uid=uid)
        assert notices(asked(), look, Plan(()), ports) == []


def test_a_doubt_is_said_of_a_server_that_stays(tmp_path: Path) -> None:
    look, ports = seen(tmp_path, doubt="it may hang")
    assert notices(asked(), look, Plan(()), ports) == ["it may hang"]
    assert notices(asked(), look, Plan((Step("start", UNIT, "its declaration changes"),)), ports) == []


def proof(kind: str, detail: str = "") -> ReadyState:
    return ReadyState(True, "ready", detail, ("new",), CompletionResult(True, kind, 200, 0.1, detail))


def test_a_server_that_was_never_seen_to_compute_is_not_passed_over_in_silence(tmp_path: Path) -> None:
    nothing = proof("none", "the model serves neither completions nor embeddings, so nothing was computed (HTTP 404)")
    look, ports = seen(tmp_path, serves=nothing)
    (said,) = notices(asked(), look, Plan(()), ports)
    assert "nothing was computed (HTTP 404)" in said and "not proven" in said
    assert notices(asked(), look, Plan((Step("start", UNIT, "it is restarted"),)), ports) == [], "it is asked again after the start"
    for serves in (proof("completion"), ReadyState(True, "ready", "no completion was asked for"), ReadyState(False, "loading", ""), None):
        look, ports = seen(tmp_path, serves=serves)
        assert notices(asked(), look, Plan(()), ports) == []


def test_a_start_that_proved_nothing_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def complete(server: FakeServer, model: str, timeout: float = 60.0) -> CompletionResult:
        return CompletionResult(True, "none", 404, 0.0, "nothing was computed")

    assert not any("not proven" in line for line in Swap(tmp_path / "one").run().warnings)
    monkeypatch.setattr(FakeServer, "complete", complete)
    outcome = Swap(tmp_path / "two").run()
    assert outcome.ready is not None and outcome.ready.ready
    assert sum("not proven: nothing was computed" in line for line in outcome.warnings) == 1


def test_a_drop_in_of_somebody_else_that_stays_is_named(tmp_path: Path) -> None:
    directory = tmp_path / (UNIT + ".d")
    ours, theirs = directory / "50-options.conf", directory / "override.conf"
    look, ports = seen(tmp_path, going=(str(ours),))
    assert notices(asked(state="absent"), look, Plan(()), ports) == []
    directory.mkdir()
    ours.touch()
    assert notices(asked(state="absent"), look, Plan(()), ports) == []
    theirs.touch()
    (said,) = notices(asked(state="absent"), look, Plan(()), ports)
    assert said.startswith("%s stays, since this collection did not write it." % theirs) and str(ours) not in said
    assert notices(asked(state="stopped"), look, Plan(()), ports) == []


def test_a_misspelt_unit_is_named_when_somebody_unknown_is_in_the_way(tmp_path: Path) -> None:
    look, ports = seen(tmp_path)
    request = asked(replace="listed", replace_units=("their.service", "there.service", UNIT))
    missing = missing_units(request, look, ports)
    assert missing == ["their.service"]
    for check, told in (("port", True), ("memory", True), ("quant_block_experts", False)):
        said = refusal(request, [Check(check, "fail", "it does not go", "Do something.")], missing)
        assert ("There is no unit their.service on this host" in said) is told
    assert missing_units(asked(replace="conflicting"), look, ports) == []
