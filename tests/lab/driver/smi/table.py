# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The queries' tables: fields that are asked for by name, printed as CSV."""
# Runs on hosts, in one file with its package: standard library alone, Python 3.9.

from __future__ import annotations

from typing import Any, Callable, Dict, List, Sequence, Set, Tuple

from .driver import Ended, bracketed


class Field:
    """One field: its names (the first stands in the header), unit, reading and what the help says of it."""

    def __init__(self, names: str, unit: str, read: Callable[..., str], about: str) -> None:
        self.names = names.split()
        self.unit = unit
        self.read = read
        self.about = about


def by_name(fields: List[Field]) -> Dict[str, Field]:
    """The fields by each of their names."""
    return {name: field for field in fields for name in field.names}


def chosen(known: Dict[str, Field], names: str, unknown: Set[str]) -> List[Field]:
    """The fields of a comma separated list. Raises Ended 2 for a name that is none, or that this driver is too old for."""
    found = []
    for name in names.split(","):
        name = name.strip()
        if name not in known or name in unknown:
            raise Ended(2, 'Field "%s" is not a valid field to query.\n\n' % name)
        found.append(known[name])
    return found


def csv(fields: List[Field], subjects: Sequence[Tuple[Any, ...]], header: bool, units: bool) -> str:
    """One line per subject; what can't be read is bracketed and has no unit. Text is not quoted, as it isn't there."""
    lines = []
    if header:
        lines.append([each.names[0] + (" [%s]" % each.unit if each.unit and units else "") for each in fields])
    for subject in subjects:
        row = []
        for each in fields:
            text = bracketed(lambda each=each, subject=subject: each.read(*subject))  # type: ignore[misc]
            row.append(text + " " + each.unit if each.unit and units and not text.startswith("[") else text)
        lines.append(row)
    return "".join(", ".join(line) + "\n" for line in lines)


def listing(switch: str, fields: List[Field]) -> str:
    """What --help-query-gpu and the like print."""
    parts = ['List of valid properties to query for the switch "%s":\n\n' % switch]
    for each in fields:
        parts.append(" or ".join('"%s"' % name for name in each.names) + "\n" + each.about + "\n\n")
    return "".join(parts)
