# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Reading one process, or all, from /proc. A process that ends while it is read is simply not there (None)."""

from __future__ import annotations

import os
import pwd
from typing import Dict, List, Optional, Tuple

from .types import ProcessInfo


def read_process(pid: int, root: str = "/proc", title: bool = True) -> Optional[ProcessInfo]:
    """Everything about one process; None when there is none with this pid. Never raises for what /proc refuses.

    Without ``title`` the command line is left alone: reading it takes the process's memory lock, which never comes when one of
    its threads is stuck in the kernel.
    """
    base = "%s/%d" % (root, pid)
    stat = parse_stat(_text(base + "/stat"))
    if stat is None:
        return None
    status = parse_status(_text(base + "/status") or "")
    uid = _first_int(status.get("Uid", ""))
    if uid is None:
        return None
    raw = (_bytes(base + "/cmdline") or b"") if title else b""
    argv = split_cmdline(raw)
    return ProcessInfo(
        pid=pid,
        ppid=stat.ppid,
        comm=stat.comm,
        state=stat.state,
        start_ticks=stat.start_ticks,
        start_time=_start_time(stat.start_ticks, root),
        uid=uid,
        user=user_name(uid),
        cmdline=" ".join(part for part in argv if part),
        argv=argv,
        exe=_link(base + "/exe"),
        nspids=tuple(int(word) for word in status.get("NSpid", "").split() if word.isdigit()),
        wchan=_wchan(base),
        terminal=stat.terminal,
    )


class Stat:
    """The fields of /proc/PID/stat that matter here."""

    __slots__ = ("comm", "state", "ppid", "start_ticks", "terminal")

    def __init__(self, comm: str, state: str, ppid: int, start_ticks: int, terminal: int) -> None:
        self.comm = comm
        self.state = state
        self.ppid = ppid
        self.start_ticks = start_ticks
        self.terminal = terminal


def parse_stat(text: Optional[str]) -> Optional[Stat]:
    """Read stat; the name in parentheses may hold blanks and parentheses itself, so that only the last ``)`` counts."""
    if not text:
        return None
    opened, closed = text.find("("), text.rfind(")")
    fields = text[closed + 1:].split()
    if opened < 0 or closed < opened or len(fields) < 20:
        return None
    try:
        return Stat(text[opened + 1:closed], fields[0], int(fields[1]), int(fields[19]), int(fields[4]))
    except ValueError:
        return None


def parse_status(text: str) -> Dict[str, str]:
    """The ``Key:<tab>value`` lines of /proc/PID/status."""
    found: Dict[str, str] = {}
    for line in text.splitlines():
        key, colon, value = line.partition(":")
        if colon:
            found[key] = value.strip()
    return found


def split_cmdline(raw: bytes) -> Tuple[str, ...]:
    """The arguments of /proc/PID/cmdline; a title set by the process may lack the NUL between and have many behind."""
    text = raw.decode("utf-8", "replace").rstrip("\0")
    return tuple(text.split("\0")) if text else ()


def start_ticks(pid: int, root: str = "/proc") -> Optional[int]:
    """Only field 22 of stat: the cheap half of an identity."""
    stat = parse_stat(_text("%s/%d/stat" % (root, pid)))
    return None if stat is None else stat.start_ticks


def parent_of(pid: int, root: str = "/proc") -> Optional[int]:
    """The parent's pid (0 for none or one outside the namespace), None when there is no such process."""
    stat = parse_stat(_text("%s/%d/stat" % (root, pid)))
    return None if stat is None else stat.ppid


def ancestors(pid: int, root: str = "/proc") -> List[int]:
    """The process itself, its parent, and so on up to pid 1."""
    line: List[int] = []
    current: Optional[int] = pid
    while current and current not in line:
        line.append(current)
        current = parent_of(current, root)
    return line


def pid_max(root: str = "/proc") -> int:
    """The largest pid that the kernel gives out; the 64-bit maximum where it can't be read."""
    return _first_int(_text(root + "/sys/kernel/pid_max") or "") or 4194304


def in_initial_pid_namespace(root: str = "/proc") -> bool:
    """Whether we see the machine's own pids. Where not (a container), a number the driver gives may be another's pid."""
    # /proc/1/ns/pid of the machine itself points at this inode (PROC_PID_INIT_INO in the kernel's proc_ns.h)
    return _link(root + "/self/ns/pid") in (None, "pid:[4026531836]")


def user_name(uid: int) -> str:
    """The account's name, or the number itself where the host knows none (as in containers)."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def has_account(name: str) -> bool:
    """Whether the host knows a user of this name."""
    try:
        pwd.getpwnam(name)
    except (KeyError, ValueError):
        return False
    return True


def cgroup_text(pid: int, root: str = "/proc") -> str:
    """/proc/PID/cgroup, empty when it can't be read."""
    return _text("%s/%d/cgroup" % (root, pid)) or ""


def _start_time(ticks: int, root: str) -> Optional[float]:
    for line in (_text(root + "/stat") or "").splitlines():
        if line.startswith("btime "):
            boot = _first_int(line[6:])
            if boot is not None:
                return round(boot + ticks / os.sysconf("SC_CLK_TCK"), 2)
    return None


def _wchan(base: str) -> Optional[str]:
    text = (_text(base + "/wchan") or "").strip()
    return text if text not in ("", "0") else None


def _first_int(text: str) -> Optional[int]:
    words = text.split()
    return int(words[0]) if words and words[0].isdigit() else None


def _text(path: str) -> Optional[str]:
    raw = _bytes(path)
    return None if raw is None else raw.decode("utf-8", "replace")


def _bytes(path: str) -> Optional[bytes]:
    try:
        with open(path, "rb") as handle:
            return handle.read()
    except OSError:
        return None  # ended meanwhile (ENOENT, ESRCH) or not ours to read (EACCES): unknown either way


def _link(path: str) -> Optional[str]:
    try:
        return os.readlink(path)
    except OSError:
        return None
