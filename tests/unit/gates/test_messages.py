# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The table of messages: what is gathered from the code, what counts as saying what to do, and when the gate fails."""

from __future__ import annotations

import ast
from pathlib import Path

import messages
import pytest
import told


def texts(source: str) -> list[str | None]:
    return [told.template(node) for _line, node in told._of_code(ast.parse(source))]


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("raise GpuFleetError('It broke.')", ["It broke."]),
        ("raise GpuFleetError('%s broke at %d %%. Run again.' % (a, b))", ["… broke at … %. Run again."]),
        ("raise NotReady('a ' 'b %.1f s' % x, kind='y')", ["a b … s"]),
        ("raise AnsibleActionFail(f'no {x}.')", ["no …."]),
        ("module.fail_json(msg='x is %r' % x, rc=1)", ["x is …"]),
        ("raise GpuFleetError('No. ' + more(x))", ["No. …"]),
        ("raise GpuFleetError(exc.msg)", [None]),
        ("raise KeyError('no message of ours')", []),
        ("_MESSAGES = {'a': '%(x)s is gone. Run again.'}", ["%(x)s is gone. Run again."]),
    ],
)
def test_a_message_is_found_with_gaps_for_its_values(source: str, found: list[str | None]) -> None:
    assert texts(source) == found


def test_most_messages_are_found_whole() -> None:
    found, elsewhere = told.of_plugins()
    assert len(found) > 300
    assert len(elsewhere) < len(found) / 6, "messages that are made elsewhere are in no table: " + ", ".join(elsewhere)
    assert any(message.text.startswith("batch is") for message in told.of_plays())


@pytest.mark.parametrize(
    ("text", "what", "todo"),
    [
        ("It broke. Run again.", "It broke.", "Run again."),
        ("It broke. It is kept in …. Remove it; then run again.", "It broke. It is kept in ….", "Remove it; then run again."),
        ("Cannot read …: ….", "Cannot read …: ….", ""),
        ("Runs are over.", "Runs are over.", ""),
    ],
)
def test_what_to_do_is_a_sentence_of_the_message(text: str, what: str, todo: str) -> None:
    assert messages.split(text) == (what, todo)


def test_a_message_that_nothing_is_said_about_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    mute = told.Message("plugins/modules/x.py:7", "The flux is … today.")
    monkeypatch.setattr(told, "of_plugins", lambda: ([mute], []))
    monkeypatch.setattr(told, "of_plays", list)
    _text, wrong = messages.tables()
    assert wrong[0] == "plugins/modules/x.py:7: nothing says what to do about: The flux is … today."
    assert any("no message is left for the rule" in line for line in wrong)


def test_the_gate_fails_for_a_page_that_lacks_a_message(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / "errors.md"
    page.write_text("# Written by hand\n\n" + messages.MARKER + "\n\nold\n", encoding="utf-8")
    monkeypatch.setattr(messages, "PAGE", page)
    monkeypatch.setattr(messages, "tables", lambda: ("new\n", []))
    assert messages.main(["--check"]) == 1
    assert "Run tests/gates/messages.py." in capsys.readouterr().out
    assert messages.main([]) == 0
    assert page.read_text(encoding="utf-8") == "# Written by hand\n\n" + messages.MARKER + "\n\nnew\n"
    assert messages.main(["--check"]) == 0


def test_the_cell_of_a_table_is_what_is_printed() -> None:
    assert messages.cell("`a|b` is no_name <x>\nat all") == "`a\\|b` is no\\_name \\<x\\> at all"
