# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The tables of docs/errors.md come from the messages in the code.

    messages.py           fills the tables
    messages.py --check   fails when they are not what would be filled in, or when nothing says what to do about a message

Everything above the marker line is written by hand. What to do stands in the message itself, or in tests/gates/next_steps.yml.
"""

from __future__ import annotations

import re
import sys
from typing import Any, Dict, List, Optional, Set, Tuple

import told
import yaml
from tree import ROOT

PAGE = ROOT / "docs" / "errors.md"
MARKER = "<!-- What is below is written by tests/gates/messages.py from the messages in the code. -->"
RULES: Dict[str, List[Dict[str, Any]]] = yaml.safe_load((ROOT / "tests/gates/next_steps.yml").read_text(encoding="utf-8"))
# A sentence that begins like this says what to do.
VERBS = (
    "Add|Ask|Bring|Call|Check|Choose|Compare|Complete|Correct|Create|Define|Deploy|Free|Give|If|Install|Keep|Leave|Look|Make|Mend|Move|Name|Narrow|"
    "Pin|Put|Read|Remove|Rename|Run|Say|See|Set|Start|Stop|Then|Try|Unset|Update|Use|Wait|Write"
)
SENTENCE = re.compile(r"(?<=[.!?;])\s+(?=[A-Z`…])")


def split(text: str) -> Tuple[str, str]:
    """(what is wrong, what to do), where a sentence of the message says what to do; else all of it, and nothing."""
    sentences = SENTENCE.split(text.strip())
    for at, sentence in enumerate(sentences):
        if at and re.match(r"(%s)\b" % VERBS, sentence):
            return " ".join(sentences[:at]), " ".join(sentences[at:])
    return text.strip(), ""


def step(text: str) -> Optional[int]:
    """Which of the rules is for a message."""
    return next((at for at, rule in enumerate(RULES["steps"]) if re.search(rule["message"], text, re.S)), None)


def section(place: str) -> int:
    """Under which heading a message is met, by the place that holds it."""
    fitting = [(len(start), at) for at, each in enumerate(RULES["sections"]) for start in each["places"] if place.startswith(start)]
    return max(fitting)[1]


def cell(text: str) -> str:
    """A message as the cell of a table: as it is printed, its code as code."""
    parts = re.split(r"(`[^`]+`)", " ".join(text.split()))
    plain = [part if at % 2 else re.sub(r"([*_<>\[\]\\])", r"\\\1", part) for at, part in enumerate(parts)]
    return "".join(plain).replace("|", "\\|").replace("`{{", "` {{")


def tables() -> Tuple[str, List[str]]:
    """The text below the marker, and what is wrong with the messages or with the rules for them."""
    found, _elsewhere = told.of_plugins()
    rows: List[Dict[str, str]] = [{} for _section in RULES["sections"]]
    wrong: List[str] = []
    used: Set[int] = set()
    for message in [*told.of_plays(), *found]:
        what, todo = split(message.text)
        rule = step(message.text) if not todo else None
        if rule is not None:
            used.add(rule)
            todo = RULES["steps"][rule]["do"].replace("|", "\\|")
        elif todo:
            todo = cell(todo)
        else:
            wrong.append("%s: nothing says what to do about: %s" % (message.place, message.text))
        rows[section(message.place)][cell(what)] = todo
    stale = [each["message"] for at, each in enumerate(RULES["steps"]) if at not in used]
    wrong += ["tests/gates/next_steps.yml: no message is left for the rule %r" % pattern for pattern in stale]
    parts = []
    for each, lines in zip(RULES["sections"], rows, strict=True):
        if lines:
            body = "".join("\n| %s | %s |" % line for line in sorted(lines.items(), key=lambda line: line[0].lower()))
            parts.append("## %s\n\n%s\n\n| message | what to do |\n|---|---|%s\n" % (each["heading"], each["when"], body))
    return "\n".join(parts), wrong


def main(argv: List[str]) -> int:
    """Fill the tables, or hold them against what would be filled in."""
    text, wrong = tables()
    page = PAGE.read_text(encoding="utf-8").split(MARKER)[0] + MARKER + "\n\n" + text
    if argv != ["--check"]:
        PAGE.write_text(page, encoding="utf-8")
    elif PAGE.read_text(encoding="utf-8") != page:
        wrong.append("docs/errors.md does not have the messages that are in the code. Run tests/gates/messages.py.")
    for line in wrong:
        print(line)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
