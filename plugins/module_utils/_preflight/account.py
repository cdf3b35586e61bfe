# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The user that the service runs as."""

from __future__ import annotations

import glob
import grp
import os
import pwd
import re
import shutil
from typing import List, Optional, Tuple

from .._model.parallel import Check
from .asked import Asked, fail, passed

_SYSTEM = "/usr/sbin:/sbin:/usr/bin:/bin"


# Below are system users, whose shared memory logind leaves alone.
_FIRST_LOGIN_UID = 1000
_LOGIND = ("usr/lib/systemd", "usr/local/lib/systemd", "run/systemd", "etc/systemd")


def removes_ipc(root: str = "/") -> bool:
    """Whether logind removes what login users leave in shared memory; it does unless it is told not to. The last word counts."""
    files = [os.path.join(root, place, "logind.conf") for place in _LOGIND]
    drop_ins = {os.path.basename(path): path for place in _LOGIND for path in glob.glob(os.path.join(root, place, "logind.conf.d/*.conf"))}
    found = True
    for path in [path for path in files if os.path.isfile(path)] + [drop_ins[name] for name in sorted(drop_ins)]:
        try:
            with open(path, encoding="utf-8", errors="replace") as handle:
                words = [line.partition("=")[2].strip().lower() for line in handle if re.match(r"\s*RemoveIPC\s*=", line)]
        except OSError:
            continue
        found = words[-1] not in ("no", "false", "off", "0") if words else found
    return found


def ids_of(user: str, group: str) -> Optional[Tuple[int, int]]:
    """(uid, gid) of the service; None as long as one of the two does not exist."""
    try:
        return pwd.getpwnam(user).pw_uid, grp.getgrnam(group).gr_gid
    except KeyError:
        return None


def groups_of(user: str, gid: int) -> List[int]:
    """The groups of the service's process: systemd adds the user's own ones to the ``Group=`` of the unit."""
    try:
        return sorted(set(os.getgrouplist(user, gid)) | {gid})
    except (OSError, KeyError):
        return [gid]


def check_account(asked: Asked) -> Check:
    """One check, ``user``: it is there, or can be made."""
    ids = ids_of(asked.user, asked.group)
    if ids is not None and ids[0] >= _FIRST_LOGIN_UID and removes_ipc():
        detail = "%s is a login user (uid %d), and logind removes its shared memory when its last session ends" % (asked.user, ids[0])
        return Check("user", "warn", detail, "Give the service a system user of its own, or set RemoveIPC=no in logind.conf.")
    if ids is not None:
        return passed("user", "the user %s and the group %s exist" % (asked.user, asked.group))
    path = os.environ.get("PATH", "") + ":" + _SYSTEM
    missing = [tool for tool in ("useradd", "groupadd") if shutil.which(tool, path=path) is None]
    said = "the user %s and the group %s are not both there" % (asked.user, asked.group)
    if missing:
        return fail("user", "%s, and there is no %s to make them with" % (said, " and no ".join(missing)), "Create them by hand.")
    return passed("user", "%s; what is missing is made" % said)
