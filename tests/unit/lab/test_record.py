# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The record of what a lab has started."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from lab import record
from lab.errors import LabError
from lab.plan import HostSpec
from lab.record import HostRecord, Record


def test_a_record_survives_the_disk(tmp_path: Path) -> None:
    saved = Record(tmp_path, boot="b", network="198.18.0.0/24", bridge="gfl000000", models="/cache/models/x")
    saved.groups["gpu01.machine"] = ["/sys/fs/cgroup/x"]
    saved.hosts["gpu01"] = HostRecord(HostSpec("gpu01", pynvml=False), 1, ready=True)
    saved.save()
    assert record.load(tmp_path) == saved
    assert not list(tmp_path.glob(".*"))


def test_no_lab(tmp_path: Path) -> None:
    assert record.load(tmp_path / "none") is None


def test_a_damaged_record_is_said_to_be_one(tmp_path: Path) -> None:
    (tmp_path / record.FILE).write_text('{"version": 1', encoding="utf-8")
    with pytest.raises(LabError, match="is damaged"):
        record.load(tmp_path)


@pytest.mark.parametrize("change", [{"version": 99}, {"id": "ffffff"}])
def test_a_record_that_is_not_ours(tmp_path: Path, change: dict[str, object]) -> None:
    Record(tmp_path, boot="b").save()
    path = tmp_path / record.FILE
    path.write_text(json.dumps(json.loads(path.read_text(encoding="utf-8")) | change), encoding="utf-8")
    with pytest.raises(LabError, match="another version of the lab, or for another directory"):
        record.load(tmp_path)
