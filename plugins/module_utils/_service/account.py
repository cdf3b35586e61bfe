# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The system user that a service runs as.

vLLM needs a passwd entry and a home that it may write to (its compile caches live there), so a dynamic user will not do.
"""

from __future__ import annotations

import grp
import pwd
from dataclasses import dataclass
from typing import List, Optional

from .._core.errors import GpuFleetError
from .._core.runner import Runner


@dataclass(frozen=True)
class Account:
    """A user and a group as they are on the host; None where there is no such one."""

    user: str
    group: str
    uid: Optional[int]
    gid: Optional[int]

    @property
    def complete(self) -> bool:
        """Whether both exist."""
        return self.uid is not None and self.gid is not None


def look_up(user: str, group: str) -> Account:
    """Ask the host's name service for the user and the group."""
    try:
        uid: Optional[int] = pwd.getpwnam(user).pw_uid
    except KeyError:
        uid = None
    try:
        gid: Optional[int] = grp.getgrnam(group).gr_gid
    except KeyError:
        gid = None
    return Account(user, group, uid, gid)


def create(account: Account, home: str, runner: Runner) -> Account:
    """Make what is missing, as system accounts without a shell; returns the account as it is afterwards."""
    if account.gid is None:
        _must(runner, ["groupadd", "--system", account.group])
    if account.uid is None:
        command = ["useradd", "--system", "--gid", account.group, "--home-dir", home, "--no-create-home"]
        command += ["--shell", "/usr/sbin/nologin", "--comment", "vLLM services", account.user]
        _must(runner, command)
    return look_up(account.user, account.group)


def _must(runner: Runner, command: List[str]) -> None:
    done = runner.run(command, timeout=30)
    if not done.ok:
        raise GpuFleetError(
            "Cannot create the service's account: `%s` ended with %s: %s. Create it by hand and run again."
            % (" ".join(command), done.rc, done.stderr.strip() or done.stdout.strip())
        )
