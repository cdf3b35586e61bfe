# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Where a lab keeps its things, and what sets labs apart."""

from __future__ import annotations

from pathlib import Path

import pytest

from lab import keys, places, teardown
from lab.errors import LabError
from lab.limits import may_restore, needed


def test_defaults(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(places.STATE_VARIABLE, raising=False)
    monkeypatch.delenv(places.CACHE_VARIABLE, raising=False)
    assert places.state_dir() == Path("/var/lib/gpufleet-lab")
    assert places.cache_dir() == Path("/var/cache/gpufleet-lab")


def test_the_environment_decides(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv(places.STATE_VARIABLE, f"{tmp_path}/a/../b")
    assert places.state_dir() == tmp_path / "b"


@pytest.mark.parametrize("given", ["/run/lab", "/", "/srv/my lab", "/srv/a,b", "/srv/a:b"])
def test_directories_that_can_not_be_used(monkeypatch: pytest.MonkeyPatch, given: str) -> None:
    monkeypatch.setenv(places.STATE_VARIABLE, given)
    with pytest.raises(LabError, match=f"{places.STATE_VARIABLE}={given}"):
        places.state_dir()


def test_labs_have_ids_of_their_own() -> None:
    one, other = places.lab_id(Path("/var/lib/a")), places.lab_id(Path("/var/lib/b"))
    assert one != other
    assert len(one) == 6 and int(one, 16) >= 0


def test_a_long_path_goes_without_a_shared_connection() -> None:
    assert keys.control_socket(Path("/var/lib/gpufleet-lab"), "gpu01") == Path("/var/lib/gpufleet-lab/ssh/gpu01.ctl")
    assert keys.control_socket(Path("/srv") / ("x" * 90), "gpu01") is None


def test_known_hosts(tmp_path: Path) -> None:
    target = tmp_path / "ssh/known_hosts"
    keys.write_known_hosts(target, {"gpu01": ("198.18.0.11", "ssh-ed25519 AAAA root@gpu01\n")})
    assert target.read_text(encoding="ascii") == "gpu01,198.18.0.11 ssh-ed25519 AAAA\n"


def test_mounts_below_a_directory() -> None:
    mountinfo = (
        "1 0 8:1 / / rw - ext4 /dev/sda rw\n"
        "2 1 0:5 / /var/lib/lab/freezer rw - cgroup freezer rw\n"
        "3 1 0:6 / /var/lib/laboratory rw - tmpfs tmpfs rw\n"
        "4 2 0:7 / /var/lib/lab/freezer/a\\040b rw - tmpfs tmpfs rw\n"
    )
    assert teardown.mounts_below(mountinfo, Path("/var/lib/lab")) == [
        Path("/var/lib/lab/freezer/a b"),
        Path("/var/lib/lab/freezer"),
    ]


def test_room_for_inotify_instances() -> None:
    assert needed(in_use=20, hosts=3) == 96
    assert needed(in_use=20, hosts=12) > 128
    assert may_restore(in_use=30, limit=128)
    assert not may_restore(in_use=90, limit=128)
