# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The table of variables in every role's README comes from its argument_specs.

    role_readmes.py           fills the tables
    role_readmes.py --check   fails when a README is missing or its table is not what would be filled in

Everything above the marker line is written by hand.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[2]
MARKER = "<!-- The table below is written by tests/gates/role_readmes.py from meta/argument_specs.yml. -->"


def plain(text: str) -> str:
    """Ansible's semantic markup as Markdown."""
    text = re.sub(r"\b(?:O|V|RV|C|M|E|P)\(([^()]*)\)", r"`\1`", text)
    # An option, or a value that is returned, of another plugin says of which.
    text = re.sub(r"`gpufleet\.vllm\.(\w+)#\w+:([^`]*)`", r"`\2` of `\1`", text)
    text = text.replace("`ignore:", "`")
    return text.replace("|", "\\|")


def row(name: str, spec: dict[str, Any]) -> list[str]:
    """The table's line for one variable, and lines for what is inside it."""
    kind = spec.get("type", "str") + (f" of {spec['elements']}" if "elements" in spec else "")
    if "choices" in spec:
        kind += ": " + ", ".join(f"`{choice}`" for choice in spec["choices"])
    text = spec["description"]
    lines = [text] if isinstance(text, str) else text
    if spec.get("required"):
        default = "required"
    elif "default" in spec:
        default = "`%s`" % str(spec["default"]).replace("|", "\\|")
    else:
        default = "" if "Defaults to" in " ".join(lines) else "the module's"
    rows = [f"| `{name}` | {kind} | {default} | {plain(' '.join(lines))} |"]
    for key, inner in spec.get("options", {}).items():
        rows += row(f"{name}.{key}", inner)
    return rows


def filled(role: Path) -> str:
    """The README as it should be."""
    readme = role / "README.md"
    above = readme.read_text(encoding="utf-8").split(MARKER)[0] if readme.exists() else f"# {role.name}\n\n"
    specs = yaml.safe_load((role / "meta" / "argument_specs.yml").read_text(encoding="utf-8"))["argument_specs"]
    table = ["| variable | type | default | meaning |", "|---|---|---|---|"]
    for name, spec in specs["main"]["options"].items():
        table += row(name, spec)
    return above + MARKER + "\n\n" + "\n".join(table) + "\n"


def main(argv: list[str]) -> int:
    """Fill the tables, or hold them against what would be filled in."""
    wrong = 0
    for role in sorted(path for path in (ROOT / "roles").iterdir() if path.is_dir()):
        if not (role / "meta" / "argument_specs.yml").exists():
            print(f"roles/{role.name} has no meta/argument_specs.yml")
            wrong = 1
            continue
        readme, text = role / "README.md", filled(role)
        if argv != ["--check"]:
            readme.write_text(text, encoding="utf-8")
        elif not readme.exists() or readme.read_text(encoding="utf-8") != text:
            print(f"roles/{role.name}/README.md does not match its argument_specs. Run tests/gates/role_readmes.py.")
            wrong = 1
    return wrong


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
