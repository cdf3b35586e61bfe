# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Which hosts a lab has, and what a second `up` does."""

from __future__ import annotations

import pytest

from lab.errors import LabError
from lab.plan import HostSpec, default_plan, merge


def test_three_hosts_have_both_bases() -> None:
    assert [(spec.name, spec.base) for spec in default_plan(3)] == [
        ("gpu01", "bookworm"),
        ("gpu02", "bookworm"),
        ("gpu03", "trixie"),
    ]


def test_twelve_hosts() -> None:
    specs = default_plan(12)
    assert [spec.name for spec in specs][-1] == "gpu12"
    assert sum(spec.base == "trixie" for spec in specs) == 4
    assert {spec.cgroup for spec in specs} == {"unified"}


@pytest.mark.parametrize(
    ("base", "bases"),
    [("trixie", ["trixie"] * 3), ("bookworm", ["bookworm"] * 3), ("mixed", ["bookworm", "trixie", "bookworm"])],
)
def test_a_base_that_is_asked_for(base: str, bases: list[str]) -> None:
    assert [spec.base for spec in default_plan(3, base)] == bases


@pytest.mark.parametrize(("hosts", "base"), [(0, None), (-1, None), (201, None), (3, "sarge")])
def test_plans_that_make_no_sense(hosts: int, base: str | None) -> None:
    with pytest.raises(LabError, match="choose 1 to 200|not one of bookworm, trixie, mixed"):
        default_plan(hosts, base)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"name": "GPU 01"}, "use lower-case letters"),
        ({"name": "gpu01", "base": "sid"}, "base 'sid' is not one of bookworm, trixie"),
        ({"name": "gpu01", "cgroup": "v1"}, "cgroup form 'v1' is not one of unified, hybrid"),
        ({"name": "gpu01", "gpus": 17}, "17 GPUs"),
    ],
)
def test_specs_that_make_no_sense(options: dict[str, object], message: str) -> None:
    with pytest.raises(LabError, match=message):
        HostSpec(**options)  # type: ignore[arg-type]


def test_a_spec_survives_the_record() -> None:
    spec = HostSpec("gpu07", base="trixie", cgroup="hybrid", gpus=2, pynvml=False)
    assert HostSpec.from_dict({**spec.as_dict(), "of a later version": 1}) == spec


def test_a_second_up_adds_only_what_is_missing() -> None:
    running = {"gpu01": HostSpec("gpu01"), "gpu02": HostSpec("gpu02")}
    merged = merge(running, default_plan(3), strict=False)
    assert merged.keep == ("gpu01", "gpu02")
    assert [spec.name for spec in merged.add] == ["gpu03"]
    assert merged.notes == ()


def test_fewer_hosts_take_none_away() -> None:
    running = {spec.name: spec for spec in default_plan(3)}
    merged = merge(running, default_plan(1), strict=False)
    assert merged.keep == ("gpu01", "gpu02", "gpu03")
    assert merged.add == ()


def test_a_host_in_another_form() -> None:
    running = {"gpu01": HostSpec("gpu01")}
    wanted = [HostSpec("gpu01", base="trixie", gpus=4)]
    assert merge(running, wanted, strict=False).notes == (
        "gpu01 stays as it is: base bookworm, not trixie, gpus 8, not 4",
    )
    with pytest.raises(LabError, match="gpu01 is up already with base bookworm, not trixie, gpus 8, not 4"):
        merge(running, wanted, strict=True)
