# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Trees of real processes, made by forking: a process that reads one tree per line and starts it.

A line is a JSON list of processes: {"parent": index or null, "name": short name, "deaf": bool, "reaps": bool, "session": bool (leads a
session of its own), "threads": number of further threads, "forks": bool (forks a child when it is told to end), "stopped": bool
(stops itself), "leaves": seconds after which it ends by itself, or null, "zombie": bool (has ended when its pid is told, and its
parent, where that does not reap, leaves it a zombie)}. The answer is a JSON list of their pids. Every process, and
every child that one forks, writes a line "pid signal" to the log when a SIGTERM reaches it, and ends then unless it is deaf. "end"
ends what still lives of the last tree.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys
import threading
import time
from typing import Any, Dict, List, NoReturn, Optional

_PR_SET_NAME = 15


def _live(tree: List[Dict[str, Any]], index: int, report: int, log: int) -> NoReturn:
    """Be one process of a tree: start the children, tell the pid, wait for signals."""
    me = tree[index]
    if me["session"]:
        os.setsid()
    ctypes.CDLL(None).prctl(_PR_SET_NAME, me["name"].encode(), 0, 0, 0)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN if me["reaps"] else signal.SIG_DFL)

    def told(number: int, _frame: Optional[object]) -> None:
        os.write(log, b"%d %d\n" % (os.getpid(), number))
        if me["forks"] and os.fork() == 0:
            me["forks"] = me["deaf"] = False
            time.sleep(1.0)  # it outlives its parent, on no GPU, and is nobody's to end; then it goes by itself
            os._exit(0)
        if not me["deaf"]:
            os._exit(0)

    signal.signal(signal.SIGTERM, told)
    for child, process in enumerate(tree):
        if process["parent"] == index and os.fork() == 0:
            _live(tree, child, report, log)
    for _number in range(me["threads"]):
        threading.Thread(target=time.sleep, args=(600,), daemon=True).start()
    os.write(report, b"%d %d\n" % (index, os.getpid()))
    if me["zombie"]:
        os._exit(0)
    if me["leaves"] is not None:
        time.sleep(me["leaves"])
        os._exit(0)
    if me["stopped"]:
        os.kill(os.getpid(), signal.SIGSTOP)
    while True:
        time.sleep(600)


def _plant(tree: List[Dict[str, Any]], log: int) -> List[int]:
    reading, writing = os.pipe()
    for index, process in enumerate(tree):
        if process["parent"] is None and os.fork() == 0:
            os.close(reading)
            _live(tree, index, writing, log)
    os.close(writing)
    pids = [0] * len(tree)
    text = b""
    while text.count(b"\n") < len(tree):
        text += os.read(reading, 65536)
    os.close(reading)
    for line in text.splitlines():
        position, pid = line.split()
        pids[int(position)] = int(pid)
    return pids


def main() -> None:
    """Serve until standard input ends."""
    log = os.open(sys.argv[1], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    pids: List[int] = []
    for line in sys.stdin:
        if line.strip() == "end":
            for pid in pids:
                try:
                    os.kill(pid, signal.SIGKILL)
                except ProcessLookupError:
                    continue
            pids = []
            print("[]", flush=True)
        else:
            pids = _plant(json.loads(line), log)
            print(json.dumps(pids), flush=True)


if __name__ == "__main__":
    main()
