# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""How a user's systemd is asked: as that user, and only systemctl is told so."""

from __future__ import annotations

import os
import pwd
from typing import Any, Dict, List, Sequence, Tuple

from ansible_collections.gpufleet.vllm.plugins.module_utils._core.runner import Completed, Runner
from ansible_collections.gpufleet.vllm.plugins.module_utils._reclaim.ports import UserManagerRunner


class Recorder(Runner):
    """Keeps what it is asked to run."""

    def __init__(self) -> None:
        self.calls: List[Tuple[List[str], Dict[str, str]]] = []

    def run(self, argv: Sequence[str], timeout: float = 30.0, stdin: Any = None, env: Any = None) -> Completed:
        self.calls.append((list(argv), dict(env or {})))
        return Completed(tuple(argv), 0, "", "")


def test_systemctl_runs_as_the_user_against_the_users_manager() -> None:
    recorder, me = Recorder(), pwd.getpwuid(os.getuid())
    UserManagerRunner(recorder, me.pw_uid).run(["systemctl", "stop", "--", "train.service"], env={"A": "b"})
    ((argv, env),) = recorder.calls
    assert argv == [
        "setpriv", "--reuid=%d" % me.pw_uid, "--regid=%d" % me.pw_gid, "--init-groups", "--",
        "systemctl", "--user", "stop", "--", "train.service",
    ]
    assert env == {
        "XDG_RUNTIME_DIR": "/run/user/%d" % me.pw_uid,
        "DBUS_SESSION_BUS_ADDRESS": "unix:path=/run/user/%d/bus" % me.pw_uid,
        "A": "b",
    }


def test_an_account_that_the_host_does_not_know_has_no_groups() -> None:
    recorder = Recorder()
    UserManagerRunner(recorder, 61184).run(["systemctl", "--version"])
    assert recorder.calls[0][0][:5] == ["setpriv", "--reuid=61184", "--regid=61184", "--clear-groups", "--"]
