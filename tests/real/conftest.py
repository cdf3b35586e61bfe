# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A host with nothing on it: no stand-in, an index that has the real vLLM, and a hub that has two tiny models."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from e2e import conftest as e2e
from hub.server import Hub, Model
from packages.index import Index
from real import tiny, wheels
from real.machine import Real

from lab import HostSpec, Lab, LabError, prereq
from lab.places import cache_dir, state_dir
from lab.record import load

# A test that fails shows what its hosts' journals say.
pytest_runtest_makereport = e2e.pytest_runtest_makereport


@pytest.fixture(scope="session")
def lab() -> Iterator[Lab]:
    """One host with Debian 12. A lab that is up is used and left up; one that is brought up here goes down at the end."""
    try:
        prereq.check()
    except LabError as error:
        pytest.fail(str(error), pytrace=False)
    was_up = load(state_dir()) is not None
    fleet = Lab.up(specs=(HostSpec("gpu01"),))
    yield fleet
    if not was_up:
        fleet.down()


@pytest.fixture(scope="session")
def packages() -> Path:
    """The directory with the wheels of the real vLLM."""
    try:
        return wheels.ensure(cache_dir())
    except LabError as error:
        pytest.fail(str(error), pytrace=False)


@pytest.fixture(scope="module")
def real(packages: Path, lab: Lab) -> Iterator[Real]:
    """The host and what it fetches from, for all tests of the module."""
    host = lab.hosts["gpu01"]
    host.reset()
    host.run("rm -r /opt/vllm")
    program = Path(sys.executable).parent / "uv"
    with program.open("rb") as stream:
        copy = host.ssh_command("cat > /usr/local/bin/uv && chmod 755 /usr/local/bin/uv")
        subprocess.run(copy, stdin=stream, check=True, timeout=120)
    address = host.address.rsplit(".", 1)[0] + ".1"
    with Index(packages, address) as index, Hub(address, content_host=address) as hub:
        for name in tiny.CONFIGS:
            hub.models[f"tiny/{name}"] = Model(tiny.files(name))
        yield Real(host, index, hub)
