# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Fetching, doing nothing without the network, mending, changing the revision, taking what is there."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from hub.server import Hub, wait_for

from ansible_collections.gpufleet.vllm.plugins.module_utils._core.errors import GpuFleetError
from ansible_collections.gpufleet.vllm.plugins.module_utils._core.zipapp import closure
from ansible_collections.gpufleet.vllm.plugins.module_utils._fetch.manifest import RECORD
from ansible_collections.gpufleet.vllm.plugins.module_utils._fetch.run import ensure

from .conftest import REPO, Place, content

WEIGHTS = "model-00001-of-00002.safetensors"


def test_it_fetches_once_and_then_asks_nobody(place: Place, hub: Hub) -> None:
    planned = place.ensure(check_mode=True)
    assert planned["changed"] and place.names == []
    done = place.ensure()
    assert done["actions"] == planned["actions"] and done["diff"] == planned["diff"]
    assert (done["commit"], done["files"], done["fetched_files"], done["size_mib"]) == (hub.models[REPO].head, 5, 5, 3)
    assert place.files() == content() and place.names == ["tiny"]
    record = json.loads((place.path / RECORD).read_text(encoding="utf-8"))
    assert (record["repo"], record["commit"]) == (REPO, hub.models[REPO].head)
    assert {bool(each.get("sha256")) == each["path"].endswith(".safetensors") for each in record["files"]} == {True}
    before = len(hub.requests)
    for again in (place.ensure(), place.ensure(endpoint="http://127.0.0.1:9"), place.ensure(verify="full"), place.ensure(check_mode=True)):
        assert (again["changed"], again["actions"], again["commit"]) == (False, [], done["commit"])
    assert len(hub.requests) == before


def test_the_program_for_the_other_interpreter_goes_along_with_the_module() -> None:
    # Ansible follows imports to find what a host is sent, and so does this.
    assert {"_fetch.hub_driver", "_fetch.hub_errors"} <= set(closure("_fetch.run"))


def test_everybody_can_read_it(place: Place) -> None:
    before = os.umask(0o077)
    try:
        place.ensure()
    finally:
        os.umask(before)
    assert [str(each) for each in [place.path, *place.path.rglob("*")] if not each.stat().st_mode & 0o004] == []


def test_several_at_a_time(place: Place) -> None:
    place.ensure(workers=4)
    assert place.files() == content()


def test_only_what_the_patterns_leave(place: Place) -> None:
    place.ensure(include=["*.json", "*.safetensors"], exclude=["original/*"])
    assert sorted(place.files()) == ["config.json", WEIGHTS, "model-00002-of-00002.safetensors"]
    assert not place.ensure(include=["*.json", "*.safetensors"], exclude=["original/*"])["changed"]


@pytest.mark.parametrize("verify", ["size", "full"])
def test_damage_is_found_and_mended_alone(place: Place, hub: Hub, verify: str) -> None:
    place.ensure()
    kept = (place.path / "model-00002-of-00002.safetensors").stat().st_ino
    damaged = place.path / WEIGHTS
    if verify == "size":
        os.truncate(damaged, 1000)
    else:
        with open(damaged, "r+b") as handle:
            handle.write(b"\0" * 8)
        assert not place.ensure()["changed"]  # its size is right
    before = len(hub.requests)
    done = place.ensure(verify=verify)
    assert done["changed"] and done["fetched_files"] == 1 and "1 of its files are missing or damaged" in done["actions"][0]
    assert place.files() == content() and place.names == ["tiny"]
    assert [each.kind for each in hub.requests[before:]] == ["file", "content"]
    assert (place.path / "model-00002-of-00002.safetensors").stat().st_ino == kept


def test_another_revision_takes_over_what_is_the_same(place: Place, hub: Hub) -> None:
    place.ensure()
    first = hub.models[REPO].head
    with open(place.path / WEIGHTS, "rb") as reading:  # as a server that has it mapped
        hub.models[REPO].add({**content(), "config.json": b"{}\n", "new.json": b"[]\n"})
        done = place.ensure()
        assert reading.read() == content()[WEIGHTS]
    assert done["fetched_files"] == 2 and "in the place of %s" % first in done["actions"][0]
    assert place.files()["config.json"] == b"{}\n" and place.names == ["tiny"]
    assert not place.ensure()["changed"]


def test_a_branch_is_looked_up_once(place: Place, hub: Hub) -> None:
    first = place.ensure(revision="main")
    hub.models[REPO].add({**content(), "config.json": b"{}\n"})
    before = len(hub.requests)
    assert not place.ensure(revision="main")["changed"] and len(hub.requests) == before
    again = place.ensure(revision="main", refresh=True)
    assert again["changed"] and again["commit"] == hub.models[REPO].head != first["commit"]
    assert not place.ensure(revision="main", refresh=True)["changed"]


def test_a_failed_change_of_revision_leaves_the_old_one(place: Place, hub: Hub) -> None:
    place.ensure()
    hub.models[REPO].add(content(seed=1))
    hub.changed[WEIGHTS] = b"x" * len(content()[WEIGHTS])
    with pytest.raises(GpuFleetError):
        place.ensure()
    assert place.files() == content()
    hub.changed.clear()
    place.ensure()
    assert place.files() == content(seed=1) and place.names == ["tiny"]


def test_another_model_is_not_put_in_its_place(place: Place, hub: Hub) -> None:
    place.ensure()
    hub.models["tests/other"] = hub.models[REPO]
    with pytest.raises(GpuFleetError, match="holds tests/tiny, not tests/other"):
        place.ensure(repo="tests/other")
    assert place.files() == content()


def test_what_is_there_without_a_word_where_from_is_taken_as_it_is(place: Place, hub: Hub) -> None:
    place.path.mkdir()
    (place.path / "config.json").write_text("{}", encoding="utf-8")
    with pytest.raises(GpuFleetError, match="holds no weights"):
        place.ensure(repo=None)
    (place.path / "model.safetensors").write_bytes(b"1")
    result = place.ensure(repo=None)
    assert (result["changed"], result["managed"], result["commit"]) == (False, False, None)
    assert sorted(place.files()) == ["config.json", "model.safetensors"] and hub.requests == []
    with pytest.raises(GpuFleetError, match="neither repo nor source"):
        place.ensure(repo=None, path=str(place.root / "none"))


def test_what_somebody_else_fetched_is_taken_when_it_is_the_very_model(place: Place) -> None:
    for name, data in {**content(), ".cache/x": b"y"}.items():
        target = place.path / name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(data)
    done = place.ensure()
    assert done["changed"] and done["fetched_files"] == 0 and "all its files are right" in done["actions"][0]
    assert not place.ensure()["changed"]


def test_what_somebody_else_has_is_never_touched_when_it_is_another(place: Place) -> None:
    place.path.mkdir()
    (place.path / "config.json").write_text("mine", encoding="utf-8")
    with pytest.raises(GpuFleetError, match=r"made by somebody else, and is not tests/tiny.*left alone") as failed:
        place.ensure()
    assert failed.value.result["kind"] == "not_ours"
    assert place.files() == {"config.json": b"mine"} and place.names == ["tiny"]


def test_somebody_elses_directory_under_the_working_name_is_left_alone(place: Place) -> None:
    (place.root / "tiny.partial").mkdir()
    with pytest.raises(GpuFleetError, match=r"tiny\.partial is there.*left alone"):
        place.ensure()


def test_an_exchange_that_was_cut_short_is_ended(place: Place, hub: Hub) -> None:
    place.ensure()
    place.path.rename(str(place.path) + ".old")
    before = len(hub.requests)
    done = place.ensure()
    assert done["changed"] and "its name back" in done["actions"][0]
    assert place.files() == content() and len(hub.requests) == before
    shutil.copytree(place.path, str(place.path) + ".old")  # killed a moment later
    done = place.ensure()
    assert done["changed"] and place.names == ["tiny"]
    assert not place.ensure()["changed"]


def test_two_at_a_time_are_told_apart(place: Place) -> None:
    work = place.root / "tiny.partial" / ".gpufleet-fetch"
    work.mkdir(parents=True)
    with open(work / "lock", "w", encoding="utf-8") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(GpuFleetError, match="Another run is fetching"):
            place.ensure()
    assert place.names == ["tiny.partial"]


def test_what_a_killed_run_has_started_is_not_worked_against(place: Place, hub: Hub) -> None:
    hub.stalls = [1000]
    code = "import json, sys\nfrom %s import Ports, ensure\nensure(json.load(sys.stdin), Ports(), False)\n" % ensure.__module__
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, env=environment) as run:
        run.stdin.write(json.dumps(place.params(include=[WEIGHTS])).encode())  # type: ignore[union-attr]
        run.stdin.close()  # type: ignore[union-attr]
        wait_for(lambda: "content" in hub.kinds())
        run.kill()
    with pytest.raises(GpuFleetError, match="Another run is fetching"):
        place.ensure(include=[WEIGHTS])
    hub.release()
    wait_for(lambda: not _is_held(place))
    assert place.files() == {WEIGHTS: content()[WEIGHTS]}


def _is_held(place: Place) -> bool:
    try:
        place.ensure(include=[WEIGHTS])
    except GpuFleetError as error:
        assert error.result["kind"] == "busy"
        return True
    return False


def test_a_link_to_another_disk_stays_one(place: Place, tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    place.path.symlink_to(disk / "tiny")
    place.ensure()
    assert place.path.is_symlink() and (disk / "tiny" / "config.json").is_file() and sorted(os.listdir(disk)) == ["tiny"]


@pytest.mark.parametrize(("options", "said"), [
    ({"path": "models"}, "absolute"), ({"repo": "a/b/c"}, "OWNER/NAME"), ({"source": "mirror"}, "absolute"),
    ({"endpoint": "hub.example.com"}, "address of a hub"), ({"workers": 0}, "at least 1"),
])
def test_slips_are_refused_in_words(place: Place, options: dict[str, object], said: str) -> None:
    with pytest.raises(GpuFleetError, match=said):
        place.ensure(True, **options)
