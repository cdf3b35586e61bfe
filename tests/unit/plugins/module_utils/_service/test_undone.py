# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a roll-back leaves, and what it must not claim; and how long a stop is waited for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ansible_collections.gpufleet.vllm.plugins.module_utils._core.errors import GpuFleetError
from ansible_collections.gpufleet.vllm.plugins.module_utils._reclaim.units import stop_units
from ansible_collections.gpufleet.vllm.plugins.module_utils._service import transaction
from ansible_collections.gpufleet.vllm.tests.unit.plugins.module_utils._service.test_transaction import NEW, OLD, Swap
from ansible_collections.gpufleet.vllm.tests.unit.plugins.module_utils._service.world import Behaviour, status


def failing(tmp_path: Path, **how: Any) -> Swap:
    """A swap whose new server dies, after it has written into its home."""
    swap = Swap(tmp_path, **how)
    swap.world.behaviours[NEW] = Behaviour(load=100.0, dies=2.0)
    original = swap.world.start

    def start(unit: str, no_block: bool = True, timeout: float = 30.0) -> None:
        if unit == NEW:
            (tmp_path / "home" / "new" / "cache").mkdir(parents=True, exist_ok=True)
        original(unit)

    swap.world.start = start  # type: ignore[method-assign]
    return swap


def test_the_home_of_a_first_deployment_goes_with_it(tmp_path: Path) -> None:
    swap = failing(tmp_path)
    with pytest.raises(GpuFleetError):
        swap.run()
    assert swap.outcome.rolled_back and not (tmp_path / "home" / "new").exists()


def test_a_home_that_was_there_before_stays(tmp_path: Path) -> None:
    (tmp_path / "home" / "new").mkdir(parents=True)
    swap = failing(tmp_path)
    with pytest.raises(GpuFleetError):
        swap.run()
    assert swap.outcome.rolled_back and (tmp_path / "home" / "new" / "cache").exists()


def test_what_was_downloaded_stays_and_is_told(tmp_path: Path) -> None:
    swap = failing(tmp_path)
    original = swap.world.start

    def start(unit: str, no_block: bool = True, timeout: float = 30.0) -> None:
        original(unit)
        if unit == NEW:
            (tmp_path / "home" / "new" / "huggingface").mkdir()
            (tmp_path / "home" / "new" / "huggingface" / "blob").write_text("weights")

    swap.world.start = start  # type: ignore[method-assign]
    with pytest.raises(GpuFleetError):
        swap.run()
    assert (tmp_path / "home" / "new" / "huggingface" / "blob").exists()
    assert any("was downloaded" in warning for warning in swap.outcome.warnings)


def test_a_server_that_ran_without_its_file_is_not_said_to_be_back(tmp_path: Path) -> None:
    swap = failing(tmp_path, old_running=False)
    swap.world.units[NEW] = status(NEW, "active", load_state="not-found")
    with pytest.raises(GpuFleetError, match="ran without its unit file"):
        swap.run()
    assert not swap.outcome.rolled_back


def test_an_old_server_that_does_not_come_back_is_told_with_what_to_do(tmp_path: Path) -> None:
    swap = failing(tmp_path)
    swap.world.behaviours[OLD] = Behaviour(load=100.0, dies=1.0)
    with pytest.raises(GpuFleetError, match="PUTTING BACK .* systemd does not start it again.*`systemctl start %s`" % OLD):
        swap.run()


@pytest.mark.parametrize(("declared", "waited"), [(None, 60.0), (320.0, 320.0)])
def test_a_rivals_own_drain_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, declared: float | None, waited: float) -> None:
    asked: list[float] = []

    def remembered(refs: Any, patience: float, *more: Any) -> Any:
        asked.append(patience)
        return stop_units(refs, patience, *more)

    monkeypatch.setattr(transaction, "stop_units", remembered)
    swap = Swap(tmp_path)
    swap.world.units[OLD] = status(OLD, "active", unit_file_state="enabled", timeout_stop=declared)
    swap.run()
    assert asked == [waited]


@pytest.mark.parametrize(
    ("behaviour", "words"),
    [
        (Behaviour(completes=False, rate=900.0), "runs again, too busy to answer"),
        (Behaviour(completes=False, says=503, rate=900.0), "runs again, too busy to answer"),
        (Behaviour(refuses=401), "runs again, but it refuses the API key of its own declaration"),
    ],
)
def test_an_old_server_that_works_and_does_not_answer_us_is_no_failed_roll_back(
    tmp_path: Path, behaviour: Behaviour, words: str
) -> None:
    swap = failing(tmp_path)
    swap.world.behaviours[OLD] = behaviour
    begun = swap.world.clock.now
    with pytest.raises(GpuFleetError) as failure:
        swap.run()
    assert "Rolled back: %s %s" % (OLD, words) in failure.value.msg
    assert "PUTTING BACK" not in failure.value.msg and "serve nothing" not in failure.value.msg
    assert swap.outcome.rolled_back and swap.outcome.timings["downtime"] is not None
    assert swap.world.clock.now - begun < 400


def test_an_old_server_whose_engine_stands_still_is_a_failed_roll_back(tmp_path: Path) -> None:
    swap = failing(tmp_path)
    swap.world.behaviours[OLD] = Behaviour(completes=False, says=503)
    with pytest.raises(GpuFleetError, match="PUTTING BACK") as failure:
        swap.run()
    said = failure.value.msg.splitlines()[-1]
    assert "This host may serve nothing now. See `journalctl -u %s`; when that is mended, run again with model=old." % OLD in said


def test_a_new_server_that_refuses_our_key_fails_with_where_the_key_belongs(tmp_path: Path) -> None:
    swap = Swap(tmp_path)
    swap.world.behaviours[NEW] = Behaviour(refuses=401)
    with pytest.raises(GpuFleetError) as failure:
        swap.run()
    assert "secrets.VLLM_API_KEY" in failure.value.msg and "journal" not in failure.value.msg
    assert swap.outcome.diagnosis is not None and "secrets.VLLM_API_KEY" in swap.outcome.diagnosis["advice"]
    assert "%s serves old again" % OLD in failure.value.msg


def test_where_nothing_was_stopped_a_failed_way_back_says_that_what_served_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    swap = Swap(tmp_path)

    def daemon_reload() -> None:
        raise GpuFleetError("systemd refuses to read its unit files: no space in /run/systemd.")

    monkeypatch.setattr(swap.world, "daemon_reload", daemon_reload)
    with pytest.raises(GpuFleetError, match="PUTTING BACK") as failure:
        swap.run()
    assert "No service was stopped or started: what served goes on." in failure.value.msg
    assert "may serve nothing" not in failure.value.msg and not swap.outcome.rolled_back
    assert swap.world.status(OLD).running and "stop " + OLD not in swap.world.log
