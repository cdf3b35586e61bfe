# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The one kernel limit that a dozen hosts run into: inotify instances, counted over all of this machine's hosts.

A host's systemd, D-Bus and login services hold ten; the usual limit is 128 for the whole machine. It is raised while
many hosts are up and put back afterwards.
"""

from __future__ import annotations

import json
import os
from contextlib import AbstractContextManager
from pathlib import Path

from lab import locks
from lab.errors import LabError
from lab.record import boot_id

LIMIT = Path("/proc/sys/fs/inotify/max_user_instances")
PER_HOST = 12
# For what else begins to run on the machine meanwhile.
_SPARE = 40
_NOTE = "inotify-limit.json"


def needed(in_use: int, hosts: int) -> int:
    """The limit that lets ``hosts`` more hosts run where ``in_use`` instances are taken."""
    return in_use + hosts * PER_HOST + _SPARE


def may_restore(in_use: int, limit: int) -> bool:
    """Whether the former limit is wide enough for what runs now: half of it must be free."""
    return in_use <= limit // 2


def make_room(hosts: int, cache: Path) -> None:
    """Raise the limit if ``hosts`` more hosts need it; what it was before any lab raised it is kept in the cache."""
    with _locked(cache):
        wanted = needed(instances_in_use(), hosts)
        if wanted <= current():
            return
        if former(cache) is None:
            note = {"boot": boot_id(), "limit": current()}
            (cache / _NOTE).write_text(json.dumps(note) + "\n", encoding="ascii")
        set_limit(wanted)


def restore(cache: Path) -> None:
    """Put the limit back, unless what else runs (other labs) needs the room: then the last of them does it."""
    with _locked(cache):
        value = former(cache)
        if value is None or not may_restore(instances_in_use(), value):
            return
        set_limit(value)
        (cache / _NOTE).unlink()


def _locked(cache: Path) -> AbstractContextManager[None]:
    return locks.exclusive(cache / "limits.lock", 60.0, "another lab that sets the machine's limits")


def former(cache: Path) -> int | None:
    """The limit before any lab raised it, or None where it is as it was."""
    try:
        note = json.loads((cache / _NOTE).read_text(encoding="ascii"))
    except FileNotFoundError:
        return None
    # A boot of the machine has put the limit back by itself.
    return int(note["limit"]) if note["boot"] == boot_id() else None


def instances_in_use() -> int:
    """The inotify instances that root's processes hold, those in containers included."""
    count = 0
    for process in Path("/proc").iterdir():
        if not process.name.isdigit():
            continue
        try:
            if process.stat().st_uid != 0:
                continue
            links = [os.readlink(process / "fd" / name) for name in os.listdir(process / "fd")]
        except (FileNotFoundError, ProcessLookupError, PermissionError):
            # It ended while it was looked at, or a file was closed; or it has more rights than we (a sandbox's PID 1).
            # Few are missed that way, and there is room to spare.
            continue
        count += links.count("anon_inode:inotify")
    return count


def current() -> int:
    """The limit as it is."""
    return int(LIMIT.read_text(encoding="ascii"))


def set_limit(value: int) -> None:
    """Set the limit."""
    try:
        LIMIT.write_text(str(value), encoding="ascii")
    except OSError as error:
        raise LabError(
            f"so many hosts need fs.inotify.max_user_instances={value}, and it can't be set here ({error.strerror}): "
            f"set it on the machine, or bring up fewer hosts"
        ) from error
