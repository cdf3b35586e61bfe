# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A secret reaches the command and nobody else, and is nowhere when the borrowing has ended, whoever died meanwhile."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ansible_collections.gpufleet.vllm.plugins.module_utils._borrow.hidden import keep_secrets, secrets_of, secrets_path
from ansible_collections.gpufleet.vllm.plugins.module_utils._borrow.request import (
    secrets_in,
    to_borrow,
    without_secrets,
)
from ansible_collections.gpufleet.vllm.plugins.module_utils._core.errors import GpuFleetError
from ansible_collections.gpufleet.vllm.plugins.module_utils._job.record import digest_of
from ansible_collections.gpufleet.vllm.plugins.modules.gpu_borrow import ARGUMENT_SPEC
from ansible_collections.gpufleet.vllm.plugins.plugin_utils._borrow import faults
from ansible_collections.gpufleet.vllm.tests.unit.plugins.module_utils._borrow.place import (
    OLD,
    Place,
    Program,
    patch,
)

TOKEN = "hf_tell-nobody-7341"
SECRETS = {"HF_TOKEN": TOKEN, "NCCL_KEY": 'a "b" $c `d` %n ü'}


def holding(place: Place) -> list[str]:
    """The files of the host, and what happened on it, that tell a secret."""
    told = [path.name for path in place.root.rglob("*") if path.is_file() and TOKEN.encode() in path.read_bytes()]
    return sorted(told) + [text for text in (str(place.program.starts), str(place.done)) if TOKEN in text]


def test_it_reaches_the_command_and_nobody_else(place: Place) -> None:
    place.program = Program(writes=("my token is " + TOKEN, "187.21 GB/s"), leaves=(4711,))
    done = place.asks(secrets=SECRETS, env={"NCCL_DEBUG": "INFO"})
    assert done["outcome"] == "succeeded" and done["output"] == "my token is ********\n187.21 GB/s\n", done
    lines = 'HF_TOKEN="%s"\nNCCL_DEBUG="INFO"\nNCCL_KEY="a \\"b\\" \\$c \\`d\\` %%n ü"\n' % TOKEN
    assert place.given == [(lines, 0o600)]
    assert TOKEN not in str(done) and holding(place) == [] and place.hidden() == []


def test_while_it_runs_one_file_of_root_alone_has_it_and_the_record_has_not(place: Place) -> None:
    place.program = Program(writes=("my token is " + TOKEN,))
    place.dies_while_it_runs(secrets=SECRETS)
    (name,) = place.hidden()
    assert name.endswith(".secrets") and holding(place) == [name]
    assert Path(place.paths.run, name).stat().st_mode & 0o777 == 0o600
    place.live()
    assert place.result()["output"] == "my token is ********\n", "a job that comes back still knows what to hide"
    assert holding(place) == [] and place.hidden() == []


@pytest.mark.parametrize("reboot", [False, True], ids=["job", "host"])
@pytest.mark.parametrize("program", [Program(writes=(TOKEN,)), Program(writes=(TOKEN,), rc=1)], ids=["works", "fails"])
def test_after_a_death_at_any_step_it_is_nowhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reboot: bool, program: Program
) -> None:
    patch(monkeypatch)
    number, died = 0, True
    while died:
        number += 1
        place = Place.that_serves(tmp_path / ("host-%d" % number))
        place.program = Program(**{**program.__dict__, "starts": []})
        died = place.dies_at(number, secrets=SECRETS)
        assert set(holding(place)) <= set(place.hidden()), (number, holding(place))
        place.revive(reboot)
        for _attempt in range(3):
            if place.store.exists():
                place.live()
        assert not place.store.exists() and place.serving() == [OLD], number
        assert holding(place) == [] and place.hidden() == [], (number, holding(place), place.hidden())
    assert number > 8


def test_what_a_module_left_that_died_before_its_record_the_next_one_removes(place: Place) -> None:
    keep_secrets("gpufleet-borrow-0123.service", place.paths.run, SECRETS)
    other = Path(place.paths.run, "somebody.secrets")
    other.write_text("theirs")
    place.asks()
    assert place.hidden() == [] and other.exists()


def test_what_was_never_begun_leaves_no_secret_when_somebody_else_clears_up(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as nobody_comes:
        nobody_comes.setattr(Place, "run_job", lambda self: None)
        place.asks(secrets=SECRETS, wait=False)
    assert len(place.hidden()) == 1
    place.units.clock.now += 60.0
    place.asks(command="bench --other")
    assert place.hidden() == [] and holding(place) == []


def test_a_module_that_loses_the_race_takes_its_secrets_along(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    def create(self: Any, record: dict[str, Any]) -> bool:
        raise GpuFleetError("Cannot write to %s: No space left on device." % place.paths.change)

    monkeypatch.setattr(type(place.store), "create", create)
    with pytest.raises(GpuFleetError, match=r"No space left.*Nothing was touched"):
        place.asks(secrets=SECRETS)
    assert place.hidden() == []


def test_without_its_secrets_it_is_not_begun_and_nothing_is_stopped(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Place, "run_job", _robbed)
    place.units.log.clear()
    done = place.asks(secrets=SECRETS)
    assert done["failed"] and "secrets are not in" in done["msg"] and "Run again" in done["msg"] and done["put_back"], done
    assert place.program.starts == [] and "stop " + OLD not in place.units.log and place.serving() == [OLD]


def _robbed(place: Place) -> None:
    for name in place.hidden():
        Path(place.paths.run, name).unlink()
    place.job().run()


def test_output_is_not_told_where_nobody_knows_any_more_what_to_hide(place: Place) -> None:
    place.program = Program(writes=("my token is " + TOKEN,))
    place.dies_while_it_runs(secrets=SECRETS)
    for name in place.hidden():
        Path(place.paths.run, name).write_text("{}")
    place.live()
    done = place.result()
    assert TOKEN not in str(done) and "isn't known any more" in done["output"] and done["put_back"], done
    assert place.hidden() == []


def test_it_is_hidden_before_the_output_is_cut(place: Place) -> None:
    """A half of it would pass for no secret."""
    whole = "x" * (1024 - 12) + "\n"
    place.program = Program(writes=("key=" + TOKEN, whole.rstrip("\n")))
    done = place.asks(secrets=SECRETS, output_kib=1)
    assert done["output_truncated"] and not any(TOKEN[at:] in done["output"] for at in range(len(TOKEN) - 4)), done["output"][:40]


def test_a_renewed_token_is_no_other_request(place: Place) -> None:
    assert place.asks(secrets=SECRETS)["changed"]
    assert not place.asks(secrets={**SECRETS, "HF_TOKEN": "hf_another-9999"})["changed"], "the result stands"
    assert place.asks(secrets={"HF_TOKEN": TOKEN})["changed"], "other variables are another request"
    params = {"command": "x", "secrets": SECRETS}
    kept = without_secrets(params)
    assert TOKEN not in str(kept) and digest_of(to_borrow(kept)) == digest_of(to_borrow(params))


@pytest.mark.parametrize(
    ("secrets", "said"),
    [
        ({"HF_TOKEN": ""}, "`secrets.HF_TOKEN` is empty.*Give one"),
        ({"HF_TOKEN": "abc"}, "`secrets.HF_TOKEN` is too short"),
        ({"HF_TOKEN": None}, "HF_TOKEN of `secrets` has no value"),
        ({"HF_TOKEN": [TOKEN]}, "HF_TOKEN of `secrets` is no text"),
        ({"HF_TOKEN": TOKEN + "\n"}, "`secrets.HF_TOKEN`.*line break"),
        ({"HF_TOKEN": TOKEN + "\0"}, "HF_TOKEN of `secrets` holds a NUL"),
        ({"CUDA_VISIBLE_DEVICES": TOKEN}, "told of its GPUs"),
        ({"HF-TOKEN": TOKEN}, "no name of an environment variable"),
        ({"NCCL_DEBUG": TOKEN}, "`env` and `secrets` both have NCCL_DEBUG"),
        ([TOKEN], "`secrets` is no dictionary"),
    ],
)
def test_what_cannot_be_a_secret_is_refused_without_telling_it(secrets: Any, said: str) -> None:
    with pytest.raises(GpuFleetError, match=said) as refused:
        to_borrow({"command": "x", "env": {"NCCL_DEBUG": "INFO"}, "secrets": secrets})
    assert TOKEN not in str(refused.value)
    told = faults({"command": "x", "env": {"NCCL_DEBUG": "INFO"}, "secrets": secrets}, [])
    assert told and TOKEN not in str(told)


def test_numbers_and_switches_are_text() -> None:
    assert secrets_in({"secrets": {"PIN": 123456}}) == {"PIN": "123456"} and secrets_in({"secrets": None}) == {}
    options: Any = ARGUMENT_SPEC["secrets"]
    assert options["no_log"] is True


def test_only_the_very_secrets_that_were_asked_for_are_taken(tmp_path: Path) -> None:
    unit, run = "gpufleet-borrow-1.service", str(tmp_path)
    assert secrets_of(unit, run, []) == {} and secrets_of(unit, run, ["A"]) is None
    keep_secrets(unit, run, {"A": "value"})
    assert secrets_of(unit, run, ["A"]) == {"A": "value"} and secrets_of(unit, run, ["A", "B"]) is None
    Path(secrets_path(unit, run)).write_text("[")
    assert secrets_of(unit, run, ["A"]) is None
