# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The host may go down in the middle of a change: what comes after the boot serves, and the same command completes the change."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from e2e.changes import (
    NEW,
    NEW_UNIT,
    UNIT,
    at_rest,
    at_stage,
    begin,
    boot_state,
    completes,
    inside,
    kill,
    prepared,
    serving,
    stage,
)

from lab import Host, Lab

LOAD_S = 8.0


@pytest.fixture(params=["gpu01", "gpu03"], ids=["bookworm", "trixie"])
def host(lab: Lab, request: pytest.FixtureRequest) -> Iterator[Host]:
    """A host of each distribution that serves the old one; the new one takes its time to load."""
    yield prepared(lab.hosts[request.param], LOAD_S)


@pytest.mark.parametrize(("when", "expected"), [("stopping", "old"), ("committing", "new")])
def test_the_power_may_fail_in_every_stage(host: Host, when: str, expected: str) -> None:
    host.vllm.behave("new", load_seconds=1.0)
    with stage(host, when):
        running = begin(host, **NEW)
        inside(host, at_stage(when))
        host.power_cut()
    kill(running)
    back(host, expected)


def test_the_power_may_fail_while_the_new_server_loads(host: Host) -> None:
    running = begin(host, **NEW)
    inside(host, f"{at_stage('starting')} && systemctl is-active -q {NEW_UNIT}")
    host.power_cut()
    kill(running)
    back(host, "old")


def back(host: Host, expected: str) -> None:
    """After the boot this one serves, and starts at the next."""
    host.vllm.behave("new", load_seconds=1.0)
    host.boot(wait=False)
    host.wait_ready()
    at_rest(host)
    assert serving(host) == expected
    assert boot_state(host, f"vllm-{expected}.service") == "enabled"
    completes(host)


def test_an_orderly_reboot_in_the_middle_leaves_it_to_the_next_boot(host: Host) -> None:
    running = begin(host, **NEW)
    inside(host, f"{at_stage('starting')} && systemctl is-active -q {NEW_UNIT}")
    host.reboot()
    kill(running)
    at_rest(host)
    assert serving(host) == "old"
    assert "the host is going down" in host.enter(["journalctl", "--no-pager", "-u", UNIT]).stdout
    host.vllm.behave("new", load_seconds=1.0)
    completes(host)
