# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""How a value is written so that it arrives unchanged: each place of a unit has rules of its own.

=====================  ===========  ==========  =================================================================
place                  ``%``        ``$``       escapes
=====================  ===========  ==========  =================================================================
argument of Exec...=   ``%%``       ``$$``      C escapes inside double quotes
``Environment=``       ``%%``       literal     C escapes inside double quotes
EnvironmentFile line   literal      literal     a backslash before ``"``, ``\\``, ``$`` and a backtick, nothing else
other settings         ``%%``       literal     none: what can't stand there is refused
=====================  ===========  ==========  =================================================================

Line breaks, NUL and other control characters than the tab are refused everywhere: none of them can be meant, and a
line break would let a value add settings of its own.
"""

from __future__ import annotations

import re
from typing import Any

from .._core.errors import GpuFleetError

_VARIABLE = re.compile(r"^[A-Za-z_][A-Za-z0-9_]*\Z")
# Needs no quotes in an Exec line: what no rule of systemd's parser touches. A word is never split, unquoted, or
# taken for the command separator when it is made of these.
_PLAIN_WORD = re.compile(r"^[A-Za-z0-9_./:=@,+-]+\Z")
# One string of a process's arguments or environment, its end not counted (MAX_ARG_STRLEN). A longer one fails every start.
_LONGEST = 131071


def text_value(value: Any, key: str) -> str:
    """``value`` as text, or GpuFleetError naming ``key``: not a text or number, or characters that can't be kept."""
    if isinstance(value, bool) or value is None or not isinstance(value, (str, int, float)):
        raise GpuFleetError("%s: %r is no text. Write it as a string in quotes." % (key, value))
    text = str(value)
    for char in text:
        code = ord(char)
        if char in "\n\r\x85\u2028\u2029":
            raise GpuFleetError("%s: a line break can't stand in a value. One read from a file often ends with one: strip it." % key)
        if code == 0:
            raise GpuFleetError("%s: a NUL character can't stand in a value. Remove it." % key)
        if (code < 0x20 and char != "\t") or 0x7F <= code < 0xA0:
            raise GpuFleetError("%s: the control character U+%04X can't stand in a value. Remove it." % (key, code))
        if 0xD800 <= code <= 0xDFFF or code in (0xFFFE, 0xFFFF, 0xFEFF):
            raise GpuFleetError("%s: U+%04X can't be kept in UTF-8 text. Remove it." % (key, code))
    return text


def variable_name(name: Any, key: str) -> str:
    """The name of an environment variable, or GpuFleetError."""
    if not isinstance(name, str) or not _VARIABLE.match(name):
        raise GpuFleetError(
            "%s: %r is no name for an environment variable (letters, digits and '_', no digit first)." % (key, name)
        )
    return name


def exec_argument(value: Any, key: str) -> str:
    """One argument of ``ExecStart=`` and its like, after the command."""
    text = _in_one_piece(text_value(value, key), key)
    if _PLAIN_WORD.match(text):
        return text
    return _quoted(text.replace("%", "%%").replace("$", "$$"))


def exec_command(path: Any, key: str) -> str:
    """The command itself, the first word of an Exec line: an absolute path.

    ``$`` is refused: systemd doesn't expand it in the path, and would in argv[0].
    """
    text = text_value(path, key)
    if not text.startswith("/") or text.endswith("/") or "/../" in text or "/./" in text or "//" in text:
        raise GpuFleetError("%s: %r is not an absolute path of a file. Give one without '..'." % (key, text))
    if "$" in text:
        raise GpuFleetError("%s: systemd can't run a command with '$' in its path (%s). Move it, or make a link to it." % (key, text))
    return text if _PLAIN_WORD.match(text) else _quoted(text.replace("%", "%%"))


def environment_assignment(name: Any, value: Any, key: str) -> str:
    """``Environment=``'s value for one variable, quotes included."""
    text = _in_one_piece("%s=%s" % (variable_name(name, key), text_value(value, key)), key)
    return text if _PLAIN_WORD.match(text) else _quoted(text.replace("%", "%%"))


def environment_file_line(name: Any, value: Any, key: str) -> str:
    """One line of an EnvironmentFile, always in double quotes, without the line's end."""
    _in_one_piece("%s=%s" % (name, text_value(value, key)), key)
    text = re.sub(r'(["\\$`])', r"\\\1", text_value(value, key))
    return '%s="%s"' % (variable_name(name, key), text)


def plain_value(value: Any, key: str) -> str:
    """A setting that systemd takes as it stands (paths, names): specifiers escaped, the rest checked."""
    text = text_value(value, key)
    if not text or text != text.strip() or text.endswith("\\"):
        raise GpuFleetError(
            "%s: %r can't stand in a unit: it is empty, or ends in a backslash or a space." % (key, text)
        )
    return text.replace("%", "%%")


def number_text(value: float) -> str:
    """A number in one form: 300 and 300.0 are the same text."""
    value = float(value)
    return str(int(value)) if value.is_integer() else repr(value)


def _in_one_piece(text: str, key: str) -> str:
    if len(text.encode("utf-8")) > _LONGEST:
        raise GpuFleetError("%s: it is longer than what the kernel passes to a process in one piece (%d bytes)." % (key, _LONGEST))
    return text


def _quoted(text: str) -> str:
    return '"%s"' % text.replace("\\", "\\\\").replace('"', '\\"').replace("\t", "\\t")
