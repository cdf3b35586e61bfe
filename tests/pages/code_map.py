# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The map of the code, as CONTRIBUTING.md and docs/design.md draw it."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

from .blocks import ROOT, code

DESIGN = ROOT / "docs" / "design.md"
DRAWN = (ROOT / "CONTRIBUTING.md", DESIGN, ROOT / "docs" / "decisions.md", ROOT / "tests" / "lab" / "README.md")
# What a path on the map may begin from, beside the root.
BASES = (ROOT, ROOT / "plugins" / "module_utils", ROOT / "tests" / "lab")
# Not there in a clone: the tools, and what they make.
MADE = (".venv/", "build/", "dist/", "changelogs/fragments/")


@cache
def rooms() -> dict[str, frozenset[str]]:
    """The rooms of plugins/module_utils by name, each with those that it may import."""
    found: dict[str, frozenset[str]] = {}
    for line in DESIGN.read_text(encoding="utf-8").splitlines():
        row = re.fullmatch(r"\| `(_\w+)/` \|.*\| ([^|]+) \|", line)
        if row is not None:
            words = re.sub(r"\([^)]*\)", "", row[2]).strip()
            everything = frozenset(found) if words == "all of the above" else frozenset()
            found[row[1]] = everything | frozenset(re.findall(r"`(_\w+)`", words))
    return found


def places(page: Path) -> list[tuple[str, str]]:
    """The paths that a page's text names: where it does so, and the path. Absolute ones are a host's."""
    named = [(place, text) for place, text in code(page) if re.fullmatch(r"[\w.*-]+(/[\w.*-]+)*/?", text) and "/" in text]
    return [(place, text) for place, text in named if not text.startswith(MADE)]


def is_there(path: str) -> bool:
    """Whether there is something at a path of the map, which may be a pattern."""
    return any(next(base.glob(path.rstrip("/")), None) is not None for base in BASES)
