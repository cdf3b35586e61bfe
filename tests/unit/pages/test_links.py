# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Links between the pages lead somewhere, also in the repository, where no Sphinx looks at them."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

import pytest
from pages.blocks import ROOT, anchors, links, name_of, pages
from release.contents import allowed

DOCS = ROOT / "docs"


def fault(page: Path, target: str) -> str | None:
    """Why a link leads nowhere; None when it leads somewhere."""
    if re.match(r"[a-z]+:", target):
        return None
    name, _hash, anchor = target.partition("#")
    path = (page.parent / name).resolve() if name else page
    if path.parent == DOCS / "reference":
        return "only `make docs` writes %s: name what it is about, as ansible-doc takes it" % name
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
    assert "only `make docs` writes" in str(fault(page, "reference/vllm_service_module.rst"))
    assert left_behind(page, "design.md") and left_behind(page, "../CONTRIBUTING.md#a-release")
    assert not left_behind(page, "tutorial.md#one") and not left_behind(page, "#a-job-to-do") and not left_behind(page, "https://x.example/")


def left_behind(page: Path, target: str) -> bool:
    """Whether a link leads to a file of the repository that the tarball does not have."""
    name = target.partition("#")[0]
    if not name or re.match(r"[a-z]+:", target):
        return False
    path = (page.parent / name).resolve()
    files = path.rglob("*") if path.is_dir() else [path]
    return not any(allowed(name_of(each)) for each in files)


def test_what_the_tarball_has_links_to_nothing_that_it_has_not() -> None:
    shipped = [page for page in pages() if allowed(name_of(page))]
    assert len(shipped) > 30
    assert [(place, target) for page in shipped for place, target in links(page) if left_behind(page, target)] == []


def test_no_page_is_lost() -> None:
    """Each page below docs/howto is in the index; what lies in docs/ itself comes into it by itself."""
    index = (DOCS / "index.md").read_text(encoding="utf-8")
    lost = [path.stem for path in DOCS.glob("howto/*.md") if "\nhowto/%s\n" % path.stem not in index]
    assert lost == []
    source = [index.replace("\nborrow\n", "\n")]
    runpy.run_path(str(DOCS / "conf.py"))["add_further_pages"](None, "index", source)
    assert source[0].partition(":caption: In depth")[2].partition("```")[0].endswith("\nborrow\n")
