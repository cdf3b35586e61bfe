# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""`make docs`: the pages of docs/ and the reference of every plugin, role and playbook as HTML, in build/docs.

antsibull-docs writes the reference of plugins and roles, from the copy of the tracked files; that of the playbooks comes from the
comment at the head of each. Sphinx makes pages of it all. A warning is a failure. Nothing is asked of any network.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
from pathlib import Path
from typing import List

import role_readmes
import tree
import yaml
from checks import Check, run

BIN = Path(sys.executable).parent
SOURCE = tree.ROOT / "build" / "docs-source"
PAGES = tree.ROOT / "build" / "docs"
REFERENCE = SOURCE / "reference"
# The index is written by hand (docs/reference.md); the others hold what no plugin of this collection has.
LEFT_OUT = ("index.rst", "environment_variables.rst")


def playbook_page(name: str, text: str) -> str:
    """The page of one playbook from the comment at its head, whose paragraphs are prose, a command, or a list of variables."""
    head = [line[1:].removeprefix(" ") for line in text.split("\n- ", 1)[0].splitlines() if line.startswith("#")]
    page = ["# %s playbook" % name, "In full `gpufleet.vllm.%s`." % name]
    for paragraph in "\n".join(head).split("\n\n"):
        lines = paragraph.splitlines()
        if all(line.startswith("  ") for line in lines):
            page.append("\n".join(["```shell", *(line.strip() for line in lines), "```"]))
        elif all(re.match(r"[a-z_]+ +\S|    ", line) for line in lines):
            page.append("| variable | |\n|---|---|" + "".join(_variables(lines)))
        else:
            page.append(paragraph)
    return "\n\n".join([*page, *_of_roles(text, "\n".join(head))]) + "\n"


def _of_roles(text: str, head: str) -> List[str]:
    """What the playbook reads of the variables of the roles that it runs, and its head does not tell of: from their argument_specs."""
    page = []
    imported = re.findall(r"import_tasks: (tasks/\S+)$", text, re.M)
    text = "\n".join([text, *((tree.ROOT / "playbooks" / file).read_text("utf-8") for file in imported)])
    for role in sorted(set(re.findall(r"name: gpufleet\.vllm\.(\w+)$", text, re.M))):
        specs = tree.ROOT / "roles" / role / "meta" / "argument_specs.yml"
        options = yaml.safe_load(specs.read_text("utf-8"))["argument_specs"]["main"]["options"]
        # One that the playbook sets for its role is no longer anybody's to set.
        read = [name for name in options if re.search(r"\b%s\b" % name, text) and not re.search(r"^ +%s:" % name, text, re.M)]
        rows = ["\n".join(role_readmes.row(name, options[name])) for name in read if not re.search(r"^%s\b" % name, head, re.M)]
        if rows:
            page.append("It also reads, of the role [%s](%s_role.rst):" % (role, role))
            page.append("| variable | type | default | meaning |\n|---|---|---|---|\n" + "\n".join(rows))
    return page


def _variables(lines: List[str]) -> List[str]:
    """Rows of a table. A line that begins with a name begins a row, one that is indented goes on with it."""
    rows: List[str] = []
    for line in lines:
        name, meaning = ("", line) if line.startswith(" ") else line.split(" ", 1)
        meaning = meaning.strip().replace("|", "\\|")
        rows.append("\n| `%s` | %s |" % (name, meaning) if name else "%s %s |" % (rows.pop()[: -len(" |")], meaning))
    return rows


def assemble(copy: Path) -> None:
    """Lay the pages out for Sphinx: docs/ as it is, and the playbooks' pages."""
    for old in (SOURCE, PAGES):
        shutil.rmtree(old, ignore_errors=True)
    shutil.copytree(copy / "docs", SOURCE)
    REFERENCE.mkdir()
    for path in sorted((copy / "playbooks").glob("*.yml")):
        (REFERENCE / ("%s_playbook.md" % path.stem)).write_text(playbook_page(path.stem, path.read_text("utf-8")), "utf-8")


def tidy(text: str) -> str:
    """A page of antsibull-docs for this site: a title that fits a list of pages, and no contents beside those that the theme shows."""
    title = re.search(r"^gpufleet\.vllm\.(\w+ \w+) -- .*\n\++\n", text, re.M)
    if title:
        text = text.replace(title[0], "%s\n%s\n" % (title[1], "+" * len(title[1])), 1)
    return re.sub(r"^\.\. contents::\n(?:   :\w+:.*\n)*", "", text, flags=re.M)


def checks(copy: Path) -> List[Check]:
    """Write the reference, then the pages."""
    env = {"ANSIBLE_COLLECTIONS_PATH": str(copy.parent.parent.parent), "ANSIBLE_HOME": str(tree.cache() / "home")}
    return [
        Check(
            "reference",
            [
                str(BIN / "antsibull-docs"), "collection", "--use-current", "--squash-hierarchy", "--fail-on-error",
                "--no-add-antsibull-docs-version", "--dest-dir", str(REFERENCE), "gpufleet.vllm",
            ],
            copy,
            env,
        ),
        Check("pages", [str(BIN / "sphinx-build"), "-q", "-W", "--keep-going", "-b", "html", str(SOURCE), str(PAGES)], copy, env),
    ]  # fmt: skip


def spoilt(pages: Path) -> List[str]:
    """The pages on which something went wrong that no warning was given for."""
    wrong = re.compile(r'class="system-message|in Furo-based documentation is unnecessary')
    return sorted(str(path.relative_to(pages)) for path in pages.rglob("*.html") if wrong.search(path.read_text("utf-8")))


def main() -> int:
    """Entry point."""
    missing = [name for name in tree.untracked_files() if name.startswith(("docs/", "plugins/", "roles/", "playbooks/"))]
    if missing:
        print("  %d untracked files are left out (git add them first): %s" % (len(missing), ", ".join(missing[:5])))
    with tree.copy("docs") as copy:
        assemble(copy)
        reference, pages = checks(copy)
        passed = run(reference)
        for name in LEFT_OUT:
            (REFERENCE / name).unlink(missing_ok=True)
        for path in REFERENCE.glob("*.rst"):
            path.write_text(tidy(path.read_text("utf-8")), "utf-8")
        done = [passed, passed and run(pages)]
    for name in spoilt(PAGES):
        print("  %s shows a message of Sphinx or of the theme in place of its content" % name)
        done[1] = False
    if all(done):
        print("Open %s" % os.path.relpath(PAGES / "index.html"))
    print("%d passed, %d failed" % (done.count(True), done.count(False)))
    return 0 if all(done) else 1


if __name__ == "__main__":
    sys.exit(main())
