# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A login user loses its shared memory with its last session."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, Dict

import pytest

from ansible_collections.gpufleet.vllm.plugins.module_utils._preflight import account


@pytest.mark.parametrize(("files", "removes"), [
    ({}, True),
    ({"etc/systemd/logind.conf": "[Login]\n#RemoveIPC=no\n"}, True),
    ({"etc/systemd/logind.conf": "[Login]\nRemoveIPC = no\n"}, False),
    ({"etc/systemd/logind.conf": "RemoveIPC=no", "etc/systemd/logind.conf.d/10-a.conf": "RemoveIPC=yes"}, True),
    ({"etc/systemd/logind.conf.d/20-b.conf": "RemoveIPC=no", "usr/lib/systemd/logind.conf.d/10-a.conf": "RemoveIPC=yes"}, False),
    ({"etc/systemd/logind.conf.d/10-a.conf": "RemoveIPC=no", "usr/lib/systemd/logind.conf.d/10-a.conf": "RemoveIPC=yes"}, False),
])  # fmt: skip
def test_what_logind_is_told(tmp_path: Path, files: Dict[str, str], removes: bool) -> None:
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    assert account.removes_ipc(str(tmp_path)) is removes


@pytest.mark.parametrize(("uid", "removes", "status"), [(1000, True, "warn"), (1000, False, "pass"), (998, True, "pass")])
def test_a_login_user_is_warned_of(monkeypatch: pytest.MonkeyPatch, uid: int, removes: bool, status: str) -> None:
    monkeypatch.setattr(account, "ids_of", lambda _user, _group: (uid, uid))
    monkeypatch.setattr(account, "removes_ipc", lambda: removes)
    asked: Any = SimpleNamespace(user="alice", group="alice")
    found = account.check_account(asked)
    assert found.status == status and ("RemoveIPC" in (found.fix or "")) == (status == "warn")
