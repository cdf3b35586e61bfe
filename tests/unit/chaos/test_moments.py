# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the disturbances of swaps are made of: their moments, and what counts as a whole answer."""

from __future__ import annotations

import json
from argparse import Namespace

import pytest
from chaos.__main__ import works, works_again
from chaos.catalogue import entries_with
from chaos.failing import FAILING, Failing
from chaos.moments import PHASES, again, tries
from chaos.stream import is_whole
from chaos.subject import Outcome

from ansible_collections.gpufleet.vllm.plugins.module_utils._catalogue.resolve import resolve


def test_a_seed_names_the_same_moments_again_and_another_seed_others() -> None:
    assert tries("job", 20, 7) == tries("job", 20, 7)
    assert tries("job", 20, 7) != tries("job", 20, 8)
    assert tries("job", 20, 7) != tries("power", 20, 7)


@pytest.mark.parametrize("count", [10, 20, 40])
def test_moments_are_spread_over_the_whole_swap_and_over_every_edge(count: int) -> None:
    moments = [one.moment for one in tries("controller", count, 1)]
    parts = sorted(moment.part for moment in moments if not moment.phase)
    assert len(parts) == count - count * 2 // 5
    for number, part in enumerate(parts):
        assert number / len(parts) <= part < (number + 1) / len(parts)
    edges = {moment.phase for moment in moments if moment.phase}
    assert edges == set(("record", *PHASES)[-(count * 2 // 5) :])
    assert {"stop", "load", "commit"} <= edges


def _stream(reason: str, done: bool = True) -> str:
    last = '{"choices": [{"text": "b", "finish_reason": "%s"}]}' % reason
    end = "data: [DONE]\n\n" if done else ""
    return 'data: {"choices": [{"text": "a", "finish_reason": null}]}\n\ndata: %s\n\n%s' % (last, end)


def test_an_answer_that_was_cut_short_is_not_whole() -> None:
    assert is_whole(_stream("length"), 2, True) and is_whole(_stream("stop"), 2, True)
    assert not is_whole(_stream("abort"), 2, True)
    assert not is_whole(_stream("length", done=False), 2, True)
    assert not is_whole('data: {"error": {"code": 500}}\n\ndata: [DONE]\n\n', 2, True)
    answer = '{"choices": [{"finish_reason": "%s"}], "usage": {"completion_tokens": %d}}'
    assert is_whole(answer % ("length", 24), 24, False)
    assert not is_whole(answer % ("abort", 21), 24, False)
    assert not is_whole(answer % ("length", 21), 24, False)


@pytest.mark.parametrize("failing", FAILING, ids=lambda failing: str(failing.name))
def test_what_a_failing_model_says_of_itself_is_what_a_swap_reads(failing: Failing) -> None:
    model = "kimi-k2.5-int4"
    keys = {**failing.keys, "ready_timeout": 30}
    catalogue = json.loads(entries_with(model, **keys)[1])["vllm_models"]
    deployed, other = resolve(catalogue, model), resolve(catalogue, "minimax-m2.5")
    assert {key: deployed[key] for key in keys} == keys
    assert not set(keys) & set(other)
    assert "ready_timeout" in resolve(json.loads(entries_with(ready_timeout=30)[1])["vllm_models"], "minimax-m2.5")


def test_single_tries_and_groups_can_be_repeated() -> None:
    def count(*only: str) -> int:
        return len(works(Namespace(controller=40, job=20, power=10, failing=True, seed=7, only=list(only))))

    assert count() == 70 + len(FAILING)
    assert count("job") == 20 and count("new model") == len(FAILING)
    assert count("job:3", "controller:29", f"new model: {FAILING[0].name}", f"new model: {FAILING[1].name}") == 4
    assert count("job:20") == count("rolling") == 0


def test_for_each_moment_that_missed_another_one_is_tried_until_there_are_as_many_as_were_asked_for() -> None:
    def missing(hits: int, tried: int) -> int:
        outcomes = [Outcome("gpu01", "job:0", "job", hit=number < hits) for number in range(tried)]
        return len(works_again(outcomes, {"controller": 40, "job": 20}, 7))

    assert missing(20, 20) == missing(20, 25) == missing(0, 0) == 0
    assert missing(17, 20) == missing(17, 23) == 3
    assert missing(0, 1) == 1  # one that was asked for by its name
    others = again("job", 3, 20, 7)
    assert [one.number for one in others] == [20, 21, 22] and others == again("job", 3, 20, 7) != again("job", 3, 23, 7)
    assert all(0.0 < one.moment.part < 0.9 for one in others)
