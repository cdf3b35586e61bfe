# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""How long a stop is waited for."""

from __future__ import annotations

from typing import Optional

import pytest

from ansible_collections.gpufleet.vllm.plugins.module_utils._service.patience import patience_for
from ansible_collections.gpufleet.vllm.plugins.module_utils._systemd.show import UnitStatus, parse_span


@pytest.mark.parametrize(("asked", "declared", "waited"), [
    (60.0, [], 60.0),
    (60.0, [60.0], 60.0),
    (10.0, [60.0], 10.0),  # our own default is nobody's wish
    (10.0, [90.0], 10.0),  # nor is systemd's
    (60.0, [80.0, 320.0], 320.0),
    (600.0, [320.0], 600.0),
    (60.0, [None], 60.0),
])  # fmt: skip
def test_a_longer_drain_of_its_own_is_respected(asked: float, declared: list[Optional[float]], waited: float) -> None:
    statuses = [UnitStatus("u", "loaded", "active", "running", timeout_stop=each) for each in declared]
    assert patience_for(asked, statuses) == waited


@pytest.mark.parametrize(("text", "seconds"), [
    ("1min 30s", 90.0), ("20s", 20.0), ("500ms", 0.5), ("5h 2min 3s", 18123.0), ("1w 2d", 777600.0), ("1.5s", 1.5),
    ("infinity", None), ("", None), ("soon", None), ("0", None),
])  # fmt: skip
def test_time_spans_as_systemctl_prints_them(text: str, seconds: Optional[float]) -> None:
    assert parse_span(text) == seconds
