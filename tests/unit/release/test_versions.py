# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""One version everywhere, a changelog that tells of it, and addresses that a publisher still has to set."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from release import versions

Change = Callable[[Path], object]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A tree whose versions agree."""
    for name, text in {
        "galaxy.yml": "version: 0.2.0\nrepository: https://git.example.com/x\nissues: https://codeberg.org/x/issues\n",
        "changelogs/changelog.yaml": yaml.safe_dump({"releases": {"0.1.0": {}, "0.2.0": {}}}),
        "CHANGELOG.rst": "Notes\n=====\n\nv0.2.0\n======\n\nv0.1.0\n======\n",
        "README.md": "install gpufleet-vllm-0.2.0.tar.gz\n",
        "docs/page.md": "nothing of a version\n",
        "plugins/modules/x.py": 'DOCUMENTATION = """\nversion_added: 0.1.0\n"""\n',
    }.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text, encoding="utf-8")
    return tmp_path


def found(root: Path) -> list[str]:
    return versions.problems(root, [str(path.relative_to(root)) for path in root.rglob("*") if path.is_file()])


def write(name: str, text: str) -> Change:
    def change(root: Path) -> None:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text, encoding="utf-8")

    return change


def test_versions_that_agree(root: Path) -> None:
    assert found(root) == []
    write("changelogs/fragments/.keep", "")(root)
    assert found(root) == []


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (write("docs/page.md", "get gpufleet-vllm-0.1.0.tar.gz\n"), "docs/page.md names the tarball of 0.1.0"),
        (write("plugins/modules/x.py", 'version_added: "0.3.0"\n'), "plugins/modules/x.py has something of 0.3.0, which is to come"),
        (write("roles/r/meta/argument_specs.yml", "version_added: soon\n"), "has something of soon, which is to come"),
        (write("changelogs/fragments/late.yml", "---\n"), "what no release tells of (late.yml): antsibull-changelog release"),
        (write("changelogs/changelog.yaml", "releases: {0.1.0: {}}\n"), "changelogs/changelog.yaml has no release 0.2.0"),
        (write("changelogs/changelog.yaml", "releases: {0.2.0: {}, 1.0.0: {}}\n"), "changelogs/changelog.yaml has 1.0.0, which is newer"),
        (write("CHANGELOG.rst", "v0.1.0\n======\n"), "CHANGELOG.rst begins with 0.1.0"),
        (lambda root: (root / "CHANGELOG.rst").unlink(), "CHANGELOG.rst begins with no release"),
    ],
)
def test_what_says_another_version_is_named(root: Path, change: Change, problem: str) -> None:
    change(root)
    (said,) = found(root)
    assert problem in said


def test_an_address_of_nobodys_is_a_placeholder(root: Path) -> None:
    assert versions.to_set_before_publishing(root) == ["repository: https://git.example.com/x"]
    for url in ("https://example.com", "https://git.example.org/a", "https://host.invalid/", "", "git.example.com/x"):
        assert versions.placeholder(url), url
    for url in ("https://codeberg.org/example/example", "https://example.com.de/x"):
        assert not versions.placeholder(url), url
