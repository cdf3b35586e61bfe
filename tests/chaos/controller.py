# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The machine that begins a swap: the playbook with everything that it starts, and its sudden death."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
_RECAP = re.compile(r"^(\S+)\s+: ok=\d+\s+changed=(\d+)\s+unreachable=(\d+)\s+failed=(\d+)", re.M)


@dataclass(frozen=True)
class Ended:
    """How a playbook ended."""

    rc: int
    out: str
    seconds: float

    def changed(self, host: str) -> int | None:
        """``changed=`` of a host in the recap, None when it isn't there."""
        found = {name: int(changed) for name, changed, _lost, _failed in _RECAP.findall(self.out)}
        return found.get(host)


class Controller:
    """``ansible-playbook playbooks/swap_model.yml`` with connections of its own, which nobody shares."""

    def __init__(self, model: str, hosts: Sequence[str], *words: str) -> None:
        self._sockets = tempfile.TemporaryDirectory(prefix="gfc-", dir="/tmp")
        self._log = tempfile.TemporaryFile()
        command = [str(Path(sys.executable).parent / "ansible-playbook"), "playbooks/swap_model.yml", "-i", "inventories/lab"]
        command += ["-e", f"model={model}", "-e", f"target={','.join(hosts)}", *words]
        environment = {
            **os.environ,
            "ANSIBLE_NOCOLOR": "1",
            "ANSIBLE_SSH_CONTROL_PATH_DIR": self._sockets.name,
            "ANSIBLE_LOCAL_TEMP": self._sockets.name + "/tmp",
        }
        self.begun = time.monotonic()
        self._process = subprocess.Popen(
            command, cwd=ROOT, env=environment, stdin=subprocess.DEVNULL, stdout=self._log, stderr=subprocess.STDOUT, start_new_session=True
        )

    @property
    def running(self) -> bool:
        """Whether the playbook has not ended."""
        return self._process.poll() is None

    def end(self, timeout: float = 300.0) -> Ended:
        """Wait for its end; one that takes too long is killed, and subprocess.TimeoutExpired raised."""
        try:
            rc = self._process.wait(timeout)
        finally:
            seconds = time.monotonic() - self.begun
            self.kill()
        return Ended(rc, self._text, seconds)

    def kill(self) -> Ended:
        """SIGKILL to all at once: the playbook, its workers, each ssh, and the connections that outlive them."""
        seconds = time.monotonic() - self.begun
        # Workers lead sessions of their own, and a shared connection is nobody's child: neither is in the process group.
        # The connections' names and environments hold the directory of their sockets, which is ours alone.
        for _again in range(100):
            pids = {pid for pid in _below(self._process.pid) if _alive(pid)} | _mentioning(self._sockets.name)
            if self._process.poll() is None:
                pids.add(self._process.pid)
            if not pids:
                break
            for pid in pids:
                try:
                    os.kill(pid, signal.SIGKILL)
                except ProcessLookupError:
                    continue
            time.sleep(0.01)
        rc = self._process.wait(10)
        if not self._log.closed:
            self._log.seek(0)
            self._text = self._log.read().decode("utf-8", "replace")
            self._log.close()
            self._sockets.cleanup()
        return Ended(rc, self._text, seconds)


def _below(root: int) -> set[int]:
    children: dict[int, list[int]] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            parent = int(stat.read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()[1])
        except OSError:
            continue
        children.setdefault(parent, []).append(int(stat.parent.name))
    found: set[int] = set()
    waiting = [root]
    while waiting:
        for pid in children.get(waiting.pop(), []):
            found.add(pid)
            waiting.append(pid)
    return found


def _mentioning(directory: str) -> set[int]:
    """Processes whose environment or title names the directory, other than this one."""
    wanted = directory.encode()
    found = set()
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            if wanted in (entry / "cmdline").read_bytes() or wanted in (entry / "environ").read_bytes():
                found.add(int(entry.name))
        except OSError:
            continue
    return {pid for pid in found - {os.getpid()} if _alive(pid)}


def _alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False
