# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The table of messages: what is gathered from the code, what counts as saying what to do, and when the gate fails."""

from __future__ import annotations

import ast
from pathlib import Path

import made
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


MAKES = """
def refusal(name, failed):
    lines = ["%s cannot work:" % name]
    lines += ["  - " + line for line in failed] + (["and more."] if len(failed) > 5 else [])
    note = "no message"
    if not failed:
        lines.append("There is no %s." % name)
        yield "It has no %s." % name
    lines[0] = "Accepted: " + lines[0]
    return "\\n".join(lines) if lines else "It is fine."
"""


def test_what_a_function_makes_a_message_of_is_found() -> None:
    found = [(before, told.template(node)) for before, _line, node in made.made(ast.parse(MAKES), {"refusal": "… "})]
    assert {text for _before, text in found if text is not None} == {
        "… cannot work:", "  - …", "and more.", "There is no ….", "It has no ….", "Accepted: …", "It is fine.",
    }  # fmt: skip
    assert {before for before, _text in found} == {"… "}


def test_a_function_that_is_not_there_any_more_is_no_silent_gap() -> None:
    with pytest.raises(KeyError, match="gone"):
        list(made.made(ast.parse(MAKES), {"gone": ""}))


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("result.update(failed=True, msg='The answer %r is no.' % x)", ["The answer … is no."]),
        ("x = {'msg': '%s is gone.' % y, 'rc': 1}", ["… is gone."]),
        ("result.update(msg=exc.msg)", [None]),
        ("module.fail_json(msg='It is told of elsewhere.')", []),
    ],
)
def test_what_is_put_into_a_result_is_found(source: str, found: list[str | None]) -> None:
    assert [told.template(node) for _line, node in made.in_results(ast.parse(source), told.TOLD)] == found


def test_a_message_in_a_variable_is_found_by_what_it_was_given() -> None:
    source = "def f(x):\n    text = 'It is %s.' if x else 'It broke.'\n    raise NotReady(text % x)\ndef g():\n    text = 'another'\n"
    assert texts(source) == ["It is %s.", "It broke."]


@pytest.mark.parametrize(
    ("place", "text"),
    [
        ("plugins/module_utils/_service/checks.py", "… cannot work on this host, and nothing was touched:"),
        ("plugins/action/fleet_report.py", "The answer to the query … is false."),
        ("plugins/module_utils/_systemd/manager.py", "systemd is not running as PID 1 on this host"),
        ("playbooks/, from plugins/filter/swap_results.py", "… This run touched nothing on it."),
        ("plugins/module_utils/_reclaim/request.py", "scope: services stops the units that `services` names, and it names none"),
    ],
)
def test_messages_that_are_made_are_among_all(place: str, text: str) -> None:
    found, _elsewhere = told.of_plugins()
    assert [message for message in found if message.place.startswith(place + ":") and message.text.startswith(text)], text


def test_most_messages_are_found_whole() -> None:
    found, elsewhere = told.of_plugins()
    assert len(found) > 300
    assert len(elsewhere) < len(found) / 10, "messages that are made elsewhere are in no table: " + ", ".join(elsewhere)
    assert any(message.text.startswith("Nothing was touched by this playbook: ") for message in told.of_plays())


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
