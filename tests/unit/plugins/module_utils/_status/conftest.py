# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The host that the tests look at."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from ansible_collections.gpufleet.vllm.plugins.module_utils._unit.change_unit import CHANGE_UNIT
from ansible_collections.gpufleet.vllm.tests.unit.plugins.module_utils._job import host as base
from ansible_collections.gpufleet.vllm.tests.unit.plugins.module_utils._job.host import OLD
from ansible_collections.gpufleet.vllm.tests.unit.plugins.module_utils._status.place import Looked


@pytest.fixture
def looked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Looked:
    """A host on which one service serves as declared."""
    base.patch(monkeypatch)
    found = Looked(tmp_path / "host")
    found.install("old")
    for path, content in ((found.paths.guard, b"guard"), (found.paths.program, b"program")):
        os.makedirs(os.path.dirname(path), exist_ok=True)
        Path(path).write_bytes(content)
    os.chmod(found.paths.guard, 0o755)
    os.makedirs(found.paths.records, exist_ok=True)
    ended = replace(found.units.units[OLD], main_pid=0, active_state="inactive", sub_state="dead")
    found.units.units[CHANGE_UNIT] = replace(ended, unit=CHANGE_UNIT, unit_file_state="enabled")
    Path(found.paths.units, CHANGE_UNIT).write_text("")
    found.serving()
    return found
