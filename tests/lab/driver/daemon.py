# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The process in the kernel module's place: python3 -m lab.driver.daemon --dir DIR.

It runs outside the host, so that it sees every process of the host; DIR is shown to the host. It serves
DIR/driver.sock and follows DIR/scenario.json (the default machine where there is none). It ends on SIGTERM.
"""

from __future__ import annotations

import argparse
import os
import signal
import socket
import sys
from pathlib import Path

from .scenario import Scenario
from .server import Server


def _in_use(path: Path) -> bool:
    probe = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        probe.connect(str(path))
    except OSError:
        return False
    finally:
        probe.close()
    return True


def main(arguments: list[str] | None = None) -> int:
    """Serve until SIGTERM or SIGINT. Exit codes: 0 ended as asked, 1 another driver serves this directory."""
    parser = argparse.ArgumentParser(description="A simulated NVIDIA driver for one host.")
    parser.add_argument("--dir", type=Path, required=True, help="where the socket and the scenario are")
    parser.add_argument("--seed", default="", help="makes this host's GPU UUIDs its own, if there is no scenario yet")
    parser.add_argument("--gpus", type=int, default=8, help="number of GPUs, if there is no scenario yet")
    parser.add_argument("--ready-fd", type=int, help="descriptor to which one line is written when it serves")
    parser.add_argument("--life-fd", type=int, help="end when this descriptor's other end is closed: its owner is gone")
    options = parser.parse_args(arguments)

    options.dir.mkdir(parents=True, exist_ok=True)
    server = Server(options.dir)
    if _in_use(server.socket_path):
        print(f"another driver serves {options.dir}", file=sys.stderr)
        return 1
    if not server.scenario_path.exists():
        first = Scenario.from_dict({"seed": options.seed, "gpus": options.gpus})
        server.scenario_path.write_text(first.to_json() + "\n", encoding="utf-8")
    server.reload()

    stop_reader, stop_writer = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
    signal.set_wakeup_fd(stop_writer)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda _number, _frame: None)
    server.listen()
    if options.ready_fd is not None:
        os.write(options.ready_fd, b"ready\n")
        os.close(options.ready_fd)
    try:
        server.run([stop_reader] if options.life_fd is None else [stop_reader, options.life_fd])
    finally:
        server.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
