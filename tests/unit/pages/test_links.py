# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Links between the pages lead somewhere, also in the repository, where no Sphinx looks at them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from pages.blocks import ROOT, anchors, links, name_of, pages
from pages.known import filters, modules, playbooks, roles

DOCS = ROOT / "docs"
KINDS = {"module": set(modules()), "role": set(roles()), "playbook": set(playbooks()), "filter": set(filters())}


def reference(path: Path) -> bool:
    """Whether `make docs` writes this page, from the code's own documentation."""
    found = re.fullmatch(r"(\w+)_(module|role|playbook|filter)\.(rst|md)", path.name)
    return path.parent == DOCS / "reference" and found is not None and found[1] in KINDS[found[2]]


def fault(page: Path, target: str) -> str | None:
    """Why a link leads nowhere; None when it leads somewhere."""
    if re.match(r"[a-z]+:", target):
        return None
    name, _hash, anchor = target.partition("#")
    path = (page.parent / name).resolve() if name else page
    if reference(path):
        return None
    if not path.exists():
        return "there is no %s" % name
    if anchor and anchor not in anchors(path):
        return "%s has no heading %s; it has: %s" % (name or name_of(page), anchor, ", ".join(sorted(anchors(path))))
    return None


@pytest.mark.parametrize("page", pages(), ids=name_of)
def test_every_link_leads_somewhere(page: Path) -> None:
    assert [(place, why) for place, target in links(page) if (why := fault(page, target))] == []


def test_the_rule_finds_what_is_wrong() -> None:
    page = DOCS / "index.md"
    assert fault(page, "nowhere.md") == "there is no nowhere.md"
    assert "no heading nothing" in str(fault(page, "tutorial.md#nothing"))
    assert "there is no reference" in str(fault(page, "reference/vllm_servise_module.rst"))
    assert fault(page, "reference/vllm_service_module.rst") is None


def test_no_page_is_lost() -> None:
    """Each page below docs/howto is in the index; what lies in docs/ itself comes into it by itself."""
    index = (DOCS / "index.md").read_text(encoding="utf-8")
    assert "(further pages)" in index
    lost = [path.stem for path in DOCS.glob("howto/*.md") if "\nhowto/%s\n" % path.stem not in index]
    assert lost == []
