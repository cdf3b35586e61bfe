# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""``make chaos``: swaps on lab hosts that are disturbed in every way; ends with 1 when a host was left in disorder once.

    PYTHONPATH=tests python3 -m chaos [--seed N] [--controller 40] [--job 20] [--power 10] [--hosts 3] [--only job:7]

A seed names all moments; without one a new seed is drawn and printed. ``--only job:7`` or ``--only "new model: bad argument"``
repeats a single try, ``--only "new model"`` a group; it can be given more than once.
What a power cut in the lab does not take away is what the host has in its page cache: the disk keeps it.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any

from chaos.drained import drained
from chaos.failing import FAILING, Failing, Fails
from chaos.moments import Try, again, tries
from chaos.rolling import rolling
from chaos.subject import Outcome, Subject
from lab import Host, HostSpec, Lab
from lab.places import state_dir
from lab.plan import BASES, host_name
from lab.record import load

LOGS = Path(__file__).resolve().parents[2] / "build" / "chaos"
KINDS = {"controller": "controller killed", "job": "job killed", "power": "power cut", "new model": "new model fails"}
# Those that come at a moment, which may miss the swap.
MOMENTS = ("controller", "job", "power")
_ROUNDS = 4
_COLUMNS = ("kind", "tries", "hit", "old serves", "new serves", "neither, told", "re-run ok", "slowest rest", "wrong")

Work = Callable[[Subject], Outcome]


def works(options: argparse.Namespace) -> list[Work]:
    """Everything that is to be tried on one host at a time, mixed, so that each host sees each kind."""
    found: list[Work] = []

    def fail(failing: Failing) -> Work:
        return lambda subject: Fails(subject).run(failing)

    for kind in MOMENTS:
        found += [
            disturb(one) for one in tries(kind, getattr(options, kind), options.seed) if wanted(options.only, kind, f"{kind}:{one.number}")
        ]
    if options.failing:
        found += [fail(failing) for failing in FAILING if wanted(options.only, "new model", f"new model: {failing.name}")]
    random.Random(options.seed).shuffle(found)
    return found


def disturb(one: Try) -> Work:
    """One disturbance, on whichever host comes first."""
    return lambda subject: subject.disturb(one)


def works_again(outcomes: Sequence[Outcome], asked: Mapping[str, int], seed: int) -> list[Work]:
    """Others for those that came too late or too early, so that as many swaps are disturbed as were ``asked`` for of each kind."""
    found: list[Work] = []
    for kind, count in asked.items():
        hits = [outcome.hit for outcome in outcomes if outcome.kind == kind]
        if hits:
            found += [disturb(one) for one in again(kind, max(0, min(count, len(hits)) - sum(hits)), max(count, len(hits)), seed)]
    return found


def wanted(only: Sequence[str], *names: str) -> bool:
    """Whether something that goes by these names is to be tried."""
    return not only or any(name in only for name in names)


def run(hosts: Sequence[Host], todo: Sequence[Work], seed: int) -> list[Outcome]:
    """Do all of it, one at a time on each host, the hosts side by side."""
    waiting: SimpleQueue[Work] = SimpleQueue()
    for work in todo:
        waiting.put(work)
    outcomes: list[Outcome] = []

    def one_host(host: Host) -> None:
        subject = Subject(host)
        subject.prepare()
        while True:
            try:
                work = waiting.get_nowait()
            except Empty:
                return
            outcome = work(subject)
            outcomes.append(outcome)
            tell(outcome, len(outcomes), len(todo), seed)

    if todo:
        with ThreadPoolExecutor(len(hosts)) as pool:
            list(pool.map(one_host, hosts[: len(todo)]))
    return outcomes


def tell(outcome: Outcome, number: int, total: int, seed: int) -> None:
    """One line for each try; for one that went wrong, everything that is needed to repeat and understand it."""
    rest = "-" if outcome.rest_s is None else f"{outcome.rest_s:.1f} s"
    verdict = "WRONG" if outcome.wrong else "ok"
    print(f"[{number}/{total}] {outcome.host} {outcome.what}: {outcome.end or '-'} serves, at rest after {rest}, {verdict}", flush=True)
    if outcome.wrong:
        LOGS.mkdir(parents=True, exist_ok=True)
        log = LOGS / f"{seed}-{outcome.what.partition(' at ')[0].replace(':', '-').replace(' ', '_')}.log"
        log.write_text("\n".join([f"seed {seed}, {outcome.host}, {outcome.what}", *outcome.wrong, *outcome.told]), encoding="utf-8")
        for wrong in outcome.wrong:
            print(f"    {wrong}")
        print(f"    seed {seed}; output and journal: {log}", flush=True)


def table(outcomes: Sequence[Outcome]) -> str:
    """The figures, a line for each kind."""
    rows: list[tuple[str, ...]] = [_COLUMNS]
    for kind, title in KINDS.items():
        of_kind = [outcome for outcome in outcomes if outcome.kind == kind]
        if not of_kind:
            continue
        rests = [outcome.rest_s for outcome in of_kind if outcome.rest_s is not None]
        ends = [outcome.end for outcome in of_kind]
        counts: list[Any] = [len(of_kind), sum(outcome.hit for outcome in of_kind), ends.count("old"), ends.count("new")]
        counts += [ends.count("reported"), sum(outcome.again_ok for outcome in of_kind), f"{max(rests, default=0.0):.1f} s"]
        counts.append(sum(bool(outcome.wrong) for outcome in of_kind))
        rows.append((title, *map(str, counts)))
    widths = [max(len(row[column]) for row in rows) for column in range(len(_COLUMNS))]
    return "\n".join("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run what is asked for, print the figures, judge."""
    parser = argparse.ArgumentParser(prog="chaos", description="Disturb swaps on lab hosts in every way.")
    parser.add_argument("--seed", type=int, default=int.from_bytes(random.SystemRandom().randbytes(3), "big"))
    parser.add_argument("--controller", type=int, default=40, help="times that the controller is killed (40)")
    parser.add_argument("--job", type=int, default=20, help="times that the job on the host is killed (20)")
    parser.add_argument("--power", type=int, default=10, help="times that the host loses its power (10)")
    parser.add_argument("--no-failing", dest="failing", action="store_false", help="leave out the new models that fail")
    parser.add_argument("--no-drain", dest="drain", action="store_false", help="leave out the drained swaps")
    parser.add_argument("--rolling", type=int, default=12, metavar="HOSTS", help="hosts of the rolling swap (12; 0: none)")
    parser.add_argument("--hosts", type=int, default=3, help="hosts that are disturbed side by side (3)")
    parser.add_argument(
        "--only", action="append", default=[], metavar="KIND[:NUMBER]", help="one try or group: job:7, power, 'new model', drain, rolling"
    )
    options = parser.parse_args(arguments)
    drain, roll = options.drain and wanted(options.only, "drain"), options.rolling and wanted(options.only, "rolling")
    print(f"seed {options.seed}", flush=True)
    todo = works(options)
    begun = time.monotonic()
    was_up = load(state_dir()) is not None
    wrong: list[str] = []
    said: list[str] = []
    outcomes: list[Outcome] = []
    try:
        if todo or drain:
            specs = [HostSpec(host_name(number), BASES[number % 3 == 0]) for number in range(1, options.hosts + 1)]
            hosts = [Lab.up(specs=specs).hosts[spec.name] for spec in specs]
            outcomes = run(hosts, todo, options.seed)
            asked = {kind: getattr(options, kind) for kind in MOMENTS}
            # A single try that is repeated by its name has its moment, hit or missed.
            for _round in range(_ROUNDS if set(options.only) <= set(KINDS) else 0):
                outcomes += run(hosts, works_again(outcomes, asked, options.seed), options.seed)
            if drain:
                for balanced in (True, False):
                    wrong += drained(hosts[0], balanced, said)
        if roll:
            count = options.rolling
            specs = [HostSpec(host_name(number), BASES[number % 3 == 0]) for number in range(1, count + 1)]
            fleet = Lab.up(specs=specs)
            fleet.reset([spec.name for spec in specs])
            wrong += rolling([fleet.hosts[spec.name] for spec in specs], count // 3, count // 2, said)
    finally:
        if not was_up:
            Lab.attach().down()
    if not (todo or drain or roll):
        wrong.append(f"nothing is called {' or '.join(options.only)}, so nothing was tried")
    wrong += [f"{outcome.what}: {text}" for outcome in outcomes for text in outcome.wrong]
    for kind in MOMENTS:
        hits = [outcome.hit for outcome in outcomes if outcome.kind == kind]
        if len(hits) >= getattr(options, kind) > sum(hits):
            wrong.append(f"{KINDS[kind]}: only {sum(hits)} of {len(hits)} moments found a swap under way, so too little was tried")
    print(f"\nseed {options.seed}, {time.monotonic() - begun:.0f} s")
    if outcomes:
        print(table(outcomes))
    for text in [*said, *(f"WRONG: {text}" for text in wrong)]:
        print(text)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
