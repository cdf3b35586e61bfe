# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A disk that is full, or that can't be written to: the run says so, nothing is half-written, and what served serves on."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from e2e.direct import SMALL, UNIT, service

from lab import Host, Lab

PROPERTIES = ("ActiveState", "InvocationID", "MainPID")
FILES = "find /etc/vllm /etc/systemd/system -name '*small*' -o -name '.gpufleet-*' | sort | xargs -r sha256sum"


@pytest.fixture
def serving(lab: Lab) -> Iterator[Host]:
    """A host on which the service serves; no mount of a test stays."""
    host = lab.hosts["gpu02"]
    host.reset()
    host.vllm.behave("*", load_seconds=0.2)
    assert not service(host)["failed"]
    yield host
    host.run("umount /etc/vllm 2>/dev/null; umount /etc/systemd/system 2>/dev/null; true")


FULL = (
    "cp -a /etc/vllm /run/kept && mount -t tmpfs -o size=16k,mode=755 tmpfs /etc/vllm && cp -a /run/kept/. /etc/vllm/"
    " && { dd if=/dev/zero of=/etc/vllm/filler bs=1k count=64 2>/dev/null; true; }"
)
READ_ONLY = "mount --bind /etc/systemd/system /etc/systemd/system && mount -o remount,bind,ro /etc/systemd/system"


CASES = [(FULL, "No space left on device"), (READ_ONLY, "Read-only file system")]


@pytest.mark.parametrize(("provoke", "said"), CASES, ids=["full", "read-only"])
def test_nothing_is_half_written(serving: Host, provoke: str, said: str) -> None:
    serving.run(provoke)
    before, files = serving.systemctl_show(UNIT, PROPERTIES), serving.run(FILES).stdout
    args = {**SMALL["args"], "max_num_seqs": 8, "override_generation_config": {"x": "y" * 9000}}
    changed: dict[str, Any] = {"args": args, "env": {"A": "b"}}
    failed = service(serving, **changed)
    assert failed["failed"] and said in failed["msg"] and "Cannot write /etc/" in failed["msg"], failed["msg"]
    assert serving.run(FILES).stdout == files, "something was written, or left half-written"
    assert serving.systemctl_show(UNIT, PROPERTIES) == before, "the server was touched"
    assert failed["rolled_back"], failed["msg"]
