# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The changelog: its fragments and releases are sound, and CHANGELOG.rst is what they come to.

    tests/gates/changelog.py
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import List

import tree
from checks import PATH

TOOL = Path(sys.executable).parent / "antsibull-changelog"


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
    return found


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
