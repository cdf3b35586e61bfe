# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The host that most of these tests borrow from."""

from __future__ import annotations

from pathlib import Path

import pytest

from ansible_collections.gpufleet.vllm.tests.unit.plugins.module_utils._borrow.place import Place, patch


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    """A host on which one service serves on all of its four GPUs."""
    patch(monkeypatch)
    return Place.that_serves(tmp_path / "host")
