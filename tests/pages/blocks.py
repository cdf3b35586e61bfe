# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the pages hold: fenced examples, code in the text, headings and links, each with where it stands."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

import yaml
from markdown_it import MarkdownIt
from markdown_it.token import Token

ROOT = Path(__file__).resolve().parents[2]


class Block(NamedTuple):
    """One fenced example. ``place`` is the page and the line, ``language`` what stands behind the fence."""

    place: str
    language: str
    text: str


@cache
def pages() -> tuple[Path, ...]:
    """Every page that people read: the README, those of the roles, CONTRIBUTING and docs/."""
    found = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *ROOT.glob("roles/*/README.md"), *ROOT.glob("docs/**/*.md")]
    return tuple(sorted(found))


def name_of(page: Path) -> str:
    """A page's path from the root."""
    return str(page.relative_to(ROOT))


@cache
def _tokens(page: Path) -> tuple[Token, ...]:
    return tuple(MarkdownIt("commonmark").enable("table").parse(page.read_text(encoding="utf-8")))


def blocks(page: Path) -> Iterator[Block]:
    """The fenced examples of a page, those within lists too."""
    for token in _tokens(page):
        if token.type == "fence":
            yield Block("%s:%d" % (name_of(page), (token.map or [0])[0] + 1), token.info.strip(), token.content)


def examples(*languages: str) -> list[Block]:
    """The examples of all pages in these languages, and those in what pages are made from: modules, filters, heads of playbooks."""
    return [block for block in _all() if block.language in languages]


@cache
def _all() -> tuple[Block, ...]:
    written = [block for page in pages() for block in blocks(page)]
    return (*written, *_of_modules(), *_of_filters(), *_of_playbooks())


def _of_modules() -> Iterator[Block]:
    for path in sorted((ROOT / "plugins" / "modules").glob("*.py")):
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.Assign) and [getattr(target, "id", None) for target in node.targets] == ["EXAMPLES"]:
                yield Block("%s:%d" % (name_of(path), node.lineno), "yaml", str(ast.literal_eval(node.value)))


def _of_filters() -> Iterator[Block]:
    for path in sorted((ROOT / "plugins" / "filter").glob("*.yml")):
        yield Block(name_of(path), "yaml", str(yaml.safe_load(path.read_text(encoding="utf-8"))["EXAMPLES"]))


def _of_playbooks() -> Iterator[Block]:
    """The commands in the comment that a playbook begins with."""
    for path in sorted((ROOT / "playbooks").glob("*.yml")):
        head = path.read_text(encoding="utf-8").partition("\n\n")[0]
        lines = [line[1:].strip() for line in head.splitlines() if line.startswith("#   ansible")]
        yield Block(name_of(path), "shell", "\n".join(lines) + "\n")


def _inline(page: Path) -> Iterator[tuple[int, Token]]:
    for token in _tokens(page):
        for child in token.children or []:
            yield (token.map or [0])[0] + 1, child


def code(page: Path) -> Iterator[tuple[str, str]]:
    """The code within a page's text: where it stands, and what it says."""
    for line, token in _inline(page):
        if token.type == "code_inline":
            yield "%s:%d" % (name_of(page), line), token.content


def links(page: Path) -> Iterator[tuple[str, str]]:
    """A page's links and pictures: where they stand, and where they lead."""
    for line, token in _inline(page):
        target = token.attrGet("href") if token.type == "link_open" else token.attrGet("src") if token.type == "image" else None
        if target:
            yield "%s:%d" % (name_of(page), line), str(target)


@cache
def anchors(page: Path) -> frozenset[str]:
    """The anchors of a page's headings, as the repository's web pages make them."""
    tokens = _tokens(page)
    titles = [tokens[at + 1] for at, token in enumerate(tokens) if token.type == "heading_open"]
    texts = ["".join(child.content for child in title.children or []) for title in titles]
    return frozenset(re.sub(r"[^\w\- ]", "", text.lower()).replace(" ", "-") for text in texts)
