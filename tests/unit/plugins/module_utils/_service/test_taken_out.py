# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a host remembers of having been taken out: read by every look at it, and written by the playbook in the same place."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from ansible_collections.gpufleet.vllm.plugins.module_utils._core.errors import GpuFleetError
from ansible_collections.gpufleet.vllm.plugins.module_utils._job import answer as _answer
from ansible_collections.gpufleet.vllm.plugins.module_utils._service.ports import Paths, Ports
from ansible_collections.gpufleet.vllm.plugins.module_utils._service.taken_out import FILE, taken_out

ROOT = Path(__file__).resolve().parents[5]
NOTE: dict[str, Any] = {
    "id": "k3v9x0q2m7d1c8s5", "since": "2026-11-30T11:40:12Z", "model": "new", "before_host": None, "after_host": "/srv/in.yml",
}  # fmt: skip


@pytest.mark.parametrize(("text", "found"), [
    (json.dumps(NOTE), NOTE),
    (json.dumps({**NOTE, "more": 1, "model": 5}), {**NOTE, "model": None}),
    ("", dict.fromkeys(NOTE)), ("[]", dict.fromkeys(NOTE)), ("{", dict.fromkeys(NOTE)), ("\0", dict.fromkeys(NOTE)),
])
def test_what_stands_there_says_that_the_host_is_out_also_where_it_cannot_be_read(
    tmp_path: Path, text: str, found: dict[str, Any]
) -> None:
    assert taken_out(str(tmp_path)) is None and taken_out(str(tmp_path / "nowhere")) is None
    (tmp_path / FILE).write_text(text, encoding="utf-8")
    assert taken_out(str(tmp_path)) == found


def test_something_else_in_its_place_is_no_reason_to_fail(tmp_path: Path) -> None:
    (tmp_path / FILE).mkdir()
    assert taken_out(str(tmp_path)) == dict.fromkeys(NOTE)


def refused(*_words: Any, **_more: Any) -> dict[str, Any]:
    raise GpuFleetError("Another change is under way.")


@pytest.mark.parametrize("there", [False, True])
def test_every_answer_of_the_module_has_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, there: bool) -> None:
    if there:
        (tmp_path / FILE).write_text(json.dumps(NOTE), encoding="utf-8")
    monkeypatch.setattr(_answer, "Ports", lambda: Ports(paths=Paths(records=str(tmp_path))))
    for change in (lambda *_words: {"changed": False}, refused):
        monkeypatch.setattr(_answer, "change", change)
        found = _answer.answer({"name": "x", "model": "/m"}, True, True, False)
        assert found.get("taken_out") == (NOTE if there else None) and ("taken_out" in found) is there


def test_the_playbook_writes_it_where_it_is_read() -> None:
    plays = yaml.safe_load((ROOT / "playbooks" / "swap_model.yml").read_text(encoding="utf-8"))
    (path,) = [play["vars"]["swap_model_note_path"] for play in plays if "swap_model_note_path" in play.get("vars", {})]
    assert path == "%s/%s" % (Paths().records, FILE)
    tasks = yaml.safe_load((ROOT / "playbooks" / "tasks" / "swap_take_out.yml").read_text(encoding="utf-8"))
    (noted,) = [task["block"] for task in tasks if task["name"] == "Note on the host that it is taken out"]
    assert set(noted[0]["ansible.builtin.set_fact"]["swap_model_mark"]) == set(NOTE)
    assert noted[-1]["ansible.builtin.copy"]["mode"] == "0644" and "swap_model_mark" in noted[-1]["ansible.builtin.copy"]["content"]
