# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What gpu_memory_facts costs: its wall time against ansible.builtin.ping's on the same host, in alternating pairs.

    PYTHONPATH=tests python3 -m bench.facts_cost [--pairs 20]

Prints the medians, and the median of the pairs' ratios, which is to be at most 1.3 on an idle host.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from bench.one_host import one_host

ROOT = Path(__file__).resolve().parents[2]
MODULES = ("ansible.builtin.ping", "gpufleet.vllm.gpu_memory_facts")

# Measured on the controller, from a task's start to its result.
CALLBACK = '''
import json, os, time
from ansible.plugins.callback import CallbackBase


class CallbackModule(CallbackBase):
    CALLBACK_VERSION, CALLBACK_TYPE, CALLBACK_NAME = 2.0, "aggregate", "times"

    def __init__(self):
        super().__init__()
        self.times = []

    def v2_playbook_on_task_start(self, task, is_conditional):
        self.action, self.started = task.action, time.perf_counter()

    def v2_runner_on_ok(self, result):
        self.times.append([self.action, time.perf_counter() - self.started])

    def v2_playbook_on_stats(self, stats):
        with open(os.environ["FACTS_COST_OUT"], "w") as out:
            json.dump(self.times, out)
'''


def measure(
    host: str, pairs: int, module: str = MODULES[1], arguments: dict[str, object] | None = None
) -> list[tuple[float, float]]:
    """(seconds of ping, seconds of the module) of each pair; one pair before them warms everything up."""
    with tempfile.TemporaryDirectory() as directory:
        base = Path(directory)
        (base / "times.py").write_text(CALLBACK, encoding="utf-8")
        both: tuple[dict[str, object], ...] = ({MODULES[0]: {}}, {module: arguments or {}})
        tasks = [task for _pair in range(pairs + 1) for task in both]
        (base / "play.json").write_text(json.dumps([{"hosts": host, "gather_facts": False, "tasks": tasks}]), encoding="utf-8")
        env = {**os.environ, "ANSIBLE_CALLBACK_PLUGINS": directory, "ANSIBLE_CALLBACKS_ENABLED": "times",
               "FACTS_COST_OUT": str(base / "times.json")}
        command = [str(Path(sys.executable).parent / "ansible-playbook"), "-i", "inventories/lab", str(base / "play.json")]
        done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise SystemExit(done.stdout + done.stderr)
        times = [seconds for _action, seconds in json.loads((base / "times.json").read_text(encoding="utf-8"))]
    if len(times) != 2 * (pairs + 1):
        raise SystemExit(f"{host} is not in the lab, or did not answer: make lab-up\n{done.stdout}{done.stderr}")
    return [(times[number], times[number + 1]) for number in range(2, len(times), 2)]


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description="What gpu_memory_facts costs beside a ping.")
    parser.add_argument("--pairs", type=int, default=20)
    options = parser.parse_args()
    with one_host() as host:
        pairs = measure(host.name, options.pairs)
    ping, facts = (statistics.median(pair[number] for pair in pairs) for number in (0, 1))
    ratio = statistics.median(each[1] / each[0] for each in pairs)
    print(f"gpu_memory_facts {facts * 1000:.0f} ms, ping {ping * 1000:.0f} ms: ratio {ratio:.2f} (median of {len(pairs)} pairs; "
          "1.3 at most on an idle host)")
    return 0


if __name__ == "__main__":
    sys.exit(main())
