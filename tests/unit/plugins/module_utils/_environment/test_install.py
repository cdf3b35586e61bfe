# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Installing, doing nothing, going on and going back, with the real uv and the real pip."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.gpufleet.vllm.plugins.module_utils._core.errors import GpuFleetError
from ansible_collections.gpufleet.vllm.plugins.module_utils._environment.look import RECORD
from ansible_collections.gpufleet.vllm.plugins.module_utils._environment.users import User

from .conftest import Host


def version(host: Host, path: Path | None = None) -> str:
    """What the installed command says."""
    done = subprocess.run([str((path or host.path) / "bin" / "vllm"), "--version"], capture_output=True, text=True, check=True)
    return done.stdout.strip()


@pytest.mark.parametrize("installer", ["uv", "pip"])
def test_it_installs_and_then_leaves_alone(host: Host, installer: str) -> None:
    planned = host.ensure(check_mode=True, installer=installer)
    assert planned["changed"] and host.trees == [] and not host.path.exists()
    done = host.ensure(installer=installer)
    assert done["changed"] and done["actions"] == planned["actions"]
    assert (done["version"], done["installer"], done["tree"]) == ("0.32.0", installer, planned["tree"])
    assert version(host) == "0.32.0"
    assert host.path.is_symlink() and os.path.realpath(host.path) == done["tree"]
    before, asked = host.everything(), len(host.index.requests)
    again = host.ensure(installer=installer)
    assert (again["changed"], again["actions"], again["version"]) == (False, [], "0.32.0")
    assert again["diff"]["before"] == again["diff"]["after"]
    assert host.everything() == before
    assert len(host.index.requests) == asked  # the network is not asked


def test_others_can_read_what_root_installs_under_a_strict_umask(host: Host) -> None:
    before = os.umask(0o077)
    try:
        done = host.ensure()
    finally:
        os.umask(before)
    shut = [path for path in Path(done["tree"]).rglob("*") if not path.is_symlink() and not path.stat().st_mode & 0o004]
    assert [path.name for path in shut if path.name not in (".lock", RECORD)] == []
    assert Path(done["tree"], RECORD).stat().st_mode & 0o777 == 0o644


def test_an_upgrade_is_built_beside_and_going_back_builds_nothing(host: Host) -> None:
    first = host.ensure()
    second = host.ensure(version="0.33.0")
    assert version(host) == "0.33.0" and Path(first["tree"]).is_dir()
    assert "version: 0.32.0" in second["diff"]["before"] and "version: 0.33.0" in second["diff"]["after"]
    asked = len(host.index.requests)
    back = host.ensure()
    assert back["actions"] == ["let %s lead to %s" % (host.path, first["tree"])]
    assert version(host) == "0.32.0" and len(host.index.requests) == asked


def test_older_environments_go_but_for_those_to_keep(host: Host) -> None:
    host.ensure(version="0.31.0")
    host.ensure(version="0.32.0")
    third = host.ensure(version="0.33.0")
    assert [tree[:6] for tree in host.trees] == ["0.32.0", "0.33.0"]
    assert any("no longer needed" in action for action in third["actions"])


@pytest.mark.parametrize("change", [
    {"requirements": ["nvidia-ml-py", "torch==2.13.0"]}, {"constraints": ["torch<3"]}, {"version": "0.33.0"},
])
def test_another_declaration_is_another_environment(host: Host, change: dict[str, Any]) -> None:
    first = host.ensure()
    second = host.ensure(**change)
    assert second["changed"] and second["tree"] != first["tree"]
    assert not host.ensure(**change)["changed"]


def test_order_and_where_packages_come_from_make_no_other_environment(host: Host) -> None:
    host.ensure(requirements=["nvidia-ml-py", "torch"])
    assert not host.ensure(requirements=["torch", "nvidia-ml-py"], index_url=None, extra_index_urls=["http://elsewhere.invalid/"])["changed"]


def test_without_dependencies_the_requirements_come_first(host: Host) -> None:
    done = host.ensure(version="0.33.4", dependencies=False, requirements=["torch==2.12.0"])
    assert done["changed"] and version(host) == "0.33.4"
    assert list(Path(done["tree"]).glob("lib/python3*/site-packages/torch-2.12.0.dist-info"))


def test_one_that_was_killed_halfway_is_thrown_away_and_made_anew(host: Host) -> None:
    planned = host.ensure(check_mode=True)
    half = Path(planned["tree"])
    (half / "bin").mkdir(parents=True)
    (half / "bin" / "vllm").write_text("#!/bin/sh\necho 0.32.0\n", encoding="utf-8")
    (half.parent / ".build-dead").mkdir()
    host.path.symlink_to(half)
    done = host.ensure()
    assert done["actions"][0] == "remove %s, which was never finished" % half
    assert version(host) == "0.32.0" and host.trees == [half.name]


def test_one_that_somebody_changed_is_replaced(host: Host) -> None:
    first = host.ensure()
    site = next(Path(first["tree"]).glob("lib/python3*/site-packages"))
    shutil.rmtree(site / "nvidia_ml_py-13.615.71.dist-info")
    again = host.ensure()
    assert again["changed"] and "nvidia-ml-py is not installed" in again["actions"][0]
    assert again["tree"] != first["tree"] and host.trees == [Path(again["tree"]).name]
    assert not host.ensure()["changed"]


def test_one_whose_interpreter_is_gone_is_replaced(host: Host) -> None:
    first = host.ensure()
    python = Path(first["tree"], "bin", "python")
    python.unlink()
    python.symlink_to("/usr/bin/python3.1")
    again = host.ensure()
    assert "leads to /usr/bin/python3.1" in again["actions"][0]
    assert version(host) == "0.32.0"


def test_what_runs_keeps_its_version(host: Host) -> None:
    host.ensure()
    host.users = [User(4711, "VLLM::EngineCor", "vllm-qwen3.service")]
    before = host.everything()
    for check_mode in (True, False):
        with pytest.raises(GpuFleetError) as refused:
            host.ensure(version="0.33.0", check_mode=check_mode)
        assert "vllm-qwen3.service" in refused.value.msg and "executable: %s-0.33.0/bin/vllm" % host.path in refused.value.msg
        assert refused.value.result["in_use_by"][0]["pid"] == 4711
    assert host.everything() == before
    assert not host.ensure()["changed"]  # what stands may well be in use
    beside = host.ensure(path=str(host.path) + "-0.33.0", version="0.33.0")
    assert beside["changed"] and version(host, Path(beside["path"])) == "0.33.0" and version(host) == "0.32.0"


@pytest.mark.parametrize("asked", ["0.32.0", "0.33.0"])
def test_what_somebody_else_made_is_never_changed(host: Host, asked: str) -> None:
    done = host.ensure()
    foreign = Path(str(host.path) + "-mine")
    shutil.copytree(done["tree"], foreign, symlinks=True)
    (foreign / RECORD).unlink()
    if asked == "0.32.0":
        result = host.ensure(path=str(foreign))
        assert (result["changed"], result["managed"], result["version"]) == (False, False, "0.32.0")
    else:
        with pytest.raises(GpuFleetError, match=r"somebody else made.*vllm is 0\.32\.0, not 0\.33\.0.*left alone"):
            host.ensure(path=str(foreign), version=asked)
    assert not (foreign / RECORD).exists() and not Path(str(foreign) + ".versions").exists()


def test_a_directory_of_something_else_is_left_alone(host: Host) -> None:
    host.path.mkdir()
    (host.path / "data").write_text("mine", encoding="utf-8")
    with pytest.raises(GpuFleetError, match="is no Python environment: it is left alone"):
        host.ensure()
    assert [path.name for path in host.path.iterdir()] == ["data"]


def test_an_empty_directory_is_nobodys(host: Host) -> None:
    host.path.mkdir()
    assert host.ensure()["changed"] and version(host) == "0.32.0"


def test_two_at_a_time_are_told_apart(host: Host) -> None:
    trees = Path(str(host.path) + ".versions")
    trees.mkdir()
    with open(trees / ".lock", "w", encoding="utf-8") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(GpuFleetError, match="Another run is installing"):
            host.ensure()


def test_room_is_looked_for_first(host: Host) -> None:
    host.free = 99
    for check_mode in (True, False):
        with pytest.raises(GpuFleetError, match="99 MiB free") as refused:
            host.ensure(check_mode=check_mode)
        assert refused.value.result["kind"] == "no_space"
    assert host.trees == [] and host.index.requests == []


def test_an_interpreter_that_the_services_cannot_run_is_a_warning(host: Host, tmp_path: Path) -> None:
    private = tmp_path / "private"
    private.mkdir(mode=0o700)
    python = private / "python3"
    python.write_text('#!/bin/sh\nexec "%s" "$@"\n' % os.path.realpath("/usr/bin/python3"), encoding="utf-8")
    python.chmod(0o755)
    planned = host.ensure(check_mode=True, python=str(python))
    assert any(str(private) in warning for warning in planned["warnings"])
