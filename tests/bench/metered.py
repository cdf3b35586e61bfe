# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Run a command and say what CPU it cost, with every process that it left behind.

    python3 -m bench.metered COST.json COMMAND...

SSH's shared connections outlive the playbook that opened them and are nobody's children then. This process adopts them
(PR_SET_CHILD_SUBREAPER), ends them with the command, and counts them in.
"""

from __future__ import annotations

import ctypes
import json
import os
import resource
import signal
import subprocess
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path

_PR_SET_CHILD_SUBREAPER = 36


@dataclass(frozen=True)
class Cost:
    """A command's exit status, its wall time, and the CPU seconds of all its processes."""

    rc: int
    wall_s: float
    user_s: float
    system_s: float

    @property
    def cpu_s(self) -> float:
        """User and system time."""
        return self.user_s + self.system_s


def metered(command: list[str], log: Path, cwd: Path, env: dict[str, str], timeout: float = 600.0) -> Cost:
    """Run a command in a process of its own that does the counting; its output goes to ``log``."""
    answer = log.with_suffix(".cost")
    answer.unlink(missing_ok=True)
    argv = [sys.executable, str(Path(__file__).resolve()), str(answer), *command]
    with log.open("wb") as out:
        subprocess.run(argv, cwd=cwd, env=env, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT, timeout=timeout, check=True)
    return Cost(**json.loads(answer.read_text(encoding="ascii")))


def main() -> int:
    """Run what the command line says."""
    answer, *command = sys.argv[1:]
    if ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_CHILD_SUBREAPER)")
    begun = time.monotonic()
    rc = subprocess.run(command, check=False).returncode
    wall = time.monotonic() - begun
    _end_those_left()
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    Path(answer).write_text(json.dumps(asdict(Cost(rc, wall, used.ru_utime, used.ru_stime))), encoding="ascii")
    return 0


def _end_those_left() -> None:
    """End our adopted children and reap them: only what is reaped is counted."""
    while True:
        for pid in _children():
            os.kill(pid, signal.SIGTERM)
        try:
            os.wait()
        except ChildProcessError:
            return


def _children() -> list[int]:
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[1]) == os.getpid():
            found.append(int(stat.parent.name))
    return found


if __name__ == "__main__":
    sys.exit(main())
