# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Whether files can be opened by the service's user, tried as that user.

A child takes on the user's ids and opens what it is given: whatever decides (mode bits, lists of access rights, a network file
system that makes root nobody) has then decided. Where that can't be tried, because there is no such user yet, the mode bits
are read instead.
"""

from __future__ import annotations

import errno
import json
import os
import select
import stat
import time
from dataclasses import dataclass
from typing import Dict, List, Optional, Sequence, Tuple

from .account import groups_of, ids_of

# A network file system that does not answer must not hold up everything.
_DEADLINE_S = 20.0
_NOBODY = 65534


@dataclass(frozen=True)
class Refused:
    """A path that can't be opened, what stands in the way, and whether that was tried or only read from mode bits."""

    path: str
    culprit: str
    reason: str
    tried: bool


def refused(paths: Sequence[str], user: str, group: str) -> Optional[List[Refused]]:
    """Those of ``paths`` that the user can't open for reading; None when it could not be found out in time."""
    ids = ids_of(user, group)
    if ids is not None and ids[0] != 0 and os.geteuid() == 0:
        errors = _as_user(paths, user, ids)
        if errors is None:
            return None
        groups = groups_of(user, ids[1])
        return [
            Refused(path, _culprit(path, ids[0], groups), os.strerror(number), True)
            for path, number in sorted(errors.items()) if number in (errno.EACCES, errno.EPERM)
        ]
    # A unit without capabilities makes an ordinary user of root as well.
    uid, groups = (ids[0], groups_of(user, ids[1])) if ids is not None else (_NOBODY, [_NOBODY])
    found = []
    for path in paths:
        culprit = _blocking(path, uid, groups)
        if culprit is not None:
            found.append(Refused(path, culprit, os.strerror(errno.EACCES), False))
    return found


def _as_user(paths: Sequence[str], user: str, ids: Tuple[int, int]) -> Optional[Dict[str, int]]:
    """Path -> errno of what a child with the user's ids could not open; None when the child gave no answer."""
    groups = groups_of(user, ids[1])
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        status = 1
        try:
            os.close(reading)
            os.setgroups(groups)
            os.setresgid(ids[1], ids[1], ids[1])
            os.setresuid(ids[0], ids[0], ids[0])
            os.umask(0o077)
            with os.fdopen(writing, "w") as out:
                json.dump(_open_all(paths), out)
            status = 0
        finally:
            os._exit(status)  # nothing of the parent's may run a second time
    os.close(writing)
    text = _read_until(reading, time.monotonic() + _DEADLINE_S)
    os.close(reading)
    if text is None:
        os.kill(child, 9)
        if os.waitpid(child, os.WNOHANG)[0] == 0:
            time.sleep(0.1)
            os.waitpid(child, os.WNOHANG)  # one that hangs in the kernel is left behind rather than waited for
        return None
    _pid, status = os.waitpid(child, 0)
    if status != 0:
        return None
    found: Dict[str, int] = json.loads(text)
    return found


def _read_until(source: int, end: float) -> Optional[str]:
    parts: List[bytes] = []
    while True:
        left = end - time.monotonic()
        if left <= 0 or not select.select([source], [], [], left)[0]:
            return None
        part = os.read(source, 65536)
        if not part:
            return b"".join(parts).decode("utf-8", "surrogateescape")
        parts.append(part)


def _open_all(paths: Sequence[str]) -> Dict[str, int]:
    found = {}
    for path in paths:
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
            try:
                if stat.S_ISDIR(os.fstat(descriptor).st_mode):
                    os.stat(os.path.join(path, "."))  # listing is not enough: it has to be entered as well
            finally:
                os.close(descriptor)
        except OSError as exc:
            found[path] = exc.errno or 0
    return found


def _culprit(path: str, uid: int, groups: Sequence[int]) -> str:
    return _blocking(path, uid, groups) or path


def _blocking(path: str, uid: int, groups: Sequence[int]) -> Optional[str]:
    """The first directory on the way, or the file itself, whose mode bits keep this user out; None where none does."""
    real = os.path.realpath(path)
    parts = real.strip("/").split("/")
    for count in range(len(parts)):
        directory = "/" + "/".join(parts[:count])
        if not _allows(directory, uid, groups, 1):
            return directory
    wanted = 5 if os.path.isdir(real) else 4
    return None if _allows(real, uid, groups, wanted) else real


def _allows(path: str, uid: int, groups: Sequence[int], wanted: int) -> bool:
    try:
        status = os.stat(path)
    except OSError:
        return True  # not there: nothing about access can be said
    mode = status.st_mode
    if status.st_uid == uid:
        mode >>= 6
    elif status.st_gid in groups:
        mode >>= 3
    return mode & wanted == wanted
