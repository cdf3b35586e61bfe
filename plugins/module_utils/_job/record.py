# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The record of a change: what was asked, by whom, how far it is, and how all of it is undone. As data and as JSON."""

from __future__ import annotations

import base64
import hashlib
import json
import os
from dataclasses import asdict, dataclass, field
from typing import Any, Dict, List, Mapping, Optional, Union

from .._borrow.request import BorrowRequest
from .._core.files import FileChange, WantedFile
from .._service.change_log import STARTING, STOPPING
from .._service.outcome import Stopped, Undo
from .._service.request import Request
from .._unit.found import ManagedService

BEGUN = "begun"
# What kind of change it is: of declared services, or that their GPUs are borrowed.
SERVICE, BORROW = "service", "borrow"
_FORMAT = 1
# What is done from the moment on at which a stage is written down.
_PHASE_OF = {STOPPING: "stop", STARTING: "load"}


@dataclass
class Record:
    """One change that has begun and has not ended.

    ``params`` are the module's parameters; ``prepared`` what the module did before it handed over (``actions``, ``files``,
    ``diff``, and of the checks ``warnings`` and ``preflight``); ``told`` the result as it stood before the first step; ``more``
    what the last stage noted. ``at`` is the time of its begin since the epoch and ``monotonic`` the same of the monotonic clock,
    both in seconds. ``timings`` are the seconds by phase as they stood when the stage began, which was at ``stage_at`` (since the epoch).
    """

    id: str
    digest: str
    params: Dict[str, Any]
    purpose: str
    unit: str
    by: str
    at: float
    monotonic: float
    boot_id: str
    kind: str = SERVICE
    stage: str = BEGUN
    attempts: int = 0
    undo: Undo = field(default_factory=Undo)
    prepared: Dict[str, Any] = field(default_factory=dict)
    told: Optional[Dict[str, Any]] = None
    more: Dict[str, Any] = field(default_factory=dict)
    timings: Dict[str, Optional[float]] = field(default_factory=dict)
    stage_at: Optional[float] = None

    def timings_until(self, now: float) -> Dict[str, Optional[float]]:
        """The seconds by phase, with what has passed until ``now`` (since the epoch) of the one in which its job was last seen.

        A job that died left no word of when: until somebody goes on, or sees what there is, that phase has lasted.
        """
        phase = _PHASE_OF.get(self.stage)
        found = dict(self.timings)
        if phase is not None and self.stage_at is not None:
            found[phase] = round((found.get(phase) or 0.0) + max(0.0, now - self.stage_at), 3)
        return found

    def to_json(self) -> Dict[str, Any]:
        """Plain data."""
        plain = {name: getattr(self, name) for name in self.__dataclass_fields__ if name != "undo"}
        return dict(plain, format=_FORMAT, undo=undo_to_json(self.undo))

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> "Record":
        """From plain data."""
        fields = {name: data[name] for name in cls.__dataclass_fields__ if name in data and name != "undo"}
        return cls(undo=undo_from_json(data["undo"]), **fields)


def digest_of(request: Union[Request, BorrowRequest]) -> str:
    """Whether two requests ask for the same: equal in all that was asked, defaults included."""
    return hashlib.sha256(json.dumps(asdict(request), sort_keys=True, default=str).encode("utf-8")).hexdigest()


def new_id() -> str:
    """A name for a change that no other has."""
    return os.urandom(8).hex()


def undo_to_json(undo: Undo) -> Dict[str, Any]:
    """Plain data."""
    return {
        "changes": [_change_to_json(change) for change in undo.changes],
        "unit_text": undo.unit_text,
        "stopped": [{"service": asdict(each.service), "served": each.served} for each in undo.stopped],
        "disabled": undo.disabled,
        "enabled": undo.enabled,
        "started": undo.started,
        "down_since": undo.down_since,
        "down_at": undo.down_at,
    }


def undo_from_json(data: Mapping[str, Any]) -> Undo:
    """From plain data."""
    return Undo(
        changes=[_change_from_json(change) for change in data["changes"]],
        unit_text=data["unit_text"],
        stopped=[Stopped(_service(each["service"]), each["served"]) for each in data["stopped"]],
        disabled=list(data["disabled"]),
        enabled=list(data["enabled"]),
        started=data["started"],
        down_since=data["down_since"],
        down_at=data["down_at"],
    )


def _service(data: Mapping[str, Any]) -> ManagedService:
    known = {name: value for name, value in data.items() if name in ManagedService.__dataclass_fields__}
    lists = {name: tuple(value) for name, value in known.items() if isinstance(value, list)}
    return ManagedService(**dict(known, **lists))


def _change_to_json(change: FileChange) -> Dict[str, Any]:
    wanted, status = change.wanted, change.before_status
    times: Optional[List[int]] = None
    if status is not None:
        times = [status.st_uid, status.st_gid, status.st_atime_ns, status.st_mtime_ns]
    return {
        "path": wanted.path,
        "mode": wanted.mode,
        "uid": wanted.uid,
        "gid": wanted.gid,
        "secret": wanted.secret,
        "opaque": wanted.opaque,
        "what": change.what,
        "before": None if change.before is None else base64.b64encode(change.before).decode("ascii"),
        "before_mode": change.before_mode,
        "before_status": times,
    }


def _change_from_json(data: Mapping[str, Any]) -> FileChange:
    """What the file was to become is not kept: only the way back is."""
    wanted = WantedFile(data["path"], None, data["mode"], data["uid"], data["gid"], data["secret"], data["opaque"])
    before = None if data["before"] is None else base64.b64decode(data["before"])
    status = None
    if data["before_status"] is not None:
        uid, gid, accessed, modified = data["before_status"]
        seconds = (data["before_mode"] or 0, 0, 0, 1, uid, gid, len(before or b""), accessed // 10**9, modified // 10**9, 0)
        status = os.stat_result(seconds, {"st_atime_ns": accessed, "st_mtime_ns": modified})
    return FileChange(wanted, data["what"], before, data["before_mode"], status)
