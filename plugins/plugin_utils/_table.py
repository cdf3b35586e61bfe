# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Rows as an aligned plain table, for people who read a terminal or a pipeline's log."""

from __future__ import annotations

import json
import textwrap
import unicodedata
from typing import Any, List, Mapping, NamedTuple, Sequence, Tuple

GAP = "  "
# A column is never made narrower than this to fit the line, unless its content is.
_NARROWEST = 12


class Column(NamedTuple):
    """``key`` finds the cell in a row (dots go into nested dictionaries). ``align`` is left, right or auto."""

    key: str
    title: str
    align: str = "auto"


def columns_of(rows: Sequence[Mapping[str, Any]]) -> List[Column]:
    """The columns that the rows themselves suggest: every key, in the order in which it is first seen."""
    keys = list(dict.fromkeys(str(key) for row in rows for key in row))
    return [Column(key, key.replace("_", " ").upper()) for key in keys]


def render(columns: Sequence[Column], rows: Sequence[Mapping[str, Any]], width: int) -> List[str]:
    """The table as lines of at most ``width`` characters where that can be done without making cells unreadable."""
    raw = [[cell_value(row, column.key) for column in columns] for row in rows]
    texts = [[cell_text(value) for value in line] for line in raw]
    widths = _fit([_natural(column, [line[i] for line in texts]) for i, column in enumerate(columns)], width)
    right = [_is_right(column, [line[i] for line in raw]) for i, column in enumerate(columns)]
    lines = _row([column.title for column in columns], widths, right)
    lines.append(GAP.join("-" * column_width for column_width in widths))
    for line in texts:
        lines.extend(_row(line, widths, right))
    return [line.rstrip() for line in lines]


def cell_value(row: Mapping[str, Any], key: str) -> Any:
    """The row's value for a key; ``status.since`` looks into ``status`` unless the row has a key of that very name."""
    if key in row:
        return row[key]
    value: Any = row
    for part in key.split("."):
        if not isinstance(value, Mapping) or part not in value:
            return None
        value = value[part]
    return value


def cell_text(value: Any) -> str:
    """A value as people read it. Null is ``-``; control characters, which could drive a terminal, are dropped."""
    if value is None or value == "":
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return "%.1f" % value
    if isinstance(value, (list, tuple)):
        return ", ".join(cell_text(item) for item in value) or "-"
    if isinstance(value, Mapping):
        return json.dumps(value, sort_keys=True, default=str)
    text = str(value).replace("\t", " ").replace("\r\n", "\n")
    return "".join(char for char in text if char == "\n" or unicodedata.category(char) not in ("Cc", "Cf")) or "-"


def text_width(text: str) -> int:
    """Columns that a text takes in a terminal."""
    return sum(
        0 if unicodedata.combining(char) else 2 if unicodedata.east_asian_width(char) in "WF" else 1 for char in text
    )


def _natural(column: Column, texts: Sequence[str]) -> Tuple[int, int]:
    """The width a column wants, and the narrowest it may be given."""
    longest = max(text_width(line) for text in [column.title, *texts] for line in text.split("\n"))
    return longest, min(longest, max(_NARROWEST, text_width(column.title)))


def _fit(wanted: Sequence[Tuple[int, int]], width: int) -> List[int]:
    """Take from the widest columns until the line fits or none may give more."""
    widths = [natural for natural, narrowest in wanted]
    spare = width - len(GAP) * (len(widths) - 1)
    while sum(widths) > spare:
        givers = [i for i, (natural, narrowest) in enumerate(wanted) if widths[i] > narrowest]
        if not givers:
            break
        widths[max(givers, key=lambda i: widths[i])] -= 1
    return widths


def _is_right(column: Column, values: Sequence[Any]) -> bool:
    if column.align != "auto":
        return column.align == "right"
    known = [value for value in values if value is not None]
    return bool(known) and all(isinstance(value, (int, float)) and not isinstance(value, bool) for value in known)


def _row(texts: Sequence[str], widths: Sequence[int], right: Sequence[bool]) -> List[str]:
    cells = [_wrap(text, width) for text, width in zip(texts, widths, strict=True)]
    lines = []
    for number in range(max([len(cell) for cell in cells], default=0)):
        parts = [
            _pad(cell[number] if number < len(cell) else "", width, to_right)
            for cell, width, to_right in zip(cells, widths, right, strict=True)
        ]
        lines.append(GAP.join(parts))
    return lines


def _wrap(text: str, width: int) -> List[str]:
    lines: List[str] = []
    for line in text.split("\n"):
        if text_width(line) <= width:
            lines.append(line)
        else:
            lines.extend(textwrap.wrap(line, width, break_on_hyphens=False) or [""])
    return lines


def _pad(text: str, width: int, to_right: bool) -> str:
    blank = " " * max(0, width - text_width(text))
    return blank + text if to_right else text + blank
