# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Whether a driver runs what torch was built for."""

from __future__ import annotations

from pathlib import Path

import pytest

from ansible_collections.gpufleet.vllm.plugins.module_utils._gpu.types import Snapshot
from ansible_collections.gpufleet.vllm.plugins.module_utils._preflight.asked import Places
from ansible_collections.gpufleet.vllm.plugins.module_utils._preflight.cuda import check_cuda
from ansible_collections.gpufleet.vllm.plugins.module_utils._preflight.installed import Installation, Torch


def installation(cuda: str | None, hip: str | None = None) -> Installation:
    return Installation("/opt/vllm", None, (), "0.33.0", None, Torch("2.11.0", cuda, hip))


@pytest.mark.parametrize(("driver", "has", "built", "status"), [
    ("570.86", "12.8", "13.0", "fail"),
    ("580.95.05", "13.0", "13.0", "pass"),
    ("535.104", "12.2", "12.9", "pass"),  # an older release of the same major version will do
    ("580.95.05", "13.0", "12.8", "pass"),
    ("470.57", "11.4", "12.1", "fail"),
    ("580.95.05", None, "13.0", "pass"),
    ("550.54", None, "13.0", "fail"),
    ("550.54", None, "12.4", "pass"),
    (None, None, "13.0", "skip"),
    ("nonsense", "x", "13.0", "skip"),
    ("600.1", None, "99.0", "skip"),
])
def test_the_major_version_binds(driver: str | None, has: str | None, built: str, status: str, tmp_path: Path) -> None:
    snapshot = Snapshot(True, driver_version=driver, cuda_version=has)
    found = check_cuda(snapshot, installation(built), {}, Places(cuda=str(tmp_path)))
    assert found.status == status, found
    if status == "fail":
        assert found.fix and built in found.detail


def test_a_minor_difference_is_told(tmp_path: Path) -> None:
    found = check_cuda(Snapshot(True, driver_version="535.1", cuda_version="12.2"), installation("12.9"), {}, Places(cuda=str(tmp_path)))
    assert found.status == "pass" and "older release" in found.detail


@pytest.mark.parametrize("where", ["cuda-13.0/compat", "cuda/compat", "elsewhere"])
def test_the_forward_compatibility_package_makes_it_uncertain(where: str, tmp_path: Path) -> None:
    library = tmp_path / where / "libcuda.so.580.65.06"
    library.parent.mkdir(parents=True)
    library.touch()
    env = {"LD_LIBRARY_PATH": f"/x:{tmp_path}/elsewhere"} if where == "elsewhere" else {}
    snapshot = Snapshot(True, driver_version="570.86", cuda_version="12.8")
    found = check_cuda(snapshot, installation("13.0"), env, Places(cuda=str(tmp_path)))
    assert found.status == "warn" and str(library) in found.detail and found.fix


def test_what_is_not_there_is_skipped_with_its_reason() -> None:
    assert check_cuda(None, None, {}, Places()).status == "skip"
    assert check_cuda(None, installation("13.0"), {}, Places()).status == "skip"
    assert check_cuda(None, installation(None, "6.4"), {}, Places()).status == "skip"
    assert check_cuda(None, installation(None), {}, Places()).status == "warn"
