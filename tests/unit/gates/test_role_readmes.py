# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Ansible's markup has no place in a README."""

from __future__ import annotations

import re

import pytest
import role_readmes
from tree import ROOT


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("as O(gpufleet.vllm.vllm_service#module:replace) has it", "as `replace` of `vllm_service` has it"),
        ("said in RV(gpufleet.vllm.gpu_reclaim#module:left_alone), too", "said in `left_alone` of `gpu_reclaim`, too"),
        ("see RV(ignore:changed) of M(ansible.builtin.copy)", "see `changed` of `ansible.builtin.copy`"),
        ("O(scope=all) and V(a|b), E(HOME)", "`scope=all` and `a\\|b`, `HOME`"),
    ],
)
def test_markup_becomes_code(text: str, shown: str) -> None:
    assert role_readmes.plain(text) == shown


def test_no_readme_of_a_role_shows_markup() -> None:
    readmes = sorted((ROOT / "roles").glob("*/README.md"))
    assert len(readmes) > 5
    assert [path.parent.name for path in readmes if re.search(r"\b(RV|[OVCMEP])\(", path.read_text(encoding="utf-8"))] == []
