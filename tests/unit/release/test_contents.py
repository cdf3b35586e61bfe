# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What is in a tarball is judged by its own files, by what it says of itself, and by the tree."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest
from release import contents

from .conftest import GALAXY, Pack, tracked_in


def test_a_tarball_of_the_tree_is_good(root: Path, pack: Pack) -> None:
    assert contents.problems(pack(), root, tracked_in(root)) == []


@pytest.mark.parametrize(
    "name",
    ["tests/unit/test_x.py", "Makefile", ".ci/run", "collections/x", "docs/design.md", "docs/decisions.md", "docs/dependencies.md",
     "docs/conf.py", "docs/_static/pages.css", "playbooks/collections/x.yml", "inventories/lab/hosts", "pyproject.toml", ".git/config",
     "plugins/modules/__pycache__/x.pyc", "build/x.tar.gz", "dist/x.tar.gz", "requirements-dev.txt", "ansible.cfg", "CONTRIBUTING.md",
     "requirements-test.txt", "requirements-newest.txt",
     "plugins/modules/notes.txt", "galaxy.yml"],
)  # fmt: skip
def test_what_only_a_checkout_needs_does_not_belong_in_it(root: Path, pack: Pack, name: str) -> None:
    (root / name).parent.mkdir(parents=True, exist_ok=True)
    (root / name).touch()
    held = {each: (root / each).read_bytes() for each in [*contents.NEEDED, name]}
    assert contents.problems(pack(held), root, tracked_in(root)) == ["%s does not belong in it" % name]


def test_what_git_does_not_know_does_not_belong_in_it(root: Path, pack: Pack) -> None:
    tracked = tracked_in(root)
    (root / "docs" / "scratch.md").write_text("notes\n", encoding="utf-8")
    held = {each: (root / each).read_bytes() for each in [*contents.NEEDED, "docs/scratch.md"]}
    assert contents.problems(pack(held), root, tracked) == ["docs/scratch.md does not belong in it"]


def test_what_is_promised_and_what_the_tree_has_must_be_in_it(root: Path, pack: Pack) -> None:
    (root / "docs" / "swap.md").write_text("a page\n", encoding="utf-8")
    held = {each: (root / each).read_bytes() for each in contents.NEEDED - {"LICENSE"}}
    assert contents.problems(pack(held), root, tracked_in(root)) == ["LICENSE is missing", "docs/swap.md is missing"]


def test_checksums_agree_with_the_files_and_the_tree(root: Path, pack: Pack) -> None:
    held = {each: (root / each).read_bytes() for each in contents.NEEDED}
    wrong = pack(held, sums={"LICENSE": hashlib.sha256(b"").hexdigest()})
    assert contents.problems(wrong, root, tracked_in(root)) == ["LICENSE has another checksum in FILES.json"]
    other = pack({**held, "LICENSE": b"mine\n"})
    assert contents.problems(other, root, tracked_in(root)) == ["LICENSE is another file in the tree"]


def test_links_weights_and_names_are_looked_at(root: Path, pack: Pack, monkeypatch: pytest.MonkeyPatch) -> None:
    linked = pack(links={"docs/passwd.md": "/etc/passwd"})
    assert contents.problems(linked, root, tracked_in(root)) == ["%s: docs/passwd.md is no plain file" % linked.name]
    named = pack(name="gpufleet-vllm-0.2.0.tar.gz")
    assert contents.problems(named, root, tracked_in(root)) == ["its name is not that of galaxy.yml's version 0.1.0"]
    (root / "README.md").write_bytes(b"x" * (contents.FILE_KIB * 1024 + 1))
    assert contents.problems(pack(), root, tracked_in(root)) == ["README.md weighs more than %d KiB" % contents.FILE_KIB]
    monkeypatch.setattr(contents, "TARBALL_KIB", 0)
    assert "the whole weighs more than 0 KiB" in contents.problems(pack(), root, tracked_in(root))


def test_it_says_what_galaxy_yml_says(root: Path, pack: Pack) -> None:
    text = (root / "galaxy.yml").read_text(encoding="utf-8")
    (root / "galaxy.yml").write_text(text.replace(str(GALAXY["repository"]), "https://git.example.com/y"), encoding="utf-8")
    (found,) = contents.problems(pack(), root, tracked_in(root))
    assert found == "MANIFEST.json says repository https://git.example.com/x, galaxy.yml https://git.example.com/y"


def test_two_builds_differ_by_what_they_hold_and_not_by_its_order(root: Path, pack: Pack) -> None:
    one = pack()
    assert contents.differences(one, pack(backwards=True)) == []
    held = {each: (root / each).read_bytes() for each in contents.NEEDED}
    other = pack({**held, "LICENSE": b"mine\n"}, name="other.tar.gz")
    assert contents.differences(one, other) == ["FILES.json", "LICENSE"]
