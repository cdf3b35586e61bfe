# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""How a user's systemd is asked: as that user, and only systemctl is told so."""

from __future__ import annotations

import os
import pwd
from pathlib import Path
from typing import Any, Dict, List, Sequence, Tuple

import pytest

from ansible_collections.gpufleet.vllm.plugins.module_utils._core.runner import Completed, Runner
from ansible_collections.gpufleet.vllm.plugins.module_utils._reclaim.ports import Ports, UserManagerRunner


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


def test_a_users_systemd_is_looked_at_below_that_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the system runs under the same name is another unit's."""
    shown = Completed(("systemctl",), 0, "Id=train.service\nActiveState=inactive\nSlice=app.slice\n", "")
    monkeypatch.setattr(Runner, "run", lambda *_words, **_more: shown)
    for pid, place in ((7, "app.slice"), (8, "user.slice/user-1000.slice/user@1000.service/app.slice")):
        (tmp_path / "sys/fs/cgroup" / place / "train.service").mkdir(parents=True)
        (tmp_path / "sys/fs/cgroup" / place / "train.service/cgroup.procs").write_text("%d\n" % pid, encoding="ascii")
    systemd = Ports().user_systemd(1000)
    monkeypatch.setattr(systemd, "_root", str(tmp_path))
    assert systemd.cgroup_pids("train.service") == [8]
