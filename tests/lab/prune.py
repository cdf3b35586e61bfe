# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Clearing the cache of what earlier states of the checkout left in it."""

from __future__ import annotations

import shutil
from collections.abc import Iterable
from pathlib import Path

from lab import bases, models
from lab.plan import BASES


def outdated(cache: Path, mounted: Iterable[str]) -> list[Path]:
    """Bases and models of other recipes than today's that no mount uses; ``mounted`` are the texts of ``mountinfo`` files."""
    current = {bases.base_path(base, cache) for base in BASES} | {models.path(cache)}
    texts = list(mounted)
    found = [
        path for name in ("bases", "models") for path in sorted((cache / name).glob("[!.]*")) if path not in current
    ]
    return [path for path in found if not any(str(path) in text or f"/{path.name} " in text for text in texts)]


def prune(cache: Path) -> list[Path]:
    """Delete what is outdated, and say what that was."""
    found = outdated(cache, _mountinfos())
    for path in found:
        shutil.rmtree(path)
    return found


def _mountinfos() -> list[str]:
    texts = []
    for path in Path("/proc").glob("[0-9]*/mountinfo"):
        try:
            texts.append(path.read_text(encoding="utf-8"))
        except OSError:
            # The process has ended, or is ending: it uses nothing any more.
            continue
    return texts
