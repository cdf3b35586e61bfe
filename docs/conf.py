# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""How Sphinx makes the pages. `make docs` runs it, on this directory and the reference that antsibull-docs writes beside it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from docutils import nodes

HERE = Path(__file__).resolve().parent

project = "gpufleet.vllm"
author = copyright = "the gpufleet.vllm authors"
html_title = "gpufleet.vllm"
extensions = ["myst_parser", "sphinx_antsibull_ext"]
exclude_patterns = ["conf.py"]
nitpicky = True
# Links within a page, and from page to page, hold down to this depth of headings.
myst_heading_anchors = 4
myst_enable_extensions = ["attrs_inline", "colon_fence"]
smartquotes = False
highlight_language = "none"
pygments_style = "default"
html_theme = "furo"
html_static_path = ["_static"]
html_css_files = ["pages.css"]
html_copy_source = html_show_sourcelink = False
# Everything that a page shows lies beside it: nothing comes from elsewhere.
antsibull_ext_color_scheme = "default-autodark"

# What the reference of plugins names of Ansible's own documentation. Its index can't be asked without a network.
ANSIBLE = "https://docs.ansible.com/ansible/latest/"
ANSIBLES_PAGES = {"action_plugins": "plugins/action.html", "common_return_values": "reference_appendices/common_return_values.html"}
# The list of the index that takes a page which stands in none.
FURTHER = re.compile(r"(?<=\n:caption: In depth\n\n)(?:[\w/-]+\n)+")


def add_further_pages(app: Any, docname: str, source: list[str]) -> None:
    """A page that no table of contents names comes to the end of the list FURTHER: nobody has to enter it."""
    if docname == "index":
        named = set(re.findall(r"^(?:.*<)?([\w/-]+)>?$", source[0], re.M))
        further = sorted(path.stem for path in HERE.glob("*.md") if path.stem not in named | {"index"})
        source[0] = FURTHER.sub(lambda found: found[0] + "".join(name + "\n" for name in further), source[0])


def ansibles_page(app: Any, env: Any, node: Any, content: Any) -> nodes.reference | None:
    """A reference to one of ANSIBLES_PAGES; whatever else is missing stays so, and fails the build."""
    page = ANSIBLES_PAGES.get(node["reftarget"])
    return None if page is None else nodes.reference("", "", content, refuri=ANSIBLE + page, internal=False)


def setup(app: Any) -> None:
    """Called by Sphinx."""
    app.connect("source-read", add_further_pages)
    app.connect("missing-reference", ansibles_page)
