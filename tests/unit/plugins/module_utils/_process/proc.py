# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A /proc made of files, for tests."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Mapping, Sequence


class Proc:
    """Builds processes below a directory, in /proc's own formats."""

    def __init__(self, root: Path) -> None:
        self.path = root
        root.mkdir(parents=True, exist_ok=True)
        (root / "stat").write_text("cpu  1 2 3\nbtime 1700000000\nprocesses 5\n")
        (root / "sys/kernel").mkdir(parents=True, exist_ok=True)
        (root / "sys/kernel/pid_max").write_text("4194304\n")
        (root / "self/ns").mkdir(parents=True, exist_ok=True)
        self.namespace("pid:[4026531836]")

    @property
    def root(self) -> str:
        """What functions take as root."""
        return str(self.path)

    def namespace(self, text: str) -> None:
        """Say which pid namespace the reader is in."""
        link = self.path / "self/ns/pid"
        if link.is_symlink():
            link.unlink()
        link.symlink_to(text)

    def add(
        self,
        pid: int,
        argv: Sequence[str] = ("sleep", "1"),
        comm: str = "",
        ppid: int = 1,
        state: str = "S",
        ticks: int = 100,
        uid: int = 0,
        exe: str = "/usr/bin/sleep",
        cgroup: str = "0::/\n",
        fds: Mapping[int, str] | None = None,
        maps: str = "",
        nspid: str = "",
    ) -> None:
        """One process."""
        base = self.path / str(pid)
        (base / "fd").mkdir(parents=True, exist_ok=True)
        comm = comm or os.path.basename(argv[0])[:15]
        (base / "stat").write_text("%d (%s) %s %d" % (pid, comm, state, ppid) + " 0" * 17 + " %d 0 0\n" % ticks)
        (base / "status").write_text(
            "Name:\t%s\nPid:\t%d\nPPid:\t%d\nUid:\t%d\t%d\t%d\t%d\nNSpid:\t%s\n" % (comm, pid, ppid, uid, uid, uid, uid, nspid or pid)
        )
        (base / "cmdline").write_bytes("\0".join(argv).encode() + b"\0" if argv else b"")
        (base / "cgroup").write_text(cgroup)
        (base / "maps").write_text(maps)
        (base / "wchan").write_text("do_wait")
        link = base / "exe"
        if link.is_symlink():
            link.unlink()
        if exe:
            link.symlink_to(exe)
        for number, target in (fds or {}).items():
            (base / "fd" / str(number)).symlink_to(target)
