# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Programs that hold GPU memory on a lab host, each started as the kind of process that people find on theirs."""

from __future__ import annotations

import itertools
import shlex
import time
from collections.abc import Sequence
from dataclasses import dataclass

from lab import Host

_numbers = itertools.count(1)
_UP_S = 10.0


@dataclass(frozen=True)
class Program:
    """A program that runs: its pid, the pid of its forked child (None without one), and its unit."""

    pid: int
    child: int | None
    unit: str


class Programs:
    """Starts them on one host."""

    def __init__(self, host: Host) -> None:
        self.host = host
        self.client = host.run("ls /opt/vllm/lib/python3*/site-packages/lab/driver/client.py").stdout.strip()

    def orphan(self, gpus: Sequence[int] = (0,), mib: int = 96000, name: str = "VLLM::Worker_TP0", options: str = "") -> Program:
        """A vLLM worker whose service is gone: it outlived its unit, in whose cgroup it still is."""
        unit = f"old-{next(_numbers)}"
        command = self._command(gpus, mib, name, options)
        # The shell is the unit's main process; when it ends, the unit is down and KillMode=process leaves the rest.
        program = self._run(unit, f"{command} & sleep 0.5", "-p", "KillMode=process")
        deadline = time.monotonic() + _UP_S
        while self.host.run(["systemctl", "is-active", "--quiet", program.unit], check=False).returncode == 0:
            assert time.monotonic() < deadline, f"{program.unit} is still active after {_UP_S} s"
            time.sleep(0.05)
        return program

    def service(
        self,
        unit: str,
        gpus: Sequence[int] = (0,),
        mib: int = 96000,
        name: str = "python3",
        options: str = "",
        properties: Sequence[str] = ("Restart=always", "RestartSec=0.2"),
    ) -> Program:
        """The main process of a service that systemd starts again when it dies."""
        words = [word for each in properties for word in ("-p", each)]
        return self._run(unit, "exec " + self._command(gpus, mib, name, options), *words)

    def job(self, gpus: Sequence[int] = (0,), mib: int = 96000, name: str = "python3", options: str = "", unit: str = "") -> Program:
        """Somebody's program in a scope of its own: nothing starts it again."""
        unit = unit or f"job-{next(_numbers)}"
        out = f"/run/{unit}.out"
        command = f"{self._command(gpus, mib, name, options)} >{out} 2>&1 </dev/null &"
        self.host.run(["systemd-run", "--quiet", "--scope", f"--unit={unit}", "sh", "-c", command])
        return self._started(unit + ".scope", out)

    def alive(self, pid: int) -> bool:
        """Whether the process runs: a zombie does not."""
        return self.host.run(f"grep -q '^State:.[^ZX]' /proc/{pid}/status", check=False).returncode == 0

    def main_pid(self, unit: str) -> int:
        """The main process of a unit now, 0 for none."""
        return int(self.host.systemctl_show(unit, ("MainPID",))["MainPID"])

    def _command(self, gpus: Sequence[int], mib: int, name: str, options: str) -> str:
        where = " ".join(f"--gpu {gpu}" for gpu in gpus)
        return f"/usr/bin/python3 {self.client} {where} --mib {mib} --name {shlex.quote(name)} {options}".strip()

    def _run(self, unit: str, script: str, *words: str) -> Program:
        out = f"/run/{unit}.out"
        self.host.run(f"rm -f {out}")
        self.host.run(
            ["systemd-run", "--quiet", "--collect", f"--unit={unit}", *words, "-p", f"StandardOutput=append:{out}", "sh", "-c", script]
        )
        return self._started(unit + ".service", out)

    def _started(self, unit: str, out: str) -> Program:
        deadline = time.monotonic() + _UP_S
        while True:
            for line in self.host.run(f"cat {out} 2>/dev/null || true").stdout.splitlines():
                words = line.split()
                if words[:1] == ["holding"]:
                    return Program(int(words[1]), int(words[2]) if len(words) > 2 else None, unit)
            assert time.monotonic() < deadline, f"{unit} holds nothing after {_UP_S} s:\n{self.host.run(f'cat {out}; true').stdout}"
            time.sleep(0.05)
