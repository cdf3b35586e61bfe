# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The changelog: its fragments and releases are sound, each release lists its plugins, and CHANGELOG.rst is what they come to.

    tests/gates/changelog.py
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any, Dict, List, Set

import tree
import yaml
from checks import PATH

TOOL = Path(sys.executable).parent / "antsibull-changelog"
# What plugins/ has that no user names.
_INSIDE = {"action", "doc_fragments", "module_utils", "plugin_utils"}
# Of what a plugin documents, since when there is the plugin; those of its options stand further in.
_SINCE = re.compile(r"^ {0,2}version_added: *[\"']?([0-9][0-9A-Za-z.+-]*)", re.MULTILINE)


def problems() -> List[str]:
    """What is wrong with the changelog, a line each."""
    with tree.copy("changelog") as copy:
        page = copy / "CHANGELOG.rst"
        before = page.read_text(encoding="utf-8") if page.exists() else ""
        found = _run(copy, "lint") + _run(copy, "lint-changelog-yaml", "changelogs/changelog.yaml")
        if not found:
            found = _run(copy, "generate")
        if not found and page.read_text(encoding="utf-8") != before:
            found = ["CHANGELOG.rst is not what changelogs/changelog.yaml comes to: antsibull-changelog generate"]
        found += unlisted(copy)
    return found


def unlisted(root: Path) -> List[str]:
    """The modules and plugins that the release which brought them does not list, a line each. One that is still to come lists nothing."""
    releases = yaml.safe_load((root / "changelogs" / "changelog.yaml").read_text(encoding="utf-8"))["releases"]
    listed = {version: _listed(release or {}) for version, release in releases.items()}
    found = []
    for path in sorted((root / "plugins").glob("*/*")):
        since = _SINCE.search(path.read_text(encoding="utf-8")) if _documents(path) else None
        name = "%s/%s" % (path.parent.name, path.stem)
        if since and name not in listed.get(since[1], {name}):
            found.append(
                "changelogs/changelog.yaml: release %s does not list %s: antsibull-changelog release --update-existing --reload-plugins"
                % (since[1], name)
            )
    return found


def _documents(path: Path) -> bool:
    return path.parent.name not in _INSIDE and path.suffix in (".py", ".yml", ".yaml")


def _listed(release: Dict[str, Any]) -> Set[str]:
    kinds = {"modules": release.get("modules") or [], **(release.get("plugins") or {})}
    return {"%s/%s" % (kind, each["name"]) for kind, those in kinds.items() for each in those}


def _run(copy: Path, *arguments: str) -> List[str]:
    done = subprocess.run(
        [str(TOOL), *arguments],
        cwd=copy, env={**os.environ, "PATH": PATH, "ANSIBLE_HOME": str(tree.cache() / "home")}, check=False,
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace",
    )  # fmt: skip
    if done.returncode == 0:
        return []
    return ["antsibull-changelog %s: %s" % (" ".join(arguments), done.stdout.strip() or "exit code %d" % done.returncode)]


def main() -> int:
    """Entry point."""
    found = problems()
    print("\n".join(found), end="\n" if found else "")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
