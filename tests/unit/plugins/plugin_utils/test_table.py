# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""How rows become lines."""

from __future__ import annotations

from typing import Any, Dict, List

import pytest

from ansible_collections.gpufleet.vllm.plugins.plugin_utils._table import Column, cell_text, render, text_width


def table(rows: List[Dict[str, Any]], *keys: str, width: int = 100) -> List[str]:
    return render([Column(key, key.upper()) for key in keys], rows, width)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "-"), ("", "-"), (True, "yes"), (False, "no"), (0, "0"), (1.25, "1.2"), ([], "-"), ([0, 1], "0, 1"),
        ({"b": 1, "a": None}, '{"a": null, "b": 1}'), ("a\tb", "a b"), ("\x1b[31mred", "[31mred"), ("\x00", "-"),
    ],
)  # fmt: skip
def test_values_as_people_read_them(value: Any, text: str) -> None:
    assert cell_text(value) == text


def test_numbers_stand_to_the_right_and_text_to_the_left() -> None:
    assert table([{"a": 5, "b": "x"}, {"a": 500, "b": "yy"}, {"a": None}], "a", "b") == [
        "  A  B",
        "---  --",
        "  5  x",
        "500  yy",
        "  -  -",
    ]


def test_a_dotted_key_looks_inside_unless_the_row_has_that_very_key() -> None:
    rows: List[Dict[str, Any]] = [{"s": {"x": 1}}, {"s.x": 2, "s": {"x": 1}}, {"s": "text"}, {}]
    assert [line.strip() for line in table(rows, "s.x")[2:]] == ["1", "2", "-", "-"]


def test_long_cells_are_wrapped_into_their_own_column() -> None:
    lines = table([{"host": "gpu01", "note": "word " * 20, "end": "x"}], "host", "note", "end", width=40)
    assert max(map(len, lines)) <= 40
    assert len(lines) > 4
    assert lines[2].startswith("gpu01  word")
    assert all(line.startswith("       word") for line in lines[3:])
    assert sum(line.count("word") for line in lines) == 20


def test_a_word_longer_than_its_column_is_broken_not_lost() -> None:
    path = "/very/long" * 12
    lines = table([{"path": path, "host": "gpu01"}], "path", "host", width=50)
    assert max(map(len, lines)) <= 50
    assert "".join(line[:43].strip() for line in lines[2:]) == path


def test_columns_are_never_squeezed_until_they_cannot_be_read() -> None:
    rows = [dict.fromkeys("abcdef", "twelve chars")]
    assert table(rows, *"abcdef", width=20)[2].count("twelve chars") == 6


def test_lines_within_a_cell_stay_lines() -> None:
    assert table([{"a": "one\ntwo", "b": 1}], "a", "b")[2:] == ["one  1", "two"]


def test_wide_characters_keep_the_columns_straight() -> None:
    lines = table([{"a": "模型", "b": "x"}, {"a": "ab", "b": "y"}], "a", "b")
    assert [text_width(line.split("x")[0].split("y")[0]) for line in lines[2:]] == [6, 6]


def test_a_heading_is_as_wide_as_it_needs() -> None:
    assert render([Column("a", "A LONG TITLE")], [{"a": 1}], 100)[0] == "A LONG TITLE"
