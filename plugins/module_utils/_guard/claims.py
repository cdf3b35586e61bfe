# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The claims of starting units as files: one directory for each unit, which its user alone can write to.

What another unit wrote is judged, never trusted: no link is followed, nothing but a regular file of a sensible size is read, and what
is no claim counts for none.
"""

from __future__ import annotations

import json
import os
import stat
from dataclasses import asdict, dataclass, replace
from typing import Any, List, Optional, Tuple

_NAME = "claim"
_MOST_BYTES = 65536
# Tickets are counted up from 1, so that nobody honest comes near it.
MOST_TICKET = 2**53


class Unusable(Exception):
    """The directory can't be used; the text says why."""


@dataclass(frozen=True)
class Claim:
    """What a unit says while it starts. ``unit`` is the directory's name, which systemd chose."""

    unit: str
    gpus: Tuple[str, ...]  # UUIDs
    host: str
    port: Optional[int]
    pid: int  # of the guard
    start_ticks: Optional[int]
    cgroup: str  # the guard's /proc/PID/cgroup
    ticket: Optional[int] = None  # None while it is being drawn
    passed: Optional[float] = None  # CLOCK_MONOTONIC when the guard let the server start


def read_claims(directory: str, but: str) -> List[Claim]:
    """The claims of all units other than ``but``, by name. Raises Unusable."""
    try:
        names = sorted(os.listdir(directory))
    except OSError as exc:
        raise Unusable("%s: %s" % (directory, exc.strerror)) from exc
    found = (parse_claim(name, _read(os.path.join(directory, name, _NAME))) for name in names if name != but)
    return [claim for claim in found if claim is not None]


def write_claim(directory: str, claim: Claim) -> None:
    """Replace the unit's claim as a whole. Raises Unusable."""
    path = os.path.join(directory, claim.unit, _NAME)
    fields = asdict(claim)
    del fields["unit"]
    staged = path + ".new"
    try:
        descriptor = os.open(staged, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW, 0o644)
        with open(descriptor, "w", encoding="utf-8") as handle:
            os.fchmod(descriptor, 0o644)  # others must read it, whatever the unit's umask
            json.dump(fields, handle)
        os.rename(staged, path)
    except OSError as exc:
        raise Unusable("%s: %s" % (os.path.dirname(path), exc.strerror)) from exc


def remove_claim(directory: str, unit: str) -> None:
    """Take the unit's claim back."""
    try:
        os.unlink(os.path.join(directory, unit, _NAME))
    except OSError:
        pass  # it counts for nothing without a living claimant


def parse_claim(unit: str, text: str) -> Optional[Claim]:
    """A claim that can be judged; None for anything else, which then holds nobody up."""
    try:
        fields = json.loads(text)
    except (ValueError, RecursionError):
        return None
    if not isinstance(fields, dict) or not all(isinstance(key, str) for key in fields):
        return None
    gpus = fields.get("gpus")
    if not isinstance(gpus, list) or not all(isinstance(gpu, str) for gpu in gpus):
        return None
    if not _text(fields.get("host")) or not _text(fields.get("cgroup")) or ".." in fields["cgroup"].split("/"):
        return None
    if not _within(fields.get("pid"), 1, 2**31) or not _natural_or_none(fields.get("start_ticks"), 0, 2**64):
        return None
    if not _natural_or_none(fields.get("port"), 1, 65536) or not _natural_or_none(fields.get("ticket"), 1, MOST_TICKET + 1):
        return None
    passed = fields.get("passed")
    if passed is not None and (isinstance(passed, bool) or not isinstance(passed, (int, float))):
        return None
    return Claim(unit, tuple(gpus), fields["host"], fields.get("port"), fields["pid"], fields.get("start_ticks"), fields["cgroup"],
                 fields.get("ticket"), passed)


def with_ticket(claim: Claim, others: List[Claim]) -> Claim:
    """The claim with a ticket behind everybody else's."""
    drawn = max([other.ticket for other in others if other.ticket is not None], default=0)
    return replace(claim, ticket=min(drawn + 1, MOST_TICKET))


def _text(value: Any) -> bool:
    return isinstance(value, str) and "\0" not in value


def _within(value: Any, first: int, beyond: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and first <= value < beyond


def _natural_or_none(value: Any, first: int, beyond: int) -> bool:
    return value is None or _within(value, first, beyond)


def _read(path: str) -> str:
    """The file's text; empty for what is no regular file, too large or unreadable."""
    try:
        # without waiting: another one may have put a FIFO there
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:
        return ""
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            return ""
        raw = os.read(descriptor, _MOST_BYTES + 1)
    except OSError:
        return ""
    finally:
        os.close(descriptor)
    return raw.decode("utf-8", "replace") if len(raw) <= _MOST_BYTES else ""
