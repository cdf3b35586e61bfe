# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""swap_model.yml against its floor, and against the same swap written with builtin modules.

The floor of a swap is what the servers themselves take: the old one to stop (from systemd's "Stopping" to its "Stopped"), the new one
to load (systemd's ExecMainStart to the server's own line that it listens). Downtime is from the old server's stop to the new
one's first answer to a completion, as its own log has it; total is what the swap says of itself (`timings.total`: from the module's
first look at the host to the new server's place at boot). What is over the floor is overhead; half a second of it is the proof that
the memory stays free. The last column is the whole command, from the shell and back: with the start of Ansible, the login, the plan
that is shown first, and the tables. It is told, not judged, beside what `ansible-playbook` takes for a single ping over the same
inventory (tests/bench/ping.yml), run in turns with the swaps.

The CPU is that of the controller: ansible-playbook and every process that it starts or leaves behind. Both playbooks swap the same
hosts between the same two models, in turns, within one run, once for each of the times that a server loads: 30 s is a small
model, 120 s a big one out of a warm cache. From one host and from all of them follows what a run costs whatever the number
of its hosts, and what each host adds.

    PYTHONPATH=tests python3 -m bench.swap [--hosts 12] [--load SECONDS ...] [--rounds N]

Exits 1 when a target is missed: on one host 2 s of overhead, of the downtime and of the total of each swap; a third of the CPU on
all hosts, for each load. On a machine that has other things to do the seconds tell of those as well: then it says so.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from bench.metered import Cost, metered

from lab import Host, HostSpec, Lab
from lab.places import state_dir
from lab.plan import host_name
from lab.record import load

ROOT = Path(__file__).resolve().parents[2]
LOGS = ROOT / "build" / "bench"
MODELS = ("minimax-m2.5", "kimi-k2.5-int4")
OURS, BUILTIN, PING = "playbooks/swap_model.yml", "tests/bench/builtin_swap.yml", "tests/bench/ping.yml"
OVERHEAD_S = 2.0
SHARE = 1 / 3
# systemd's messages about a unit (systemd-catalog): it forgets a stopped unit's own timestamps as soon as nobody asks for them.
_STOPPING, _STOPPED = "de5b426a63be47a7b6ac3eaac82e2f6f", "9d1aaa27d60140bd96365438aad20286"
_ANSWERED = re.compile(r'"POST /v1/(chat/)?completions HTTP/1\.[01]" 200')
_CLEAN = (
    "systemctl stop 'vllm-*.service'; rm -rf /etc/systemd/system/vllm-* /etc/systemd/system/*.wants/vllm-* /etc/vllm; "
    "systemctl daemon-reload; systemctl reset-failed"
)


@dataclass(frozen=True)
class Overhead:
    """One swap on one host, in seconds."""

    stop: float
    load: float
    downtime: float
    total: float
    command: float

    @property
    def floor(self) -> float:
        """What the servers themselves took."""
        return self.stop + self.load


def play(playbook: str, model: str, hosts: list[str]) -> Cost:
    """Run one of the two playbooks on these hosts, all at a time. SystemExit with its output when it fails."""
    LOGS.mkdir(parents=True, exist_ok=True)
    log = LOGS / f"{Path(playbook).stem}.log"
    command = [str(Path(sys.executable).parent / "ansible-playbook"), playbook, "-i", "inventories/lab", "--forks", str(len(hosts))]
    command += ["-e", f"model={model}", "-e", f"batch={len(hosts)}", "-e", f"target={','.join(hosts)}"]
    cost = metered(command, log, ROOT, {**os.environ, "ANSIBLE_NOCOLOR": "1"}, 1200.0)
    if cost.rc:
        raise SystemExit(f"{' '.join(command)} ended with {cost.rc}\n{log.read_text(encoding='utf-8', errors='replace')}")
    return cost


def back_and_forth(playbook: str, hosts: list[Host], swaps: int, seen: Callable[[str, str, Cost], None]) -> None:
    """Deploy the first model, then swap as often as asked, telling of each swap: the old model, the new one, the cost."""
    names = [host.name for host in hosts]
    for host in hosts:
        host.run(_CLEAN)
    play(playbook, MODELS[0], names)
    old = MODELS[0]
    for number in range(swaps):
        new = MODELS[(number + 1) % 2]
        seen(old, new, play(playbook, new, names))
        old = new


def overhead(host: Host, old: str, new: str, command: float) -> Overhead:
    """What systemd, the new server and the host's own record say of the swap that has just ended; ``command`` is how long all took."""
    stopping = _moments(host, f"UNIT=vllm-{old}.service", f"MESSAGE_ID={_STOPPING}")[-1][0]
    stopped = _moments(host, f"UNIT=vllm-{old}.service", f"MESSAGE_ID={_STOPPED}")[-1][0]
    after = host.systemctl_show(f"vllm-{new}.service", ["ExecMainStartTimestampMonotonic", "InvocationID"])
    started = int(after["ExecMainStartTimestampMonotonic"]) / 1e6
    said = _moments(host, f"_SYSTEMD_INVOCATION_ID={after['InvocationID']}")
    listens = [moment for moment, text in said if "Uvicorn running" in text]
    answers = [moment for moment, text in said if _ANSWERED.search(text)]
    if not listens or not answers:
        raise SystemExit(f"{host.name}: the server of {new} never said that it {'answered' if listens else 'listens'}")
    record = json.loads(host.run("cat /var/lib/gpufleet/change/last.json").stdout)["result"]
    if not record["ready"] or record["unit"] != f"vllm-{new}.service":
        raise SystemExit(f"{host.name}: the last change was not the swap to {new}")
    return Overhead(stopped - stopping, listens[0] - started, answers[0] - stopping, record["timings"]["total"], command)


def _moments(host: Host, *matches: str) -> list[tuple[float, str]]:
    """(monotonic time, text) of the journal's entries that match, in order. SystemExit when there are none."""
    lines = host.journal(None, "--output=json", "--output-fields=MESSAGE", *matches).splitlines()
    if not lines:
        raise SystemExit(f"{host.name}: nothing in the journal for {' '.join(matches)}")
    entries = [json.loads(line) for line in lines]
    return [(int(entry["__MONOTONIC_TIMESTAMP"]) / 1e6, str(entry["MESSAGE"])) for entry in entries]


def one_host(host: Host, swaps: int) -> list[str]:
    """Print the overhead on one host; what missed its target."""
    found: list[Overhead] = []
    pings: list[float] = []

    def seen(old: str, new: str, cost: Cost) -> None:
        found.append(overhead(host, old, new, cost.wall_s))
        pings.append(play(PING, new, [host.name]).wall_s)

    back_and_forth(OURS, [host], swaps, seen)
    titles = ("stop", "load", "floor", "downtime", "over", "total", "over", "command", "over")
    widths = (12, 8, 8, 10, 8, 8, 8, 10, 8)
    print("One host over SSH, swap_model.yml" + "".join(f"{title:>{width}}" for title, width in zip(titles, widths, strict=True)))
    for number, each in enumerate(found, 1):
        over = [value - each.floor for value in (each.downtime, each.total, each.command)]
        cells = (each.stop, each.load, each.floor, each.downtime, over[0], each.total, over[1], each.command, over[2])
        print(f"  swap {number:<26}" + "".join(f"{value:>{width}.2f}" for value, width in zip(cells, widths, strict=True)))
    down, total, command = (
        [value - each.floor for each, value in zip(found, values, strict=True)]
        for values in ([each.downtime for each in found], [each.total for each in found], [each.command for each in found])
    )
    for name, over in (("downtime", down), ("total", total)):
        print(f"  overhead of the {name}: median {median(over):.2f} s, at most {max(over):.2f} s (target: {OVERHEAD_S:g} s for each)")
    print("  the total is the host's own: without Ansible's start, the login, the plan that is shown first, and the tables")
    print(f"  with them the command is {median(command):.2f} s over the floor; a ping takes Ansible {median(pings):.2f} s\n", flush=True)
    return [
        f"the {name} of swap {number} is {over:.2f} s over its floor, more than {OVERHEAD_S:g} s"
        for name, overs in (("downtime", down), ("total", total)) for number, over in enumerate(overs, 1) if over > OVERHEAD_S
    ]


def many_hosts(hosts: list[Host], load: float, rounds: int, swaps: int) -> list[str]:
    """Print the controller's CPU of both playbooks; what missed its target."""
    spent: dict[tuple[str, int], list[Cost]] = {(playbook, number): [] for playbook in (OURS, BUILTIN) for number in (len(hosts), 1)}
    for _round in range(rounds):
        for (playbook, number), costs in spent.items():
            measured(playbook, hosts[:number], load, swaps, costs)
    title = f"{len(hosts)} hosts at a time, servers load for {load:g} s"
    print(f"{title:<44}{'CPU per host':>14}{'each run':>12}{'each host':>12}{'wall':>9}   CPU per host of each swap")
    middle = {}
    for playbook in (OURS, BUILTIN):
        costs = spent[playbook, len(hosts)]
        all_of_them, one = (median(cost.cpu_s for cost in spent[playbook, number]) for number in (len(hosts), 1))
        each = (all_of_them - one) / max(1, len(hosts) - 1)
        middle[playbook] = all_of_them / len(hosts)
        wall = median(cost.wall_s for cost in costs)
        swap_by_swap = " ".join(f"{cost.cpu_s / len(hosts):.3f}" for cost in costs)
        print(f"  {playbook:<42}{middle[playbook]:>12.3f} s{one - each:>10.2f} s{each:>10.3f} s{wall:>7.0f} s   {swap_by_swap}")
    share = middle[OURS] / middle[BUILTIN]
    print(f"  share: {share:.2f} (target: {SHARE:.2f} at most)\n", flush=True)
    return [f"with a load of {load:g} s, swap_model.yml takes {share:.2f} of {BUILTIN}'s CPU, more than a third"] if share > SHARE else []


def measured(playbook: str, hosts: list[Host], load: float, swaps: int, costs: list[Cost]) -> None:
    """Add what each swap costs. The first deployment is not measured, and loads quickly."""
    for host in hosts:
        host.vllm.behave("*", load_seconds=1.0)
        host.run(_CLEAN)
    names = [host.name for host in hosts]
    play(playbook, MODELS[0], names)
    for host in hosts:
        host.vllm.behave("*", load_seconds=load)
    costs += [play(playbook, MODELS[(number + 1) % 2], names) for number in range(swaps)]


def main() -> int:
    """Measure, print, judge."""
    parser = argparse.ArgumentParser(description="swap_model.yml against its floor and against builtin modules")
    parser.add_argument("--hosts", type=int, default=12)
    parser.add_argument("--load", type=float, action="append", help="seconds that a server loads in the comparison of CPU (30 and 120)")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--swaps", type=int, default=2, help="measured swaps of each playbook in each round")
    options = parser.parse_args()
    was_up = load(state_dir()) is not None
    specs = [HostSpec(host_name(number)) for number in range(1, options.hosts + 1)]
    fleet = Lab.up(hosts=1) if was_up else Lab.up(specs=specs[:1])
    failures: list[str] = []
    try:
        # Before the others boot, which takes the machine for a while.
        first = fleet.hosts[specs[0].name]
        fleet.reset([first.name])
        busy = os.getloadavg()[0]
        if busy > 1.0:
            print(f"This machine has other things to do (a load of {busy:.1f}): the seconds below tell of them as well.")
        failures += one_host(first, 5)
        fleet = Lab.up(hosts=options.hosts) if was_up else Lab.up(specs=specs)
        hosts = [fleet.hosts[spec.name] for spec in specs]
        fleet.reset([host.name for host in hosts])
        print("A poll of the builtin playbook comes every 5 s from the controller; ours wait on the hosts.")
        for seconds in options.load or (30.0, 120.0):
            failures += many_hosts(hosts, seconds, options.rounds, options.swaps)
    finally:
        if was_up:
            fleet.reset([spec.name for spec in specs if spec.name in fleet.hosts])
        else:
            fleet.down()
    for failure in failures:
        print(failure, file=sys.stderr)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
