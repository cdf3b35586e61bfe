# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""How well the three benchmark tools agree on one server: the table of docs/benchmark.md.

    PYTHONPATH=tests:collections python -m real.tools --url http://127.0.0.1:8000 --tokenizer DIR \
        --vllm /opt/vllm/bin/vllm --guidellm /opt/guidellm/bin/guidellm

The server is anybody's, and nothing else should be asked of it meanwhile; ``real.paced`` is one that waits as if it had a GPU.
Each round goes through all levels and lets all tools measure each, another one first in each round: what the machine does beside it
gets to all of them. The median of the rounds counts. Ends with 1 when two tools differ by more than 15 percent in throughput.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path
from statistics import median
from typing import Any

from ansible_collections.gpufleet.vllm.plugins.module_utils._benchmark.request import to_request
from ansible_collections.gpufleet.vllm.plugins.module_utils._benchmark.run import Run
from ansible_collections.gpufleet.vllm.plugins.module_utils._benchmark.store import ResultStore
from ansible_collections.gpufleet.vllm.plugins.module_utils._service.ports import Paths, Ports
from ansible_collections.gpufleet.vllm.plugins.modules.vllm_benchmark import ARGUMENT_SPEC

TOOLS = ("builtin", "vllm_bench", "guidellm")
LIMIT = 15.0
# Fewer waves than this, and a level is mostly its beginning and its end.
_WAVES = 6


def measure(asked: argparse.Namespace, tool: str, concurrency: int, directory: Path) -> dict[str, Any]:
    """One level by one tool."""
    spec: dict[str, Any] = dict(ARGUMENT_SPEC)
    parameters = {name: option.get("default") for name, option in spec.items()}
    requests = max(asked.requests, _WAVES * concurrency)
    profile = {"concurrency": [concurrency], "requests": requests, "input_tokens": 64, "output_tokens": 32}
    executable = asked.guidellm if tool == "guidellm" else asked.vllm
    parameters.update(base_url=asked.url, tool=tool, profile=profile, executable=executable, tokenizer=asked.tokenizer, force=True)
    places = Paths(run=str(directory / "run"), change=str(directory / "change"), units=str(directory / "units"))
    one = Run(to_request(parameters), Ports(paths=places), ResultStore(str(directory / "store")))
    one.look()
    (level,) = one.measure()["result"]["levels"]
    found: dict[str, Any] = level
    return found


def row(concurrency: int, seen: dict[str, list[dict[str, Any]]]) -> tuple[float, str]:
    """How many percent the tools are apart at a level, and its line of the table."""
    made = [median(level["output_throughput"] for level in seen[tool]) for tool in TOOLS]
    each = [median(level["tpot_ms"]["median"] for level in seen[tool]) for tool in TOOLS]
    busy = [median(level["kept_busy"] for level in seen[tool]) for tool in TOOLS]
    apart = 100.0 * (max(made) - min(made)) / max(made)
    cells = [f"{value:.1f}" for value in made] + [f"{apart:.1f} %"]
    cells += [" / ".join(f"{value:.1f}" for value in each), " / ".join(f"{value:.2f}" for value in busy)]
    return apart, f"| {concurrency} | {' | '.join(cells)} |"


def main() -> int:
    """Entry point."""
    parser = argparse.ArgumentParser(prog="real.tools")
    for name in ("url", "tokenizer", "vllm", "guidellm"):
        parser.add_argument(f"--{name}", required=True)
    parser.add_argument("--concurrency", type=int, nargs="+", default=[1, 4, 16])
    parser.add_argument("--requests", type=int, default=48, help="at each level, at least: six for each that is under way")
    parser.add_argument("--rounds", type=int, default=3)
    asked = parser.parse_args()
    seen: dict[int, dict[str, list[dict[str, Any]]]] = {level: {tool: [] for tool in TOOLS} for level in asked.concurrency}
    with tempfile.TemporaryDirectory() as directory:
        for number in range(asked.rounds):
            first = number % len(TOOLS)
            for concurrency in asked.concurrency:
                for tool in (*TOOLS[first:], *TOOLS[:first]):
                    level = measure(asked, tool, concurrency, Path(directory))
                    seen[concurrency][tool].append(level)
                    made = level["output_throughput"]
                    print(f"round {number + 1}: {tool} at {concurrency}: {made:.1f} tokens/s", file=sys.stderr, flush=True)
    rows = [row(concurrency, seen[concurrency]) for concurrency in asked.concurrency]
    print("| concurrency | %s | apart | TPOT ms | kept busy |\n|%s" % (" | ".join(f"`{tool}`" for tool in TOOLS), "---|" * 7))
    print("\n".join(line for _apart, line in rows))
    return 1 if max(apart for apart, _line in rows) > LIMIT else 0


if __name__ == "__main__":
    sys.exit(main())
