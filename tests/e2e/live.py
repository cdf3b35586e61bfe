# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A swap that runs while a test does something to it: begun, watched line by line, and ended at any time."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from e2e.playbook import ROOT


class LiveSwap:
    """swap_model.yml as a process group of its own; what it prints goes to a file that is read again and again."""

    def __init__(self, directory: Path, model: str, *arguments: str, **env: str) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self.log = directory / "out"
        # SSH's shared connections of this run alone, so that no other test's are touched. A test's own directory may be too deep: the
        # path of a Unix socket has 107 bytes.
        self.sockets = Path(tempfile.mkdtemp(prefix="gpufleet-cp-"))
        command = [str(Path(sys.executable).parent / "ansible-playbook"), "playbooks/swap_model.yml", "-i", "inventories/lab"]
        full = {**os.environ, "ANSIBLE_NOCOLOR": "1", "ANSIBLE_FORCE_COLOR": "0", "PYTHONUNBUFFERED": "1", **env}
        full["ANSIBLE_SSH_CONTROL_PATH_DIR"] = str(self.sockets)
        with self.log.open("wb") as out:
            self.process = subprocess.Popen([*command, "-e", f"model={model}", *arguments], cwd=ROOT, env=full, stdin=subprocess.DEVNULL,
                                            stdout=out, stderr=subprocess.STDOUT, start_new_session=True)  # fmt: skip

    def __enter__(self) -> LiveSwap:
        return self

    def __exit__(self, *_exc: Any) -> None:
        self.kill()

    @property
    def out(self) -> str:
        """What it has printed so far."""
        return self.log.read_text(encoding="utf-8", errors="replace")

    def wait_for(self, text: str, timeout: float = 120.0) -> None:
        """Wait until it has printed this; fails when it ends before."""
        end = time.monotonic() + timeout
        while text not in self.out:
            assert self.process.poll() is None and time.monotonic() < end, f"{text!r} was not printed\n{self.out}"
            time.sleep(0.1)

    def end(self, timeout: float = 300.0) -> int:
        """Its exit status, once it has ended by itself."""
        return self.process.wait(timeout)

    def masters(self) -> list[int]:
        """The shared SSH connections that this run has opened."""
        found = []
        for entry in Path("/proc").glob("[0-9]*/cmdline"):
            try:
                words = entry.read_bytes().replace(b"\0", b" ").decode("utf-8", "replace")
            except OSError:
                continue
            if words.startswith("ssh: ") and str(self.sockets) in words:
                found.append(int(entry.parent.name))
        return found

    def kill(self) -> None:
        """SIGKILL to the playbook, its workers, and every connection."""
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait(30)
        for pid in self.masters():
            os.kill(pid, signal.SIGKILL)
        shutil.rmtree(self.sockets, ignore_errors=True)
