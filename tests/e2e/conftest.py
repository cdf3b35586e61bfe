# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The hosts that the end-to-end tests run on, and what they leave in the journal when a test fails."""

from __future__ import annotations

import os
from collections.abc import Generator, Iterator
from typing import Any

import pytest

from lab import Host, HostSpec, Lab, LabError, prereq
from lab.places import STATE_VARIABLE, state_dir
from lab.record import load

# Tests that run side by side get a lab of their own each.
_WORKER = os.environ.get("PYTEST_XDIST_WORKER")
if _WORKER is not None and not str(state_dir()).endswith(f"-{_WORKER}"):
    os.environ[STATE_VARIABLE] = f"{state_dir()}-{_WORKER}"

KEEP_VARIABLE = "GPUFLEET_LAB_KEEP"
_JOURNAL_LINES = 200

FLEET = (HostSpec("gpu01"), HostSpec("gpu02"), HostSpec("gpu03", base="trixie"))


@pytest.fixture(scope="session")
def lab() -> Iterator[Lab]:
    """Three hosts: gpu01 and gpu02 with Debian 12, gpu03 with Debian 13.

    A lab that is up is used and left up; one that is brought up here goes down at the end, unless GPUFLEET_LAB_KEEP is
    set.
    """
    try:
        prereq.check()
    except LabError as error:
        pytest.fail(str(error), pytrace=False)
    was_up = load(state_dir()) is not None
    fleet = Lab.up(specs=FLEET)
    yield fleet
    if not was_up and not os.environ.get(KEEP_VARIABLE):
        fleet.down()


@pytest.fixture
def host(lab: Lab) -> Host:
    """gpu01, as fresh from its installation."""
    chosen = lab.hosts["gpu01"]
    chosen.reset()
    return chosen


@pytest.fixture
def trixie_host(lab: Lab) -> Host:
    """gpu03 (Debian 13), as fresh from its installation."""
    chosen = lab.hosts["gpu03"]
    chosen.reset()
    return chosen


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Generator[None, Any, Any]:
    """Add the journal of the vLLM units to the report of a test that failed on the hosts."""
    report = yield
    fleet = getattr(item, "funcargs", {}).get("lab")
    if report.failed and isinstance(fleet, Lab):
        for name, each in fleet.hosts.items():
            report.sections.append((f"journal of vllm-* on {name}", _journal(each)))
    return report


def _journal(host: Host) -> str:
    if not host.is_running():
        return "(the host is off)"
    try:
        return host.journal("vllm-*", "--lines", str(_JOURNAL_LINES))
    except LabError as error:
        return f"(can't be read: {error})"
