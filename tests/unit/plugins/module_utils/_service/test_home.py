# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What is left of a first deployment that was undone."""

from __future__ import annotations

from pathlib import Path

from ansible_collections.gpufleet.vllm.plugins.module_utils._service.home import remove_new_home


def test_caches_go_and_nothing_outside_is_touched(tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "precious").write_text("x")
    home = tmp_path / "vllm" / "kimi"
    (home / "cache" / "vllm").mkdir(parents=True)
    (home / "cache" / "link").symlink_to(elsewhere)
    (home / "huggingface" / "hub").mkdir(parents=True)
    (tmp_path / "vllm" / "neighbour").mkdir()
    assert remove_new_home(str(home))
    assert not home.exists() and (elsewhere / "precious").exists() and (tmp_path / "vllm" / "neighbour").exists()
    assert remove_new_home(str(home)), "none there is none left"


def test_downloads_and_links_stay(tmp_path: Path) -> None:
    (tmp_path / "kimi" / "huggingface").mkdir(parents=True)
    (tmp_path / "kimi" / "huggingface" / "blob").write_text("weights")
    assert not remove_new_home(str(tmp_path / "kimi")) and (tmp_path / "kimi" / "huggingface" / "blob").exists()
    (tmp_path / "linked").symlink_to(tmp_path / "kimi")
    assert not remove_new_home(str(tmp_path / "linked")) and (tmp_path / "linked").is_symlink()
