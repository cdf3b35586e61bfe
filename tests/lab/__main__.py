# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The lab's command line: ``python3 -m lab up|down|status|reset|ssh|inventory|prune|prereq``."""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Sequence

from lab import fleet, places, plan, prereq, prune
from lab.errors import LabError
from lab.fleet import Lab
from lab.host import Host


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="lab", description="Real systemd hosts on this machine, with simulated GPUs.")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    up = commands.add_parser("up", help="bring hosts up; those that are up stay as they are")
    up.add_argument("--hosts", type=int, default=3, metavar="N", help="how many (3)")
    up.add_argument("--base", choices=(*plan.BASES, plan.MIXED), help="their distribution (two bookworm to one trixie)")
    commands.add_parser("down", help="take everything down; nothing stays but the cache")
    status = commands.add_parser("status", help="list the hosts")
    status.add_argument("--json", action="store_true", help="as JSON")
    reset = commands.add_parser("reset", help="put hosts back to a clean state")
    reset.add_argument("names", nargs="*", metavar="HOST", help="all if none is named")
    ssh = commands.add_parser("ssh", help="log in to a host, or run a command there")
    ssh.add_argument("host")
    ssh.add_argument("words", nargs=argparse.REMAINDER, metavar="COMMAND")
    commands.add_parser("inventory", help="print the hosts as a dynamic inventory")
    commands.add_parser("prune", help="delete what of the cache neither a current recipe nor a running host uses")
    commands.add_parser("prereq", help="say what this machine lacks")
    return parser


def _host(lab: Lab, name: str) -> Host:
    if name not in lab.hosts:
        raise LabError(f"no host {name} in the lab; there are {', '.join(lab.hosts) or 'none'}")
    return lab.hosts[name]


def _print_status(lab: Lab) -> None:
    rows = lab.status()
    columns = ("name", "address", "state", "base", "cgroup", "gpus", "pynvml")
    table = [columns, *(tuple(str(row[column]) for column in columns) for row in rows)]
    widths = [max(len(line[column]) for line in table) for column in range(len(columns))]
    for line in table:
        print("  ".join(word.ljust(width) for word, width in zip(line, widths, strict=True)).rstrip())


def _run(options: argparse.Namespace) -> int:
    if options.command == "prereq":
        prereq.check()
        print("nothing is missing")
    elif options.command == "prune":
        for path in prune.prune(places.cache_dir()):
            print(f"deleted {path}")
    elif options.command == "up":
        start = time.monotonic()
        lab = Lab.up(options.hosts, options.base)
        _print_status(lab)
        print(f"up in {time.monotonic() - start:.1f} s")
    elif options.command == "down":
        print("the lab is down" if fleet.down() else "no lab is up")
    elif options.command == "status":
        lab = Lab.attach()
        if options.json:
            print(json.dumps(lab.status(), indent=1))
        else:
            _print_status(lab)
    elif options.command == "reset":
        lab = Lab.attach()
        lab.reset([_host(lab, name).name for name in options.names] or None)
    elif options.command == "inventory":
        print(json.dumps(Lab.attach().inventory(), indent=1))
    elif options.command == "ssh":
        host = _host(Lab.attach(), options.host)
        sys.stdout.flush()
        os.execvp("ssh", ["ssh", *host.ssh_args, *options.words])
    return 0


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command. Exit codes: 0 done, 1 not possible (the message says why), 2 bad arguments."""
    options = _parser().parse_args(arguments)
    try:
        return _run(options)
    except LabError as error:
        print(f"lab: {error}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
