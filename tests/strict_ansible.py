# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Every Ansible that a test runs, in whatever way, is a strict one: a deprecation fails the test in which it was warned of.

Ansible has no setting that makes an error of a deprecation. But all that it prints goes into its log as well, also where a
test throws the output away or looks at its end only: so each process of the tests has a log of its own, and reads after
each step what was added.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Generator
from pathlib import Path
from typing import Any, List

import pytest

_MARK = "| [DEPRECATION WARNING]: "
_LOG = pytest.StashKey["_Log"]()


class _Log:
    """Ansible's log of this process's tests, and how far it was read."""

    def __init__(self) -> None:
        handle, name = tempfile.mkstemp(prefix="gpufleet-ansible-", suffix=".log")
        os.close(handle)
        self.path = Path(name)
        self._read = 0

    def deprecations(self) -> List[str]:
        """The deprecations that were warned of since the last time, as Ansible worded them."""
        with self.path.open("rb") as handle:
            handle.seek(self._read)
            added = handle.read()
        # A line that is being written at this moment is read next time.
        added = added[: added.rfind(b"\n") + 1]
        self._read += len(added)
        return [line.partition(_MARK)[2] for line in added.decode("utf-8", "replace").splitlines() if _MARK in line]


def pytest_configure(config: pytest.Config) -> None:
    """Before anything of Ansible is imported: its settings for the tests, for the programs that they start as well."""
    log = config.stash[_LOG] = _Log()
    os.environ["ANSIBLE_LOG_PATH"] = str(log.path)
    os.environ["ANSIBLE_DEPRECATION_WARNINGS"] = "true"
    # What the collection reads of a host's facts must not lean on what Ansible is about to take away.
    os.environ["ANSIBLE_INJECT_FACT_VARS"] = "false"


def pytest_unconfigure(config: pytest.Config) -> None:
    """Leave nothing behind."""
    config.stash[_LOG].path.unlink(missing_ok=True)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Generator[None, Any, Any]:
    """A step that passed, but in which Ansible warned of a deprecation, has failed."""
    report = yield
    found = item.config.stash[_LOG].deprecations()
    if found and report.passed:
        report.outcome = "failed"
        report.longrepr = "Ansible warned of a deprecation:\n%s" % "\n".join(found)
    return report
