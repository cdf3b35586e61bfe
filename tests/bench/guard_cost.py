# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the guard costs a start: its own time and memory when all is free, and how soon it sees memory come back.

    PYTHONPATH=tests python3 -m bench.guard_cost [--rounds 15]

Beside the guard's time stands that of `python3 -c ''`, which nothing in Python can beat. The reaction is from the moment when the
driver has the memory back to the moment when systemd starts the server.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time

from bench.one_host import one_host
from e2e.guarded import GUARD, Guarded
from e2e.programs import Programs

from lab import Host

GPUS = (0, 1, 2, 3)
HELD_MIB = 92967
START_MS, REACTION_MS, MEMORY_MIB = 150, 200, 40

TIMES = """import json, resource, subprocess, sys, time
rounds, guard = int(sys.argv[1]), ["/usr/bin/python3", *sys.argv[2:]]
took = []
for _ in range(rounds):
    for command in (["/usr/bin/python3", "-c", ""], guard):
        started = time.monotonic()
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        took.append(time.monotonic() - started)
print(json.dumps(took[0::2]), json.dumps(took[1::2]), resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss, sep="\\n")
"""


def start_cost(host: Host, rounds: int) -> tuple[float, float, float]:
    """(seconds of the guard when all is free, of an empty Python, MiB of the guard or its child, whichever is larger)."""
    Guarded(host).install()
    argv = [GUARD, "--unit", "x.service", "--gpus", ",".join(map(str, GPUS)), "--utilization", "0.92", "--port", "8000"]
    bare, guard, kib = host.run(["python3", "-c", TIMES, str(rounds), *argv], timeout=300).stdout.splitlines()
    return statistics.median(json.loads(guard)), statistics.median(json.loads(bare)), int(kib) / 1024


def reaction(host: Host) -> float:
    """Seconds from memory that came back to the server's start."""
    unit = Guarded(host).install("--timeout", "60", "--port", "8000")
    Programs(host).service("holder", gpus=(2,), mib=HELD_MIB, properties=())
    host.gpu.set(2, release_delay_s=1.0)
    unit.start(wait=False)
    while "held by" not in unit.said():
        time.sleep(0.1)
    host.run("systemctl kill -s KILL holder")
    unit.wait_for("active")
    released = max(release.freed_at for release in host.gpu.releases() if release.gpu == 2)
    took = unit.started_at() - released
    host.run(["systemctl", "stop", unit.unit])
    host.run("journalctl --rotate -q; journalctl --vacuum-time=1s -q")
    return took


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description="What the guard costs a start.")
    parser.add_argument("--rounds", type=int, default=15)
    options = parser.parse_args()
    with one_host() as host:
        seconds, bare, mib = start_cost(host, options.rounds)
        reactions = sorted(reaction(host) for _round in range(5))
    print(f"guard when all is free {seconds * 1000:.0f} ms ({START_MS} at most), of which an empty python3 {bare * 1000:.0f} ms; "
          f"{mib:.0f} MiB ({MEMORY_MIB} at most)")
    print(f"guard after memory came back {statistics.median(reactions) * 1000:.0f} ms, {reactions[-1] * 1000:.0f} ms at the slowest of "
          f"{len(reactions)} ({REACTION_MS} at most)")
    return 0


if __name__ == "__main__":
    sys.exit(main())
