# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A few of the disturbances of ``make chaos``, one of each kind, at moments that were bad for swaps before."""

from __future__ import annotations

import pytest
from chaos.drained import drained
from chaos.failing import FAILING, Fails
from chaos.moments import Moment, Try
from chaos.subject import Outcome, Subject

from lab import Lab

DISTURBANCES = (
    Try("controller", 0, Moment(phase="record", after_s=0.05), fresh=True),
    Try("controller", 1, Moment(phase="load", after_s=0.5), fresh=False),
    Try("job", 0, Moment(phase="stop", after_s=0.1), fresh=True),
    Try("job", 1, Moment(phase="load", after_s=0.3), fresh=False),
    Try("power", 0, Moment(phase="settle", after_s=0.2), fresh=True),
)
FAILS = ("crash at its first start", "hangs, deaf to SIGTERM")
# The one that hangs is waited for twice, until the patience with it is over, and the old model is loaded after each.
pytestmark = pytest.mark.timeout(600)


@pytest.fixture(scope="module")
def subject(lab: Lab) -> Subject:
    """A host that serves the one model and is asked for the other."""
    chosen = Subject(lab.hosts["gpu01"])
    chosen.prepare()
    return chosen


def _in_order(outcome: Outcome) -> None:
    assert not outcome.wrong, "\n".join([*outcome.wrong, *outcome.told])
    assert outcome.end in ("old", "new") and outcome.again_ok


@pytest.mark.parametrize("disturbance", DISTURBANCES, ids=str)
def test_a_disturbed_swap_leaves_a_model_that_serves_and_the_same_command_completes_it(subject: Subject, disturbance: Try) -> None:
    outcome = subject.disturb(disturbance)
    assert outcome.hit, "the swap was over before it could be disturbed"
    _in_order(outcome)


@pytest.mark.parametrize("failing", [each for each in FAILING if each.name in FAILS], ids=lambda each: each.name)
def test_a_new_model_that_fails_leaves_the_old_one_serving(subject: Subject, failing: object) -> None:
    outcome = Fails(subject).run(failing)  # type: ignore[arg-type]
    _in_order(outcome)


@pytest.mark.parametrize("balanced", [True, False], ids=["taken out of the balancer", "without a pause"])
def test_no_accepted_request_is_lost_in_a_drained_swap(lab: Lab, balanced: bool) -> None:
    said: list[str] = []
    assert drained(lab.hosts["gpu02"], balanced, said) == [], said
