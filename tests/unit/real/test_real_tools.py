# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""How the load generators are compared, and the server that waits as one with a GPU does."""

from __future__ import annotations

import sys
import time
import types
from typing import Any

import pytest
from real import paced, tools


def level(throughput: float) -> dict[str, Any]:
    return {"output_throughput": throughput, "tpot_ms": {"median": 1000.0 / throughput}, "kept_busy": 1.0}


def compared(monkeypatch: pytest.MonkeyPatch, made: dict[str, float], *arguments: str) -> tuple[int, list[tuple[int, str]]]:
    """The exit status, and what was measured in which order. ``made`` is what each tool makes of any level."""
    order: list[tuple[int, str]] = []

    def measure(_asked: Any, tool: str, concurrency: int, _directory: Any) -> dict[str, Any]:
        order.append((concurrency, tool))
        return level(made[tool])

    monkeypatch.setattr(tools, "measure", measure)
    told = ["--url", "u", "--tokenizer", "t", "--vllm", "v", "--guidellm", "g", *arguments]
    monkeypatch.setattr(sys, "argv", ["real.tools", *told])
    return tools.main(), order


@pytest.mark.parametrize(("slowest", "status"), [(85.1, 0), (84.9, 1)])
def test_tools_that_are_too_far_apart_end_it_with_1(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], slowest: float, status: int
) -> None:
    done, _order = compared(monkeypatch, {"builtin": 100.0, "vllm_bench": 95.0, "guidellm": slowest}, "--concurrency", "4")
    assert done == status
    assert capsys.readouterr().out.splitlines()[-1].startswith(f"| 4 | 100.0 | 95.0 | {slowest} | {100 - slowest:.1f} % |")


def test_each_tool_comes_first_once_in_three_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    _done, order = compared(monkeypatch, dict.fromkeys(tools.TOOLS, 1.0), "--concurrency", "1", "4", "--rounds", "3")
    assert len(order) == 18 and [concurrency for concurrency, _tool in order] == [1, 1, 1, 4, 4, 4] * 3
    assert [tool for _concurrency, tool in order[::6]] == list(tools.TOOLS)
    for first in range(0, 18, 3):
        assert {tool for _concurrency, tool in order[first : first + 3]} == set(tools.TOOLS)


def test_the_median_counts() -> None:
    seen = {tool: [level(throughput) for throughput in (1.0, 100.0, 90.0)] for tool in tools.TOOLS}
    assert tools.row(1, seen) == (0.0, "| 1 | 90.0 | 90.0 | 90.0 | 0.0 % | 11.1 / 11.1 / 11.1 | 1.00 / 1.00 / 1.00 |")


def test_a_step_takes_its_time_and_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    module = types.ModuleType("vllm.v1.sample.logits_processor")
    base = type("LogitsProcessor", (), {})
    module.__dict__["LogitsProcessor"] = base
    for name in ("vllm", "vllm.v1", "vllm.v1.sample"):
        monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
    monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setenv("REAL_PACED_STEP_S", "0.05")
    made: Any = paced.__getattr__("Paced")("configuration", "cpu", False)
    assert base in type(made).__mro__ and made.is_argmax_invariant() is False and made.update_state(None) is None
    logits, began = object(), time.monotonic()
    assert made.apply(logits) is logits and time.monotonic() - began >= 0.05
