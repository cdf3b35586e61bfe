# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A model from another host: a stand-in for ssh runs the very commands in a shell of this one, and breaks off on request."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.gpufleet.vllm.plugins.module_utils._core.errors import GpuFleetError
from ansible_collections.gpufleet.vllm.plugins.module_utils._fetch.manifest import RECORD

from .conftest import REPO, Place, content

WEIGHTS = "model-00001-of-00002.safetensors"
# Options, then the host, then one command. `cuts` says after how many bytes the next copies break off.
SSH = """#!/bin/bash
here=$(dirname "$0")
while [ "${1#-}" != "$1" ]; do [ "$1" = -o ] && shift; shift; done
echo "$1 $2" >> "$here/asked"
[ "$1" = "nobody@elsewhere" ] && { echo "nobody@elsewhere: Permission denied (publickey)." >&2; exit 255; }
cut=$(head -n 1 "$here/cuts" 2>/dev/null)
case "$2" in tail*) if [ -n "$cut" ]; then
    sed -i 1d "$here/cuts"; sh -c "$2" | head -c "$cut"; echo "Connection reset by peer" >&2; exit 255; fi;; esac
exec sh -c "$2"
"""


class Ssh:
    """The stand-in's place."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def cut(self, *after: int) -> None:
        """Let the next copies break off."""
        (self.directory / "cuts").write_text("".join("%d\n" % each for each in after), encoding="utf-8")

    @property
    def asked(self) -> list[str]:
        """The commands, one a line, the host before each."""
        path = self.directory / "asked"
        return path.read_text(encoding="utf-8").splitlines() if path.exists() else []


@pytest.fixture
def ssh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Ssh:
    """First in the path."""
    directory = tmp_path / "bin"
    directory.mkdir()
    (directory / "ssh").write_text(SSH, encoding="utf-8")
    (directory / "ssh").chmod(0o755)
    monkeypatch.setenv("PATH", "%s:%s" % (directory, os.environ["PATH"]))
    return Ssh(directory)


def wanted() -> dict[str, bytes]:
    """What comes from a directory without a record."""
    return {name: data for name, data in content().items() if not name.startswith(".")}


def test_it_comes_over_and_is_then_asked_for_no_more(place: Place, mirror: Path, ssh: Ssh) -> None:
    planned = place.ensure(check_mode=True, repo=None, source="ops@mirror01:%s" % mirror)
    assert place.names == []
    done = place.ensure(repo=None, source="ops@mirror01:%s" % mirror)
    assert done["changed"] and done["actions"] == planned["actions"] and place.files() == wanted()
    record = json.loads((place.path / RECORD).read_text(encoding="utf-8"))
    assert all(len(each["sha256"]) == 64 for each in record["files"])
    before = len(ssh.asked)
    assert not place.ensure(repo=None, source="ops@mirror01:%s" % mirror, verify="full")["changed"]
    assert len(ssh.asked) == before


def test_it_is_held_against_the_record_there(place: Place, ssh: Ssh) -> None:
    place.ensure()
    options: dict[str, Any] = {"path": str(place.root / "copy"), "source": "mirror01:%s" % place.path}
    assert place.ensure(**options)["commit"] == place.hub.models[REPO].head
    assert not [each for each in ssh.asked if "sha256sum" in each]
    (place.path / "config.json").write_bytes(b"x" * len(content()["config.json"]))
    with pytest.raises(GpuFleetError) as failed:
        place.ensure(**{**options, "path": str(place.root / "bad")})
    assert failed.value.result["kind"] == "hash_mismatch" and not (place.root / "bad").exists()
    with pytest.raises(GpuFleetError, match=r"has tests/tiny at .*, not tests/other"):
        place.ensure(**{**options, "path": str(place.root / "other")}, repo="tests/other")


def test_what_has_no_record_there_is_no_repository(place: Place, mirror: Path, ssh: Ssh) -> None:
    with pytest.raises(GpuFleetError, match="nothing proves that it is tests/tiny") as failed:
        place.ensure(source="mirror01:%s" % mirror)
    assert failed.value.result["kind"] == "unproven" and place.names == []


def test_what_breaks_off_goes_on_from_there(place: Place, mirror: Path, ssh: Ssh) -> None:
    ssh.cut(10**6)
    place.ensure(repo=None, source="mirror01:%s" % mirror, include=[WEIGHTS])
    assert place.files() == {WEIGHTS: content()[WEIGHTS]}
    assert [each.split(" ")[3] for each in ssh.asked if " tail " in each] == ["+1", "+1000001"]


def test_what_was_given_up_goes_on_in_the_next_run(place: Place, mirror: Path, ssh: Ssh) -> None:
    ssh.cut(10**6, 0, 0, 0, 0)
    with pytest.raises(GpuFleetError, match="mirror01 can't be reached over SSH as root of this host does: Connection reset"):
        place.ensure(repo=None, source="mirror01:%s" % mirror, include=[WEIGHTS], retries=1)
    assert place.names == ["tiny.partial"]
    ssh.cut()
    place.ensure(repo=None, source="mirror01:%s" % mirror, include=[WEIGHTS])
    assert place.files() == {WEIGHTS: content()[WEIGHTS]} and " tail -c +1000001 " in [each for each in ssh.asked if "tail" in each][-1]


def test_who_is_not_let_in_is_told_whose_key_it_takes(place: Place, ssh: Ssh) -> None:
    with pytest.raises(GpuFleetError, match=r"can't be reached over SSH.*Permission denied.*known_hosts") as failed:
        place.ensure(repo=None, source="nobody@elsewhere:/models/x")
    assert failed.value.result["kind"] == "unreachable" and place.names == []


def test_a_directory_that_is_not_there_is_told(place: Place, ssh: Ssh, tmp_path: Path) -> None:
    with pytest.raises(GpuFleetError, match="mirror01 has no directory"):
        place.ensure(repo=None, source="mirror01:%s" % (tmp_path / "it's not there"))
    assert place.names == []
