# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""gpu_reclaim against the clean-up that people do by hand, on the same host, with the same server, in the same run.

By hand: stop the unit, and kill it when that takes too long; sleep 3; kill what is left by name; sleep 5; kill what has the device
nodes open; sleep 2; look at nvidia-smi and go on. A claim is early when the driver still held the server's memory at the moment
when the clean-up said it was done.

What is compared: the clean-up itself, by the host's clock, from the first step to the claim (for gpu_reclaim all that its task does
there: look, stop, prove, settle), and beside it what a person waits for: the whole command on the controller, which for both ways is
`ansible` over the same SSH. It takes as long to start whatever it runs; the line below the table says how long that is.

Then: how long after the driver's release and the settle time it returns, over releases that take up to ten seconds.

    PYTHONPATH=tests python3 -m bench.reclaim

Exits 1 unless gpu_reclaim's clean-up is at least five times as fast where the memory returns at once, never early, and back within 0.3 s.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.latency import measure
from bench.one_host import one_host

from lab import Host

ROOT = Path(__file__).resolve().parents[2]
GPUS = (0, 1, 2, 3)
WORKER_MIB = 96801
FREE_MIB = 1024
FASTER = 5.0
LATENCY_S = 0.3

UNIT = """[Service]
ExecStart=/opt/vllm/bin/vllm serve /models/MiniMax-M2.5 --served-model-name m --tensor-parallel-size 4 --max-model-len 8192 --port 8000
Environment=CUDA_VISIBLE_DEVICES=0,1,2,3 HOME=/root HF_HUB_OFFLINE=1
KillMode=mixed
Restart=always
TimeoutStopSec=600
"""

BY_HAND = """
timeout 10 systemctl stop vllm-m || systemctl kill -s KILL vllm-m
sleep 3
pkill -9 -f VLLM:: || true
sleep 5
for fd in /proc/[0-9]*/fd; do readlink $fd/* 2>/dev/null | grep -q '^/dev/nvidia' && kill -9 $(basename $(dirname $fd)); done
sleep 2
nvidia-smi --query-gpu=memory.used --format=csv,noheader,nounits >/dev/null
"""


@dataclass(frozen=True)
class Story:
    """One situation: how late each GPU's memory comes back, and how the server behaves."""

    title: str
    delays: tuple[float, ...]
    behaviours: dict[str, Any]


STORIES = (
    Story("memory returns at once", (0, 0, 0, 0), {}),
    Story("one GPU 4 s late", (0, 0, 4, 0), {}),
    Story("one GPU 14 s late", (0, 0, 0, 14), {}),
    Story("server ignores SIGTERM", (0, 0, 0, 0), {"ignore_sigterm": True}),
    Story("workers escape and ignore SIGTERM", (1, 1, 1, 1), {"orphan_workers": True, "escape_cgroup": True}),
)


@dataclass(frozen=True)
class Took:
    """Seconds on the host, and for how many seconds the claim came too early (0: it was true)."""

    seconds: float
    early: float
    command: float  # the whole command on the controller


def start(host: Host, story: Story) -> None:
    """Serve, and wait until every worker holds its memory."""
    host.gpu.clear()
    host.vllm.clear()
    host.vllm.behave("*", load_seconds=0.5, worker_mib=WORKER_MIB, **story.behaviours)
    for gpu, delay in zip(GPUS, story.delays, strict=True):
        host.gpu.set(gpu, release_delay_s=float(delay))
    host.write("/etc/systemd/system/vllm-m.service", UNIT)
    host.run("systemctl daemon-reload; systemctl start vllm-m")
    deadline = time.monotonic() + 60
    while any(host.gpu.used_mib(gpu) < WORKER_MIB for gpu in GPUS):
        assert time.monotonic() < deadline, host.journal("vllm-m.service")
        time.sleep(0.05)


def early(host: Host) -> float:
    """How long after the claim the last of the memory came back."""
    claimed = time.monotonic()
    while any(host.gpu.used_mib(gpu) > FREE_MIB for gpu in GPUS):
        if time.monotonic() - claimed > 60:
            return float("inf")
        time.sleep(0.02)
    waited = time.monotonic() - claimed
    return waited if waited > 0.25 else 0.0  # the time it takes to ask


def ansible(host: Host, module: str, arguments: str) -> tuple[float, str]:
    """One ad hoc task: how long the whole command took, and what it printed."""
    command = [str(Path(sys.executable).parent / "ansible"), host.name, "-i", "inventories/lab", "-m", module, "-a", arguments]
    env = {**os.environ, "ANSIBLE_NOCOLOR": "1", "ANSIBLE_CALLBACK_RESULT_FORMAT": "json"}
    begun = time.monotonic()
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=180, check=False)
    took = time.monotonic() - begun
    if done.returncode:
        raise SystemExit(done.stdout + done.stderr)
    return took, done.stdout


def by_hand(host: Host) -> Took:
    """The pipeline, timed by the host."""
    script = "begun=$(date +%s.%N)\n" + BY_HAND + 'echo "$begun $(date +%s.%N)" >/root/by-hand.times\n'
    # From a file: on a command line, pkill -f would find the script itself.
    host.write("/root/by-hand.sh", script)
    command, _printed = ansible(host, "ansible.builtin.command", "sh /root/by-hand.sh")
    late = early(host)
    begun, ended = host.run("cat /root/by-hand.times").stdout.split()
    host.run("systemctl stop vllm-m; systemctl reset-failed; pkill -9 '^VLLM::' || true")
    return Took(float(ended) - float(begun), late, command)


def by_module(host: Host) -> Took:
    """One task, timed by the host."""
    arguments = {"scope": "services", "services": ["vllm-m"], "gpus": list(GPUS), "grace": 10}
    command, printed = ansible(host, "gpufleet.vllm.gpu_reclaim", json.dumps(arguments))
    result: dict[str, Any] = json.JSONDecoder().raw_decode(printed.partition("=> ")[2])[0]
    return Took(float(result["timings"]["total"]), early(host) if result["freed"] else float("inf"), command)


def main() -> int:
    """Run every story both ways and print the table."""
    failures: list[str] = []
    with one_host() as host:
        print(f"{'':36}{'the clean-up on the host':^42}    {'the whole command':^28}")
        print(f"{'':36}{'by hand':>16}{'gpu_reclaim':>16}{'':>10}    {'by hand':>9}{'gpu_reclaim':>13}")
        for story in STORIES:
            start(host, story)
            hand = by_hand(host)
            start(host, story)
            module = by_module(host)
            ratio = f"{hand.seconds / module.seconds:.1f} x"
            commands = f"{hand.command:7.1f} s{module.command:11.1f} s"
            print(f"{story.title:36}{_cell(hand):>16}{_cell(module):>16}{ratio:>10}    {commands}", flush=True)
            if module.early:
                failures.append(f"gpu_reclaim claimed too early: {story.title}")
            if story is STORIES[0] and hand.seconds < FASTER * module.seconds:
                failures.append(f"gpu_reclaim is not {FASTER:g} times as fast where the memory returns at once")
        nothing, _printed = ansible(host, "ansible.builtin.command", "true")
        print(f"a whole command that does nothing on the host (`ansible -m command -a true`): {nothing:.1f} s")
        print("\nfrom the driver's release to the return, beyond the settle time")
        host.reset()
        for each in measure(host):
            print(f"  {each.delay:4.1f} s until the last GPU is released: {each.beyond:+.3f} s", flush=True)
            if each.beyond > LATENCY_S:
                failures.append(f"gpu_reclaim came back {each.beyond:.2f} s late where the driver took {each.delay:g} s")
            if each.beyond < -0.05:
                failures.append(f"gpu_reclaim came back before the memory was stable for the settle time (driver: {each.delay:g} s)")
    for failure in failures:
        print(failure, file=sys.stderr)
    return 1 if failures else 0


def _cell(took: Took) -> str:
    return f"{took.seconds:.1f} s" + (f", {took.early:.1f} early" if took.early else "")


if __name__ == "__main__":
    sys.exit(main())
