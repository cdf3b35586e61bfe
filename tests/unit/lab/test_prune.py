# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What may be cleared from the cache."""

from __future__ import annotations

from pathlib import Path

from lab import bases, models, prune


def test_only_what_is_old_and_unused(tmp_path: Path) -> None:
    current = [bases.base_path("bookworm", tmp_path), models.path(tmp_path)]
    old, used, half = (tmp_path / "bases" / name for name in ("bookworm-0", "bookworm-1", ".building-trixie-7"))
    for path in (*current, old, used, half, tmp_path / "debs"):
        path.mkdir(parents=True)
    mountinfo = f"50 1 0:40 / / rw - overlay overlay rw,lowerdir=/x/layers/l:{used},upperdir=/x/upper\n"
    # What is being built belongs to its builder.
    assert prune.outdated(tmp_path, [mountinfo]) == [old]
    assert prune.outdated(tmp_path, []) == [old, used]
