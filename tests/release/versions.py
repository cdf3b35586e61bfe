# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Whether everything that names the collection's version names the same one, and what a publisher still has to set."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from urllib.parse import urlsplit

import yaml
from ansible.utils.version import SemanticVersion

_TARBALL = re.compile(r"\bgpufleet-vllm-(\d+\.\d+\.\d+[\w.+-]*?)\.tar\.gz")
_ADDED = re.compile(r"^\s*version_added: *[\"']?([\w.+-]+)", re.M)
# Where users read of a version.
_READ = ("README", "docs/", "plugins/", "roles/", "examples/")
# Names that RFC 2606 and RFC 6761 keep out of everybody's hands: an address there leads nobody astray.
_RESERVED = re.compile(r"(^|\.)(example(\.(com|net|org))?|invalid|test|localhost)$")


def declared(root: Path) -> str:
    """galaxy.yml's version, which is the one that counts."""
    return str(yaml.safe_load((root / "galaxy.yml").read_text(encoding="utf-8"))["version"])


def problems(root: Path, tracked: Iterable[str]) -> list[str]:
    """Where the tree says another version than galaxy.yml, or tells of less than it has, a line each."""
    version = declared(root)
    found = _changelog_problems(root, version)
    for name in sorted(tracked):
        path = root / name
        if path.suffix not in (".md", ".py", ".yml", ".yaml") or not name.startswith(_READ):
            continue
        text = path.read_text(encoding="utf-8")
        found += ["%s names the tarball of %s" % (name, said) for said in _TARBALL.findall(text) if said != version]
        found += ["%s has something of %s, which is to come" % (name, said) for said in _ADDED.findall(text) if _newer(said, version)]
    return found


def _newer(one: str, other: str) -> bool:
    """Whether a version is newer than another one. What is no version is told of as if it were."""
    try:
        return bool(SemanticVersion(one) > SemanticVersion(other))
    except ValueError:
        return True


def _changelog_problems(root: Path, version: str) -> list[str]:
    releases = yaml.safe_load((root / "changelogs" / "changelog.yaml").read_text(encoding="utf-8"))["releases"]
    found = []
    if version not in releases:
        found.append("changelogs/changelog.yaml has no release %s; antsibull-changelog release makes it of the fragments" % version)
    found += ["changelogs/changelog.yaml has %s, which is newer" % said for said in releases if _newer(said, version)]
    left = sorted(path.name for path in (root / "changelogs" / "fragments").glob("[!.]*"))
    if left:
        found.append(
            "changelogs/fragments has what no release tells of (%s): antsibull-changelog release --update-existing" % ", ".join(left)
        )
    rst = root / "CHANGELOG.rst"
    heading = re.search(r"^v(\S+)\n=+$", rst.read_text(encoding="utf-8"), re.M) if rst.is_file() else None
    if heading is None or heading[1] != version:
        found.append("CHANGELOG.rst begins with %s" % (heading[1] if heading else "no release"))
    return found


def placeholder(url: str) -> bool:
    """Whether an address stands for one that only a publisher knows: its host can't be anybody's."""
    host = urlsplit(url).hostname
    return host is None or _RESERVED.search(host) is not None


def to_set_before_publishing(root: Path) -> list[str]:
    """The keys of galaxy.yml that still hold a placeholder, each with what it says."""
    galaxy = yaml.safe_load((root / "galaxy.yml").read_text(encoding="utf-8"))
    keys = ("repository", "documentation", "homepage", "issues")
    return ["%s: %s" % (key, galaxy[key]) for key in keys if galaxy.get(key) and placeholder(galaxy[key])]
