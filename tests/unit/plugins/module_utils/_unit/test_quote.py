# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Quoting, held against an independent reading of systemd's rules; real units do the same in the lab's tests."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from ansible_collections.gpufleet.vllm.plugins.module_utils._core.errors import GpuFleetError
from ansible_collections.gpufleet.vllm.plugins.module_utils._unit import quote
from ansible_collections.gpufleet.vllm.plugins.module_utils._unit.env_file import parse_env_file

from .texts import TEXTS

NAMES = st.from_regex(r"[A-Za-z_][A-Za-z0-9_]{0,20}", fullmatch=True)

HARD = [
    "",
    " ",
    "\t",
    ";",
    "-x",
    "@x",
    "%%",
    "%n",
    "$HOME",
    "${HOME}",
    "$$",
    "\\",
    "\\n",
    'a"b',
    "a'b",
    "a b",
    "ü 日本 😀",
    '{"method":"mtp","n":3}',
    "a;b",
    "# no comment",
    "ends\\",
    "~",
    "*",
    "`id`",
    "a\\x20b",
    "100%",
]


def unquote_words(text: str) -> list[str]:
    """systemd's extract_first_word with EXTRACT_UNQUOTE | EXTRACT_CUNESCAPE, for what our quoting can produce."""
    words: list[str] = []
    word: str | None = None
    quoted = False
    position = 0
    while position < len(text):
        char = text[position]
        if char == "\\":
            follower = text[position + 1]
            word = (word or "") + {"\\": "\\", '"': '"', "t": "\t"}[follower]
            position += 2
            continue
        if char == '"':
            quoted = not quoted
            word = word or ""
        elif char in " \t" and not quoted:
            if word is not None:
                words.append(word)
            word = None
        else:
            assert quoted or char != "'", "a single quote outside quotes would open a string"
            word = (word or "") + char
        position += 1
    assert not quoted
    if word is not None:
        words.append(word)
    return words


def specifiers(text: str) -> str:
    """Every % must be one of a pair, or systemd puts something of its own there."""
    assert text.replace("%%", "").count("%") == 0
    return text.replace("%%", "%")


@given(TEXTS)
def test_an_exec_argument_arrives_as_one_unchanged_word(text: str) -> None:
    line = quote.exec_argument(text, "args.x")
    assert "\n" not in line
    words = unquote_words(specifiers(line))
    assert len(words) == 1
    assert words[0].replace("$$", "").count("$") == 0
    assert words[0].replace("$$", "$") == text
    assert line != ";"  # alone it would begin another command


@pytest.mark.parametrize("text", HARD)
def test_hard_exec_arguments(text: str) -> None:
    words = unquote_words(specifiers("/bin/x " + quote.exec_argument(text, "a") + " end"))
    assert [word.replace("$$", "$") for word in words] == ["/bin/x", text, "end"]


@given(NAMES, TEXTS)
def test_an_environment_assignment_arrives_unchanged(name: str, text: str) -> None:
    words = unquote_words(specifiers(quote.environment_assignment(name, text, "env.x")))
    assert words == ["%s=%s" % (name, text)]


@given(NAMES, TEXTS)
@example("A", 'a"b$c`d\\e')
def test_an_environment_file_line_is_read_back_as_it_was(name: str, text: str) -> None:
    line = quote.environment_file_line(name, text, "secrets.x")
    assert "\n" not in line and "\r" not in line
    assert parse_env_file(line + "\n") == {name: text}


@pytest.mark.parametrize("bad", ["a\nb", "a\rb", "a\0b", "\x1b[31m", "a\u2028b", "a\x85b", "\x7f", "\ud800", "\ufffe"])
@pytest.mark.parametrize(
    "function",
    [
        lambda text: quote.exec_argument(text, "args.key"),
        lambda text: quote.environment_assignment("NAME", text, "args.key"),
        lambda text: quote.environment_file_line("NAME", text, "args.key"),
        lambda text: quote.plain_value(text, "args.key"),
        lambda text: quote.exec_command("/bin/" + text, "args.key"),
    ],
)
def test_what_cannot_be_kept_is_refused_by_name(function, bad: str) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(GpuFleetError, match=r"^args\.key: "):
        function(bad)


@pytest.mark.parametrize("bad", [None, True, ["a"], {"a": 1}, b"x"])
def test_only_text_and_numbers_are_text(bad: object) -> None:
    with pytest.raises(GpuFleetError, match="no text"):
        quote.text_value(bad, "env.X")


@pytest.mark.parametrize("name", ["", "1A", "A-B", "A B", "A=B", "Ä", None, 3])
def test_variable_names_are_checked(name: object) -> None:
    with pytest.raises(GpuFleetError, match="no name for an environment variable"):
        quote.variable_name(name, "env")


@pytest.mark.parametrize(
    "path", ["vllm", "./vllm", "", "/opt/../bin/x", "/opt/", "/a//b", "/opt/$x/vllm", "-/bin/x", "@/bin/x"]
)
def test_a_command_is_an_absolute_path(path: str) -> None:
    with pytest.raises(GpuFleetError, match="^executable: "):
        quote.exec_command(path, "executable")


def test_a_command_with_blanks_and_percent_is_quoted() -> None:
    assert quote.exec_command("/opt/my vllm/50%/vllm", "executable") == '"/opt/my vllm/50%%/vllm"'
    assert quote.exec_command("/opt/vllm/bin/vllm", "executable") == "/opt/vllm/bin/vllm"


@pytest.mark.parametrize("bad", ["", " a", "a ", "a\\"])
def test_a_plain_value_has_no_escapes_to_hide_behind(bad: str) -> None:
    with pytest.raises(GpuFleetError):
        quote.plain_value(bad, "name")
    assert quote.plain_value("50% of it", "name") == "50%% of it"


def test_what_the_kernel_would_not_pass_on_is_refused_before() -> None:
    longest = "ü" * 65534  # with "A=" and the end: 131,071 bytes
    assert longest in quote.environment_assignment("A", longest, "env.A")
    assert longest in quote.environment_file_line("A", longest, "secrets.A")
    for write in (quote.environment_assignment, quote.environment_file_line):
        with pytest.raises(GpuFleetError, match="^k: it is longer than"):
            write("A", longest + "xx", "k")
    with pytest.raises(GpuFleetError, match="^model: it is longer than"):
        quote.exec_argument("/" + longest + "xxx", "model")
