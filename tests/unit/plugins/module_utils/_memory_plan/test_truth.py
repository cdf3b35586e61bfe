# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The plan against public starts, and the table of it in the docs.

To write the table anew: GPUFLEET_WRITE_DOCS=1 pytest tests/unit/plugins/module_utils/_memory_plan/test_truth.py
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from .truth import CAPACITY, EXACT, RUNS, WEIGHTS, Row, off, row

DOCS = Path(__file__).resolve().parents[5] / "docs" / "memory-plan.md"
BEGIN, END = "<!-- measured: begin -->\n", "<!-- measured: end -->\n"
ROWS = [row(run) for run in RUNS]
STARTED = [found for found in ROWS if found.run["outcome"] == "started"]
# Each run outside of the bounds, with the reason. A run that isn't here must be within, and one that is must be outside.
MISSES = {
    "q3-235b-fp8-tp4-4xh100": "an LMCache connector took memory too, and that version profiled in another order",
}
# How far a plan was off decides only where something was served: these were refused, and the plan says so.
REFUSED = [found for found in ROWS if found.run["outcome"] != "started"]


def test_there_is_something_to_compare() -> None:
    assert sum(found.token_bytes is not None for found in ROWS) >= 15
    assert sum(found.weights is not None for found in ROWS) >= 18
    assert sum(found.capacity is not None for found in STARTED) >= 15
    assert len(REFUSED) >= 5


@pytest.mark.parametrize("found", ROWS, ids=lambda found: str(found.run["id"]))
def test_bytes_per_token_are_exact_for_uniform_attention(found: Row) -> None:
    if found.token_bytes is not None:
        assert abs(off(found.token_bytes)) <= EXACT, found.token_bytes


@pytest.mark.parametrize("found", ROWS, ids=lambda found: str(found.run["id"]))
def test_weights_are_within_bounds(found: Row) -> None:
    if found.weights is not None:
        assert abs(off(found.weights)) <= WEIGHTS, found.weights


@pytest.mark.parametrize("found", ROWS, ids=lambda found: str(found.run["id"]))
def test_from_the_printed_cache_the_layout_follows(found: Row) -> None:
    if found.rule is not None:
        assert abs(off(found.rule)) <= (0.05 if found.hybrid else EXACT), found.rule


@pytest.mark.parametrize("found", STARTED, ids=lambda found: str(found.run["id"]))
def test_what_fits_is_within_bounds_unless_named(found: Row) -> None:
    if found.capacity is not None:
        assert (abs(off(found.capacity)) > CAPACITY) == (found.run["id"] in MISSES), found.capacity


def test_nine_runs_in_ten_are_within_bounds() -> None:
    compared = [off(found.capacity) for found in STARTED if found.capacity is not None]
    assert sum(abs(share) <= CAPACITY for share in compared) >= 0.9 * len(compared)


@pytest.mark.parametrize("found", REFUSED, ids=lambda found: str(found.run["id"]))
def test_what_vllm_refused_does_not_fit(found: Row) -> None:
    assert found.plan.verdict == "does_not_fit", found.plan.reasons


@pytest.mark.parametrize("found", STARTED, ids=lambda found: str(found.run["id"]))
def test_what_started_is_not_said_not_to_fit(found: Row) -> None:
    assert found.plan.verdict != "does_not_fit", found.plan.reasons


def test_the_table_in_the_docs_is_what_the_plan_says_now() -> None:
    text = DOCS.read_text(encoding="utf-8")
    before, rest = text.split(BEGIN)
    after = rest.split(END)[1]
    fresh = before + BEGIN + table() + END + after
    if os.environ.get("GPUFLEET_WRITE_DOCS") == "1":
        DOCS.write_text(fresh, encoding="utf-8")
    assert DOCS.read_text(encoding="utf-8") == fresh, "docs/memory-plan.md is stale: see the head of this file"


def table() -> str:
    """The part of the docs between the marks."""
    lines = ["", *_summary(), "", _line(HEAD), _line(["---"] * 2 + ["--:"] * 4 + ["---"])]
    lines += [_line(_cells(found)) for found in ROWS]
    lines += ["", "Outside of the bounds, and why:", ""]
    lines += ["- `%s`: %s." % (name, reason) for name, reason in MISSES.items()]
    lines += ["", "What the sizes of the models come from:", ""]
    return "\n".join([*lines, *_sources(), "", ""])


HEAD = ["run", "vLLM", "bytes per token", "weights GiB", "from the printed cache", "from what the user had", "verdict"]


def _summary() -> list[str]:
    def within(pairs: list[tuple[float, float] | None], bound: float) -> str:
        known = [off(pair) for pair in pairs if pair is not None]
        return "%d of %d" % (sum(abs(share) <= bound for share in known), len(known))

    refused = sum(found.plan.verdict == "does_not_fit" for found in REFUSED)
    return [
        "- Bytes per token of uniform attention, equal to what the log's own figures give (they are rounded, and not every "
        "rank has the same: 1.2 %%): %s." % within([found.token_bytes for found in ROWS], EXACT),
        "- Weights per GPU within 5 %%: %s." % within([found.weights for found in ROWS], WEIGHTS),
        "- KV tokens (hybrids: concurrency) from the cache's size as printed, within 5 %%: %s."
        % within([found.rule for found in ROWS], 0.05),
        "- The same from nothing but what the user had, within 10 %%: %s."
        % within([found.capacity for found in STARTED], CAPACITY),
        "- Starts that vLLM refused, or that ran out of memory, said not to fit: %d of %d; starts that worked said not to "
        "fit: %d of %d."
        % (refused, len(REFUSED), sum(found.plan.verdict == "does_not_fit" for found in STARTED), len(STARTED)),
    ]


def _cells(found: Row) -> list[str]:
    run = found.run
    version = (
        run["version_printed"]
        if run["version_printed"] == run["version"]
        else "%s (taken for %s)"
        % (
            run["version_printed"],
            run["version"],
        )
    )
    capacity = _pair(found.capacity) if run["outcome"] == "started" else "-"
    verdict = found.plan.verdict.replace("_", " ") + ("" if run["outcome"] == "started" else "; refused by vLLM")
    pairs = [_pair(found.token_bytes), _pair(found.weights), _pair(found.rule), capacity]
    return [run["id"], version, *pairs, verdict]


def _pair(pair: tuple[float, float] | None) -> str:
    if pair is None:
        return "-"
    digits = "%.2f" if pair[1] < 1000 else "%.0f"
    return "%s / %s (%+.1f %%)" % (digits % pair[0], digits % pair[1], 100 * off(pair))


def _line(cells: list[str]) -> str:
    return "| %s |" % " | ".join(cells)


def _sources() -> list[str]:
    from .truth import MODELS

    lines = []
    for name, model in sorted(MODELS.items()):
        unverified = ", from memory and unverified: %s" % ", ".join(model["unverified"]) if model["unverified"] else ""
        size = (
            "checkpoint %d bytes (%s)" % (model["checkpoint_bytes"], model["checkpoint_source"])
            if ("checkpoint_bytes" in model)
            else "checkpoint's size unknown: weights counted from the sizes"
        )
        lines.append("- %s: %s%s." % (name, size, unverified))
    return lines
