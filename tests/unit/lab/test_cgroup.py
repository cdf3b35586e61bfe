# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Reading the control groups that a machine has."""

from __future__ import annotations

from pathlib import Path

import pytest

from lab import cgroup
from lab.errors import LabError

HYBRID = """\
35 25 0:30 / /sys/fs/cgroup rw,relatime - tmpfs tmpfs rw,mode=755
36 35 0:31 / /sys/fs/cgroup/cpu rw,relatime - cgroup cgroup rw,cpu,cpuacct
37 35 0:32 / /sys/fs/cgroup/freezer rw,relatime - cgroup cgroup rw,freezer
38 35 0:33 / /sys/fs/cgroup/systemd rw,nosuid shared:9 - cgroup cgroup rw,xattr,name=systemd
39 35 0:34 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw,nsdelegate
40 25 0:34 / /mnt/again rw,relatime - cgroup2 cgroup2 rw
41 25 0:32 /below /mnt/part rw,relatime - cgroup cgroup rw,freezer
"""
MEMBERSHIPS = "5:cpu,cpuacct:/a\n4:freezer:/\n3:name=systemd:/user.slice/x:y\n0::/../outside\n"


def test_hierarchies_of_a_hybrid_machine() -> None:
    found = cgroup.parse_hierarchies(HYBRID)
    assert [(each.version, each.controllers, str(each.mount)) for each in found] == [
        (1, ("cpu", "cpuacct"), "/sys/fs/cgroup/cpu"),
        (1, ("freezer",), "/sys/fs/cgroup/freezer"),
        (1, ("name=systemd",), "/sys/fs/cgroup/systemd"),
        (2, (), "/sys/fs/cgroup/unified"),
    ]


def test_memberships() -> None:
    found = cgroup.parse_memberships(MEMBERSHIPS)
    assert found == {
        ("cpu", "cpuacct"): "/a",
        ("freezer",): "/",
        ("name=systemd",): "/user.slice/x:y",
        (): "/../outside",
    }


def test_own_directory_exists() -> None:
    found = cgroup.find_unified()
    assert found is not None
    assert cgroup.own_directory(found).is_dir()


def test_groups_that_are_gone_are_fine(tmp_path: Path) -> None:
    gone = tmp_path / "gone"
    assert cgroup.pids(gone) == []
    cgroup.kill(gone)
    cgroup.remove(gone)


def test_pids_of_a_tree_leave_out_foreign_ones(tmp_path: Path) -> None:
    (tmp_path / "below").mkdir()
    (tmp_path / "cgroup.procs").write_text("12\n0\n", encoding="ascii")
    (tmp_path / "below/cgroup.procs").write_text("7\n12\n", encoding="ascii")
    assert cgroup.pids(tmp_path) == [7, 12]


def test_a_new_cpuset_takes_its_parents_processors(tmp_path: Path) -> None:
    (tmp_path / "cpuset.cpus").write_text("0-1\n", encoding="ascii")
    (tmp_path / "cpuset.mems").write_text("0\n", encoding="ascii")
    target = tmp_path / "lab"
    # A kernel would make the files with the directory.
    real_mkdir = Path.mkdir

    def mkdir(self: Path, *arguments: object, **options: object) -> None:
        real_mkdir(self, *arguments, **options)  # type: ignore[arg-type]
        for name in ("cpuset.cpus", "cpuset.mems"):
            (self / name).write_text("\n", encoding="ascii")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Path, "mkdir", mkdir)
        cgroup.create([target / "gpu01"])
    for directory in (target, target / "gpu01"):
        assert (directory / "cpuset.cpus").read_text(encoding="ascii") == "0-1\n"
        assert (directory / "cpuset.mems").read_text(encoding="ascii") == "0\n"


def test_survivors_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "cgroup.procs").write_text("4194303\n", encoding="ascii")
    (tmp_path / "cgroup.kill").write_text("", encoding="ascii")
    monkeypatch.setattr(cgroup, "_KILL_SECONDS", 0.05)
    with pytest.raises(LabError, match="survive SIGKILL: 4194303"):
        cgroup.kill(tmp_path)
    assert (tmp_path / "cgroup.kill").read_text(encoding="ascii") == "1"
