# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a preflight costs: the checks themselves on a model of 64 shards, and vllm_preflight beside a ping on a lab host.

    PYTHONPATH=tests:collections python3 -m bench.preflight [--rounds 10] [--pairs 10] [--core]

The model is the largest of the lab's: 64 shards with 208,000 tensors, 20 MB of headers, all of them read. Every round reads it anew;
nothing is kept between two. The median is to be under 0.3 s on an idle machine; beside it stands the processor's time, which other
work on the machine does not stretch.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from pathlib import Path

from bench.facts_cost import measure
from bench.one_host import one_host

from ansible_collections.gpufleet.vllm.plugins.module_utils._service.ports import Ports
from ansible_collections.gpufleet.vllm.plugins.module_utils._service.preflight import preflight
from lab.models import MODELS, write_model

MODEL = next(model for model in MODELS if model.shards == 64)
ARGS: dict[str, object] = {"tensor_parallel_size": 8, "max_model_len": 131072}
GPUS: dict[str, object] = {"count": 8, "gpu_mib": 97887, "name": "NVIDIA RTX PRO 6000"}
LIMIT_S = 0.3


def core(rounds: int) -> tuple[float, float]:
    """(seconds, seconds of the processor) of one whole preflight of the model, in this process."""
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / MODEL.name
        write_model(MODEL, path)
        wall, processor = [], []
        for _round in range(rounds + 1):
            begun, worked = time.perf_counter(), time.process_time()
            report = preflight({"model": str(path), "gpus": ["all"], "args": ARGS, "gpu_facts": GPUS}, Ports(), remember=False)
            wall.append(time.perf_counter() - begun)
            processor.append(time.process_time() - worked)
        if not report.ok or report.plan["weights_mib_per_gpu"] is None:
            raise SystemExit(f"The preflight found something to fail: {report.failed}")
    return statistics.median(wall[1:]), statistics.median(processor[1:])


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description="What a preflight costs.")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--pairs", type=int, default=10)
    parser.add_argument("--core", action="store_true", help="only the checks, in this process")
    options = parser.parse_args()
    seconds, processor = core(options.rounds)
    print(f"preflight of {MODEL.shards} shards {seconds * 1000:.0f} ms, of that {processor * 1000:.0f} ms of the processor "
          f"(median of {options.rounds}; {LIMIT_S * 1000:.0f} at most on an idle machine)")
    if options.core:
        return 0
    with one_host() as host:
        pairs = measure(host.name, options.pairs, "gpufleet.vllm.vllm_preflight", {"model": f"/models/{MODEL.name}", "args": ARGS})
    ping, module = (statistics.median(pair[number] for pair in pairs) for number in (0, 1))
    ratio = statistics.median(each[1] / each[0] for each in pairs)
    print(f"vllm_preflight of {MODEL.shards} shards {module * 1000:.0f} ms on a host, ping {ping * 1000:.0f} ms: ratio {ratio:.2f} "
          f"(median of {len(pairs)} pairs)")
    return 0


if __name__ == "__main__":
    sys.exit(main())
