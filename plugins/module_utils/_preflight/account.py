# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The user that the service runs as."""

from __future__ import annotations

import grp
import os
import pwd
import shutil
from typing import List, Optional, Tuple

from .._model.parallel import Check
from .asked import Asked, fail, passed

_SYSTEM = "/usr/sbin:/sbin:/usr/bin:/bin"


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
    if ids_of(asked.user, asked.group) is not None:
        return passed("user", "the user %s and the group %s exist" % (asked.user, asked.group))
    path = os.environ.get("PATH", "") + ":" + _SYSTEM
    missing = [tool for tool in ("useradd", "groupadd") if shutil.which(tool, path=path) is None]
    said = "the user %s and the group %s are not both there" % (asked.user, asked.group)
    if missing:
        return fail("user", "%s, and there is no %s to make them with" % (said, " and no ".join(missing)), "Create them by hand.")
    return passed("user", "%s; what is missing is made" % said)
