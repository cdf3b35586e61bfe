# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Whether the service's user can read what it has to."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from ansible_collections.gpufleet.vllm.plugins.module_utils._model.parallel import Check
from ansible_collections.gpufleet.vllm.plugins.module_utils._preflight.access import check_access
from ansible_collections.gpufleet.vllm.plugins.module_utils._preflight.account import check_account, ids_of
from ansible_collections.gpufleet.vllm.plugins.module_utils._preflight.asked import Asked
from ansible_collections.gpufleet.vllm.plugins.module_utils._preflight.readable import refused

NOT_THERE = "gpufleet-nobody"
# One who exists (tried as that user where the tests run as root), and one who is yet to be made (read from mode bits).
USERS = [("nobody", "nogroup" if ids_of("nobody", "nogroup") else "nobody"), (NOT_THERE, NOT_THERE)]


@pytest.fixture
def place() -> Iterator[Path]:
    """A directory that everybody may enter: pytest's own ones let nobody in."""
    directory = Path(tempfile.mkdtemp(prefix="gpufleet-test-"))
    directory.chmod(0o755)
    yield directory
    shutil.rmtree(directory)


@pytest.fixture
def model(place: Path) -> Path:
    directory = place / "models/m"
    directory.mkdir(parents=True)
    for path in (place / "models", directory):
        path.chmod(0o755)
    for name in ("config.json", "model-1.safetensors", "model-2.safetensors"):
        (directory / name).write_text("x", encoding="utf-8")
        (directory / name).chmod(0o644)
    return directory


def access(model: Path, user: str, group: str, hides_tmp: bool = False) -> Check:
    found = check_access(Asked(str(model), user=user, group=group, executable="/nowhere", hides_tmp=hides_tmp))
    assert [check.id for check in found] == ["model_access"]
    return found[0]


@pytest.mark.parametrize(("user", "group"), USERS)
def test_a_model_for_everybody_passes(model: Path, user: str, group: str) -> None:
    assert access(model, user, group).status == "pass"


@pytest.mark.parametrize(("user", "group"), USERS)
@pytest.mark.parametrize(("what", "mode"), [("m/model-2.safetensors", 0o600), ("m", 0o700), (".", 0o700), ("m", 0o744), ("m", 0o711)])
def test_what_keeps_the_user_out_is_named(model: Path, user: str, group: str, what: str, mode: int) -> None:
    culprit = model.parent / what
    culprit.chmod(mode)
    found = access(model, user, group)
    culprit.chmod(0o755)
    assert found.status == "fail", found
    assert str(culprit.resolve()) in found.detail and str(culprit.resolve()) in str(found.fix), found


@pytest.mark.parametrize(("mode", "status"), [(0o644, "pass"), (0o640, "fail")])
def test_a_model_of_one_file(model: Path, mode: int, status: str) -> None:
    path = model / "model.gguf"
    path.touch()
    path.chmod(mode)
    assert access(path, NOT_THERE, NOT_THERE).status == status


@pytest.mark.parametrize(("user", "group"), USERS)
def test_links_are_followed_to_what_they_mean(model: Path, user: str, group: str, place: Path) -> None:
    # As in a hub's cache: the snapshot holds links into a store beside it.
    store = place / "blobs"
    store.mkdir(mode=0o755)
    (store / "abc").write_text("x", encoding="utf-8")
    (store / "abc").chmod(0o600)
    (model / "model-3.safetensors").symlink_to("../../blobs/abc")
    found = access(model, user, group)
    assert found.status == "fail" and str(store / "abc") in found.detail


def test_many_files_are_counted_and_not_all_listed(model: Path) -> None:
    for path in model.iterdir():
        path.chmod(0o600)
    for number in range(60):
        (model / f"more-{number}").touch(0o600)
    found = access(model, NOT_THERE, NOT_THERE)
    assert "and 60 more" in found.detail and "chmod -R o+rX" in str(found.fix)


def test_hundreds_of_files_fit_through_the_childs_answer(model: Path) -> None:
    names = [f"a-rather-long-name-of-a-shard-{number:05d}-of-04000.safetensors" for number in range(2000)]
    for name in names:
        (model / name).touch(0o600)
    for user in USERS:
        found = refused([str(model / name) for name in names], *user)
        assert found is not None and len(found) == 2000
        # Only root can try as another user.
        assert {each.tried for each in found} == {os.geteuid() == 0 and user == USERS[0]}


def test_what_the_sandbox_hides_is_found_behind_a_link(place: Path) -> None:
    inner = place / "inner"
    inner.mkdir()
    inner.chmod(0o755)
    again = place / "again"
    again.symlink_to(inner)
    found = access(again, NOT_THERE, NOT_THERE, hides_tmp=True)
    assert found.status == "fail" and "PrivateTmp=yes" in found.detail and "PrivateTmp: no" in str(found.fix)
    assert access(again, NOT_THERE, NOT_THERE).status == "pass"


def test_the_interpreter_counts_as_the_executable_does(place: Path) -> None:
    python = place / "python3"
    python.write_text("", encoding="utf-8")
    python.chmod(0o700)
    executable = place / "vllm"
    executable.write_text(f"#!{python}\n", encoding="utf-8")
    executable.chmod(0o755)
    (found,) = check_access(Asked("org/model", user=NOT_THERE, group=NOT_THERE, executable=str(executable)))
    assert (found.id, found.status) == ("executable_access", "fail") and str(python) in found.detail


def test_a_user_is_there_or_can_be_made(monkeypatch: pytest.MonkeyPatch) -> None:
    assert check_account(Asked("m", user="root", group="root")).status == "pass"
    monkeypatch.setattr("shutil.which", lambda tool, path=None: None)
    found = check_account(Asked("m", user=NOT_THERE, group=NOT_THERE))
    assert found.status == "fail" and "useradd" in found.detail
    monkeypatch.setattr("shutil.which", lambda tool, path=None: "/usr/sbin/" + tool)
    assert check_account(Asked("m", user=NOT_THERE, group=NOT_THERE)).status == "pass"
