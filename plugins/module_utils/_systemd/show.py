# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The text of ``systemctl show``, read into plain data."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Dict, List, Mapping, Optional, Tuple

# What UnitStatus is made of. Asked for by name: `systemctl show` of everything is 200 lines and slower.
PROPERTIES = (
    "Id",
    "LoadState",
    "LoadError",
    "ActiveState",
    "SubState",
    "Result",
    "MainPID",
    "NRestarts",
    "InvocationID",
    "FragmentPath",
    "DropInPaths",
    "UnitFileState",
    "ExecMainStatus",
    "ExecMainCode",
    "ExecMainPID",
    "ExecStartPre",
    "NeedDaemonReload",
    "ControlGroup",
    "Slice",
    "ConditionResult",
    "AssertResult",
    "ActiveEnterTimestampMonotonic",
    "ExecMainStartTimestampMonotonic",
    "ExecMainExitTimestampMonotonic",
    "StateChangeTimestampMonotonic",
    "TimeoutStopUSec",
    "Job",
)

# ExecMainCode is the si_code of waitid(2).
_EXEC_CODES = {"0": None, "1": "exited", "2": "killed", "3": "dumped"}

# systemctl prints time spans as people read them; a month and a year are what systemd takes them for.
_SPAN_S = {"us": 1e-6, "μs": 1e-6, "ms": 1e-3, "s": 1.0, "min": 60.0, "h": 3600.0, "d": 86400.0, "w": 604800.0,
           "month": 2629800.0, "y": 31557600.0}  # fmt: skip
_SPAN_PART = re.compile(r"([0-9]+(?:\.[0-9]+)?)(us|μs|ms|s|min|h|d|w|month|y)$")

_PROPERTY_LINE = re.compile(r"^([A-Z][A-Za-z0-9]*)=(.*)$")
# The words of the command stand before these, and may look like anything: only the end of the line counts.
_EXEC_STATUS = re.compile(
    r"; ignore_errors=no ; start_time=\[[^\]]*\] ; stop_time=\[[^\]]*\] ; pid=\d+ ; code=(\w+) ; status=(\d+)(?:/\S+)? \}$"
)


def parse_show(text: str) -> List[Dict[str, str]]:
    """Split the output of ``systemctl show`` into one dict per unit, in the order asked for.

    Units are apart by an empty line. A property that stands more than once (``ExecStartPre=``) keeps all its lines,
    joined by a newline. A line that is no ``Name=value`` continues the value before it: descriptions and status
    texts may hold newlines, and such a continuation may be empty, so an empty line only ends a unit when a property
    follows it or nothing does.
    """
    units: List[Dict[str, str]] = []
    current: Dict[str, str] = {}
    last: Optional[str] = None
    blank = 0
    for line in text.split("\n"):
        if not line:
            blank += 1
            continue
        match = _PROPERTY_LINE.match(line)
        if match is None and last is not None:
            current[last] += "\n" * (blank + 1) + line
            blank = 0
            continue
        if match is None:
            continue  # text before the first property: a warning of systemctl
        if blank and current:
            units.append(current)
            current = {}
        blank = 0
        last = match.group(1)
        value = match.group(2)
        current[last] = current[last] + "\n" + value if last in current else value
    if current:
        units.append(current)
    return units


@dataclass(frozen=True)
class UnitStatus:
    """One unit as systemd has it now. Times are seconds since the epoch, ``None`` where it never happened."""

    unit: str
    load_state: str
    active_state: str
    sub_state: str
    result: str = "success"
    main_pid: int = 0
    n_restarts: int = 0
    invocation_id: str = ""
    fragment_path: str = ""
    drop_in_paths: Tuple[str, ...] = ()
    unit_file_state: str = ""
    exec_main_status: int = 0
    exec_main_code: Optional[str] = None  # exited, killed, dumped; None while nothing has ended
    exec_main_pid: int = 0
    start_pre_status: Optional[int] = None  # exit status of the ExecStartPre that failed, None when none did
    start_pre_path: Optional[str] = None  # its program
    need_daemon_reload: bool = False
    control_group: str = ""
    slice: str = ""
    condition_result: bool = True
    assert_result: bool = True
    active_enter: Optional[float] = None
    main_start: Optional[float] = None
    main_exit: Optional[float] = None
    state_change: Optional[float] = None
    timeout_stop: Optional[float] = None  # seconds that the unit may take to stop; None for no end, or unknown
    job: int = 0  # the id of a queued or running job on the unit, 0 for none

    @classmethod
    def from_properties(cls, properties: Mapping[str, str], monotonic_offset: float = 0.0) -> "UnitStatus":
        """Read one dict of :func:`parse_show`.

        ``monotonic_offset`` is what has to be added to the kernel's monotonic clock to get seconds since the epoch:
        systemctl prints wall-clock times as local text with a resolution of one second, too coarse to tell whether
        a process is older than a file, so the monotonic ones (microseconds) are read instead.
        """
        get = properties.get
        failed = _failed_command(get("ExecStartPre", ""))

        def when(name: str) -> Optional[float]:
            micros = _int(get(name))
            return round(monotonic_offset + micros / 1e6, 3) if micros else None

        return cls(
            unit=get("Id", ""),
            load_state=get("LoadState", ""),
            active_state=get("ActiveState", ""),
            sub_state=get("SubState", ""),
            result=get("Result", "success"),
            main_pid=_int(get("MainPID")),
            n_restarts=_int(get("NRestarts")),
            invocation_id=get("InvocationID", ""),
            fragment_path=get("FragmentPath", ""),
            drop_in_paths=tuple(get("DropInPaths", "").split()),
            unit_file_state=get("UnitFileState", ""),
            exec_main_status=_int(get("ExecMainStatus")),
            exec_main_code=_EXEC_CODES.get(get("ExecMainCode", "0")),
            exec_main_pid=_int(get("ExecMainPID")),
            start_pre_status=failed[1] if failed is not None else None,
            start_pre_path=failed[0] if failed is not None else None,
            need_daemon_reload=get("NeedDaemonReload") == "yes",
            control_group=get("ControlGroup", ""),
            slice=get("Slice", ""),
            condition_result=get("ConditionResult", "yes") != "no",
            assert_result=get("AssertResult", "yes") != "no",
            active_enter=when("ActiveEnterTimestampMonotonic"),
            main_start=when("ExecMainStartTimestampMonotonic"),
            main_exit=when("ExecMainExitTimestampMonotonic"),
            state_change=when("StateChangeTimestampMonotonic"),
            timeout_stop=parse_span(get("TimeoutStopUSec", "")),
            job=_int(get("Job")),
        )

    @property
    def exists(self) -> bool:
        """Whether systemd knows a unit file of this name (or a mask over it)."""
        return self.load_state not in ("not-found", "")

    @property
    def masked(self) -> bool:
        """Whether the unit is masked: it can't be started until somebody unmasks it."""
        return self.load_state == "masked"

    @property
    def running(self) -> bool:
        """Active, running, with a main process. ``activating`` is not running."""
        return self.active_state == "active" and self.sub_state == "running" and self.main_pid > 0

    @property
    def starting(self) -> bool:
        """On its way up: the guard waits (``start-pre``) or the process is being executed (``start``)."""
        return self.active_state == "activating" and self.sub_state != "auto-restart"

    @property
    def stopping(self) -> bool:
        """On its way down."""
        return self.active_state == "deactivating"

    @property
    def failed(self) -> bool:
        """Ended badly, and systemd will not try again by itself."""
        return self.active_state == "failed"

    @property
    def inactive(self) -> bool:
        """Nothing runs and nothing is about to: inactive or failed, without a job."""
        return self.active_state in ("inactive", "failed") and not self.job

    @property
    def crash_looping(self) -> bool:
        """Ended and waiting to be started again, or given up on after that.

        A unit that ran into its start limit keeps the result of its last failure ("start-limit-hit" only stands there
        when the limit was hit by a start from outside), so the count of restarts tells it.
        """
        if self.sub_state.startswith("auto-restart") or self.result == "start-limit-hit":
            return True
        return self.failed and self.n_restarts > 0

    @property
    def enabled(self) -> bool:
        """Whether the unit starts at boot."""
        return self.unit_file_state in ("enabled", "enabled-runtime", "linked-enabled")

    def to_result(self) -> Dict[str, Any]:
        """The contract's ``status``."""
        return {
            "active_state": self.active_state,
            "sub_state": self.sub_state,
            "result": self.result,
            "main_pid": self.main_pid or None,
            "restarts": self.n_restarts,
            "since": self.state_change,
        }


def parse_span(text: str) -> Optional[float]:
    """Seconds of a time span as ``systemctl show`` prints it (``1min 30s``); None for ``infinity`` and what is no time span."""
    total, words = 0.0, text.split()
    for word in words:
        part = _SPAN_PART.match(word)
        if part is None:
            return None
        total += float(part.group(1)) * _SPAN_S[part.group(2)]
    return total if words else None


def _int(text: Optional[str]) -> int:
    """A number of ``systemctl show``; 0 for what isn't set ("", "[not set]") and for 2^64-1 (infinity)."""
    try:
        number = int((text or "0").split()[0])
    except (ValueError, IndexError):
        return 0
    return 0 if number >= 2**64 - 1 else number


def _failed_command(exec_lines: str) -> "Optional[Tuple[str, int]]":
    """The program and the exit status of the first command that failed."""
    for line in exec_lines.split("\n"):
        match = _EXEC_STATUS.search(line)
        if match is not None and match.group(1) in ("exited", "killed", "dumped") and match.group(2) != "0":
            path = re.match(r"\{ path=(.*?) ; ", line)
            return path.group(1) if path is not None else "", int(match.group(2))
    return None
