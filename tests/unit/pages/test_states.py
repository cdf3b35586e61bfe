# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The picture of a swap has the states that the code knows, and no other."""

from __future__ import annotations

import re
from xml.etree import ElementTree

from pages.blocks import ROOT

from ansible_collections.gpufleet.vllm.plugins.module_utils._service import change_log

PICTURE = ROOT / "docs" / "images" / "swap-states.svg"
NAME = "{http://www.w3.org/2000/svg}text"
# What is no stage of the record: before there is one, and when it is over.
AROUND = {"look", "plan", "check", "refused", "nothing to do", "begun", "done", "rolled back", "failed"}


def test_the_states_are_those_of_the_code() -> None:
    drawn = {str(node.text) for node in ElementTree.parse(PICTURE).iter(NAME) if node.get("class") == "name"}
    stages = {value.replace("_", " ") for name, value in vars(change_log).items() if name.isupper() and isinstance(value, str)}
    assert len(stages) == 5
    assert drawn == stages | AROUND


def test_it_says_in_words_what_it_shows_and_asks_nobody() -> None:
    text = PICTURE.read_text(encoding="utf-8")
    assert "<title " in text and "<desc " in text
    assert re.findall(r"(?:href|src|url)\s*[=(]\s*[\"']?(?!#)[\w:/]+", text.replace('xmlns="http://www.w3.org/2000/svg"', "")) == []
