# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A change that dies at every single step, and again at every single step of what comes after: the host always ends with a server."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.gpufleet.vllm.plugins.module_utils._core.errors import GpuFleetError
from ansible_collections.gpufleet.vllm.plugins.module_utils._job.store import Store
from ansible_collections.gpufleet.vllm.tests.unit.plugins.module_utils._job.host import NEW, OLD, Host, patch

# Of all pairs of two deaths every so many-eth is tried, so that each first and each second is; 1 tries them all (some minutes).
STRIDE = int(os.environ.get("GPUFLEET_DEATH_STRIDE", "13"))


def swap(host: Host) -> dict[str, Any]:
    """Another service takes the place of the one that serves."""
    host.install("old")
    return {}


def failing_swap(host: Host) -> dict[str, Any]:
    """The same, but the new server dies at its load."""
    host.install("old")
    return {"env": {"HINT": "broken"}}


def changed(host: Host) -> dict[str, Any]:
    """The declaration of the service that serves changes."""
    host.install("new", max_num_seqs=8)
    return {"args": {"max_num_seqs": 16}}


def failing_change(host: Host) -> dict[str, Any]:
    """The same, but with the new declaration it dies at its load."""
    host.install("new", max_num_seqs=8)
    return {"args": {"max_num_seqs": 16}, "env": {"HINT": "broken"}}


def restarted(host: Host) -> dict[str, Any]:
    """It is restarted as it is."""
    host.install("new")
    return {"state": "restarted"}


def overlapped(host: Host) -> dict[str, Any]:
    """Another service takes the place of one that can run beside it: that is stopped only when the new one serves."""
    host.install("old", gpus=(4, 5), port=8001)
    return {"replace": [OLD], "drain_timeout": 1}


def failing_overlap(host: Host) -> dict[str, Any]:
    """The same, but the new server dies at its load."""
    return {**overlapped(host), "env": {"HINT": "broken"}}


SCENARIOS: list[Callable[[Host], dict[str, Any]]] = [
    swap, failing_swap, changed, failing_change, restarted, overlapped, failing_overlap,
]  # fmt: skip


class Case:
    """One scenario on a fresh host."""

    def __init__(self, scenario: Callable[[Host], dict[str, Any]], root: Path) -> None:
        root.mkdir()
        self.host = Host(root)
        self.params = scenario(self.host)
        self.before = self.host.snapshot()
        self.old = self.host.serving()[0]
        self.works = "broken" not in str(self.params)

    def check(self, said: str) -> None:
        """The host is at rest, and serves what it should."""
        host = self.host
        said = "%s: %s" % (said, host.describe())
        assert not host.store.exists(), said
        serving = host.serving()
        assert len(serving) == 1, said
        unit, result, after = serving[0], host.result(), host.snapshot()
        assert host.started_with[unit] == host.definition(unit), said + " runs with other files than there are"
        assert serving == host.at_boot() or (unit in host.at_boot() and not result.get("failed")), said
        if result.get("failed"):
            assert unit == self.old, said
            assert {path: entry for path, entry in after.items() if path in self.before} == self.before, said
            assert set(after) - set(self.before) == set(), said
            assert result["rolled_back"] or "before anything was touched" in result["msg"], said
        else:
            assert self.works and unit == NEW and result["ready"], said
            assert host.at_boot() == [NEW], said


@pytest.fixture
def fresh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[Host], dict[str, Any]]], Case]:
    """Makes cases, each in a directory of its own."""
    patch(monkeypatch)
    count = iter(range(100000))
    return lambda scenario: Case(scenario, tmp_path / str(next(count)))


Fresh = Callable[[Callable[[Host], dict[str, Any]]], Case]


def lives(fresh: Fresh, scenario: Callable[[Host], dict[str, Any]]) -> int:
    """How many mutations the change makes when nothing kills it; the end of it is right."""
    case = fresh(scenario)
    case.host.begin(**case.params)
    made = case.host.live()
    assert bool(case.host.result().get("failed")) is not case.works, case.host.result()
    case.check("undisturbed")
    return made


@pytest.mark.parametrize("reboot", [False, True], ids=["killed", "power cut"])
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_dying_before_any_step_leaves_a_host_that_serves(fresh: Fresh, scenario: Callable[[Host], dict[str, Any]], reboot: bool) -> None:
    made = lives(fresh, scenario)
    assert made >= 10
    ends = set()
    for k in range(1, made + 1):
        case = fresh(scenario)
        case.host.begin(**case.params)
        case.host.live(die_at=k)
        case.host.revive(reboot)
        case.host.live()
        case.check("death before step %d of %d" % (k, made))
        ends.add(bool(case.host.result().get("failed")))
        again_works(case, k)
    # A power cut is answered by going back, a death by going on.
    assert ends == ({True} if not case.works else {True, False} if reboot else {False})


def test_an_overlapped_swap_is_never_without_a_server(fresh: Fresh) -> None:
    for scenario in (overlapped, failing_overlap):
        case = fresh(scenario)
        case.host.begin(**case.params)
        case.host.live()
        case.check("undisturbed")
        done = [entry for entry in case.host.done if entry.endswith((NEW, OLD)) and " etc/" not in entry]
        result = case.host.result()
        assert not result["timings"]["downtime"]
        if scenario is overlapped:
            assert done == ["start " + NEW, "enable " + NEW, "disable " + OLD, "stop " + OLD]
            assert result["replaced"][0]["unit"] == OLD
        else:
            assert "stop " + OLD not in done and "start " + OLD not in done
            assert result["rolled_back"] and "vllm-old.service serves old." in result["msg"] and result["replaced"] == []


def again_works(case: Case, k: int) -> None:
    """The same command again ends with what was asked for."""
    host = case.host
    if not case.works:
        return
    host.begin(**case.params)
    host.live()
    result = host.result()
    assert not result.get("failed") and result["ready"], (k, result, host.describe())
    assert host.serving() == [NEW] == host.at_boot(), (k, host.describe())


@pytest.mark.parametrize(("first", "second"), [(False, False), (False, True), (True, False), (True, True)],
                         ids=["killed twice", "killed, power cut", "power cut, killed", "two power cuts"])
@pytest.mark.parametrize("scenario", [swap, failing_change, overlapped])
def test_dying_again_on_the_way_back_or_forth_does_not_matter(
    fresh: Fresh, scenario: Callable[[Host], dict[str, Any]], first: bool, second: bool
) -> None:
    made = lives(fresh, scenario)
    tried = 0
    for k in range(1, made + 1):
        j = 1 + k % STRIDE
        while True:
            case = fresh(scenario)
            case.host.begin(**case.params)
            case.host.live(die_at=k)
            case.host.revive(first)
            case.host.live(die_at=j)
            finished = not case.host.dead
            case.host.revive(second and not finished)
            case.host.live()
            case.check("death before step %d of %d, then before step %d" % (k, made, j))
            tried += 1
            if finished:
                break
            j += STRIDE
    assert tried > made


def test_a_driver_that_does_not_answer_after_a_reboot_keeps_no_old_server_down(fresh: Fresh) -> None:
    made = lives(fresh, swap)
    for k in range(1, made + 1):
        case = fresh(swap)
        case.host.begin()
        case.host.live(die_at=k)
        committing = (case.host.store.load() or {}).get("stage") == "committing"
        case.host.revive(True)
        case.host.driver_answers = False
        case.host.live()
        assert not case.host.store.exists()
        assert case.host.serving() and set(case.host.at_boot()) & {OLD, NEW}, (k, case.host.describe())
        assert committing or case.host.serving() == [OLD] == case.host.at_boot(), (k, case.host.describe())


@pytest.mark.parametrize("scenario", SCENARIOS)
@pytest.mark.parametrize("dies", [False, True], ids=["full", "full after a death"])
def test_a_record_that_can_no_longer_be_written_leaves_a_host_that_serves(
    fresh: Fresh, monkeypatch: pytest.MonkeyPatch, scenario: Callable[[Host], dict[str, Any]], dies: bool
) -> None:
    written, full_from = 0, 10**9
    real = Store._write

    def write(store: Store, content: dict[str, Any], directory: str) -> str:
        nonlocal written
        if directory.endswith("/change"):
            written += 1
            if written >= full_from:
                raise GpuFleetError("Cannot write to %s: No space left on device." % directory)
        return real(store, content, directory)

    monkeypatch.setattr(Store, "_write", write)
    made = lives(fresh, scenario)
    writes, ends = written, set()
    deaths = range(1, made + 1) if dies else [None]
    for k in deaths:
        for fails in [1] if k else range(1, writes):
            case = fresh(scenario)
            case.host.begin(**case.params)
            case.host.live(die_at=k) if k else None
            case.host.revive(False)
            written, full_from = 0, fails
            case.host.live()
            full_from = 10**9
            said = "death before step %s, full from write %d on" % (k, fails)
            case.check(said)
            result = case.host.result()
            ends.add(bool(result.get("failed")))
            if fails == 1 and not k:
                assert "No space left on device, before anything was touched" in result["msg"], result
            again_works(case, k or fails)
    assert True in ends
