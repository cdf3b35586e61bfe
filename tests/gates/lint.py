# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Everything that reads the code without running it. `make lint`; one of them: tests/gates/lint.py mypy"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import List

import tree
from checks import Check, main

BIN = Path(sys.executable).parent
# The checkout's own link, so that every module has its full name.
LINKED = "collections/ansible_collections/gpufleet/vllm"


def checks(copy: Path) -> List[Check]:
    """All of them. ``copy`` is the physical copy that Ansible's tools need."""
    root = tree.ROOT
    files = tree.tracked_files()
    yaml = [name for name in files if name.endswith((".yml", ".yaml"))]
    shell = [name for name in files if _is_shell(root / name)]
    python = [name for name in files if name.endswith(".py")]
    offline = {"ANSIBLE_COLLECTIONS_PATH": str(copy.parent.parent.parent), "ANSIBLE_HOME": str(tree.cache() / "home")}
    return [
        Check("yamllint", [str(BIN / "yamllint"), "--strict", *yaml], root),
        Check("ruff", [str(BIN / "ruff"), "check", "--quiet", *python], root),
        Check("mypy", [str(BIN / "mypy"), "--no-error-summary", *_typed(python)], root),
        Check("role specs", [sys.executable, "tests/gates/mirror_specs.py", "--check"], root),
        Check("role readmes", [sys.executable, "tests/gates/role_readmes.py", "--check"], root),
        Check("messages", [sys.executable, "tests/gates/messages.py", "--check"], root),
        Check("shellcheck", [str(BIN / "shellcheck"), *shell], root),
        Check(
            "ansible-lint",
            [str(BIN / "ansible-lint"), "--profile", "production", "--strict", "--offline", "-q", "--nocolor"],
            copy,
            offline,
        ),
        Check("antsibull-changelog", [sys.executable, "tests/gates/changelog.py"], root),
        Check(
            "antsibull-docs",
            [
                str(BIN / "antsibull-docs"),
                "lint-collection-docs",
                "--plugin-docs",
                "--validate-collection-refs=self",
                "--disallow-unknown-collection-refs",
                ".",
            ],
            copy,
            offline,
        ),
        Check("galaxy-importer", [sys.executable, "tests/gates/importer.py"], root),
    ]


def _typed(python: List[str]) -> List[str]:
    return [
        "%s/%s" % (LINKED, name) if name.startswith("plugins/") else name
        for name in python
        if name.startswith(("plugins/", "tests/"))
    ]


def _is_shell(path: Path) -> bool:
    if path.suffix == ".sh":
        return True
    if path.suffix:
        return False
    with path.open("rb") as handle:
        first = handle.readline(80)
    return first.startswith(b"#!") and (first.rstrip().endswith(b"sh") or b"/sh " in first or b"bash " in first)


if __name__ == "__main__":
    missing = tree.untracked_files()
    if missing:
        print("  %d untracked files are not checked (git add them first): %s" % (len(missing), ", ".join(missing[:5])))
    with tree.copy("lint") as copied:
        main(checks(copied))
