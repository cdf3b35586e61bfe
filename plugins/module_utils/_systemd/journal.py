# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The journal of one unit, or of one invocation of it."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, List, Optional

from .._core.errors import GpuFleetError
from .._core.runner import Runner


@dataclass(frozen=True)
class JournalLine:
    """One entry. ``time`` is seconds since the epoch; ``pid`` 0 where none was recorded."""

    time: float
    pid: int
    identifier: str
    text: str

    @property
    def from_manager(self) -> bool:
        """Whether systemd itself says this about the unit."""
        return self.identifier == "systemd"


class Journal:
    """journald of this host."""

    def __init__(self, runner: Runner) -> None:
        self._runner = runner

    def lines(self, unit: str, invocation_id: Optional[str] = None, limit: int = 10000) -> List[JournalLine]:
        """The last ``limit`` entries of a unit, oldest first: what its processes wrote, and what systemd said.

        With ``invocation_id`` only what belongs to that one start (the guard of ExecStartPre included). Raises
        GpuFleetError when the journal can't be read.
        """
        # Fields of one kind are alternatives, different kinds must all hold, "+" is an or between such groups.
        if invocation_id:
            theirs = ["_SYSTEMD_UNIT=" + unit, "_SYSTEMD_INVOCATION_ID=" + invocation_id]
            managers = ["_PID=1", "UNIT=" + unit, "INVOCATION_ID=" + invocation_id]
        else:
            theirs = ["_SYSTEMD_UNIT=" + unit]
            managers = ["_PID=1", "UNIT=" + unit]
        # What was written a moment ago may not be in the files yet. Best effort: it needs root and a running journald.
        self._runner.run(["journalctl", "--sync"], timeout=10.0)
        argv = ["journalctl", "--no-pager", "--quiet", "--all", "--output=json", "--boot", "--lines=%d" % limit]
        done = self._runner.run(argv + theirs + ["+"] + managers, timeout=60.0)
        if not done.ok:
            raise GpuFleetError(
                "The journal of %s can't be read: `journalctl` ended with %s: %s"
                % (unit, done.rc, done.stderr.strip() or "it said nothing"),
                cmd=list(done.argv),
                rc=done.rc,
                stderr=done.stderr,
            )
        return parse_journal(done.stdout)


def parse_journal(text: str) -> List[JournalLine]:
    """Read ``journalctl -o json``: one JSON object a line. A message of several lines becomes several entries."""
    found: List[JournalLine] = []
    for raw in text.split("\n"):
        if not raw.strip():
            continue
        try:
            entry = json.loads(raw)
        except ValueError:
            continue  # an entry cut off in the middle of a rotation
        if not isinstance(entry, dict):
            continue
        time = _number(entry.get("__REALTIME_TIMESTAMP")) / 1e6
        pid = int(_number(entry.get("_PID") or entry.get("SYSLOG_PID")))
        identifier = _text(entry.get("SYSLOG_IDENTIFIER") or entry.get("_COMM"))
        for line in _text(entry.get("MESSAGE")).split("\n"):
            found.append(JournalLine(time, pid, identifier, line))
    return found


def _text(value: Any) -> str:
    """A field's text. Bytes that are no UTF-8 arrive as a list of numbers, repeated fields as a list of values."""
    if value is None:
        return ""
    if isinstance(value, list):
        if value and all(isinstance(item, int) for item in value):
            return bytes(item & 0xFF for item in value).decode("utf-8", "replace")
        return "\n".join(_text(item) for item in value)
    return str(value)


def _number(value: Any) -> float:
    try:
        return float(_text(value) or 0)
    except ValueError:
        return 0.0
