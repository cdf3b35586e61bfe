# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The borrowed command as a transient unit of systemd: in a cgroup of its own, with a time limit that holds whoever else has died.

What it writes goes to the journal, which is bounded and survives everybody; what became of it stays with the unit until that is
stopped (``RemainAfterExit=``, and a failed unit is kept), so that whoever comes later can still read it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Callable, Dict, List, Mapping, Optional, Sequence, Tuple

from .._core.errors import GpuFleetError
from .._core.runner import Runner
from .._systemd.journal import JournalLine
from .._systemd.manager import Systemd
from .._systemd.show import UnitStatus
from .hidden import PREFIX, environment_path, keep_environment, secrets_for
from .request import BorrowRequest

# What the unit may take for its own start, beyond what the command is given.
_START_S = 90.0
# systemd's exit codes for a command that it could not begin.
_NOT_BEGUN = {200: "its directory could not be entered", 203: "it could not be executed", 216: "its group could not be taken",
              217: "its user could not be taken"}  # fmt: skip


def unit_of(change: str) -> str:
    """The unit of one borrowing."""
    return PREFIX + change + ".service"


def start_words(unit: str, request: BorrowRequest, environment: Mapping[str, str], directory: str) -> List[str]:
    """The command that has systemd begin the borrowed one."""
    properties = {
        "Type": "exec",
        "RemainAfterExit": "yes",
        "RuntimeMaxSec": "%g" % request.timeout,
        "TimeoutStopSec": "%g" % request.grace,
        "KillMode": "control-group",
        "SendSIGKILL": "yes",
        "WorkingDirectory": request.chdir,
        # Registered memory of NCCL over RDMA, and a file for each of many sockets.
        "LimitMEMLOCK": "infinity",
        "LimitNOFILE": "1048576",
        "LogRateLimitIntervalSec": "0",
    }
    words = ["systemd-run", "--quiet", "--unit=" + unit, "--uid=" + request.user]
    words.append("--description=gpufleet.vllm: a command on borrowed GPUs (%s)" % environment.get("GPUFLEET_GPU_INDICES", ""))
    if request.env or request.secret_names:
        properties["EnvironmentFile"] = environment_path(unit, directory)
    words += ["--property=%s=%s" % each for each in sorted(properties.items())]
    words += ["--setenv=%s=%s" % each for each in sorted(environment.items())]
    # systemd puts in the values of variables that it finds in a command line; the shell is to see them as they were written.
    return [*words, "--", *(word.replace("$", "$$") for word in request.argv)]


def start(
    unit: str, request: BorrowRequest, environment: Mapping[str, str], runner: Runner, systemd: Systemd, directory: str
) -> None:
    """Begin it. A command that can't be begun, or fails before systemd has noted its begin, is a failed unit and no error here.

    ``directory`` is where its variables and secrets lie meanwhile (``hidden.py``), which the caller removes.
    """
    secrets = secrets_for(unit, directory, request.secret_names)
    if request.env or secrets:
        keep_environment(unit, directory, {**request.env, **secrets})
    done = runner.run(start_words(unit, request, environment, directory), timeout=_START_S)
    if not done.ok and not systemd.status(unit).exists:
        raise GpuFleetError("The command could not be handed to systemd: %s" % (done.stderr.strip() or "systemd-run said nothing"))


@dataclass(frozen=True)
class Ended:
    """How the command ended. ``outcome``: ``succeeded``, ``failed``, ``timed out``, ``killed``, ``not begun`` or ``stopped``."""

    outcome: str
    rc: Optional[int] = None
    signal: Optional[int] = None
    seconds: Optional[float] = None
    detail: str = ""

    def to_json(self) -> Dict[str, Any]:
        """Plain data."""
        return {
            "outcome": self.outcome, "rc": self.rc, "signal": self.signal, "detail": self.detail,
            "seconds": None if self.seconds is None else round(self.seconds, 3),
        }  # fmt: skip


def has_ended(status: UnitStatus) -> bool:
    """Whether the command itself has come to its end; what it started may go on."""
    return status.exec_main_code is not None or status.inactive or status.sub_state == "exited" or not status.exists


def is_over(status: UnitStatus) -> bool:
    """Whether systemd has nothing more to do with the unit: nobody is being waited for, and how it ended stands."""
    return status.sub_state == "exited" or status.inactive or not status.exists


def ended(status: UnitStatus, timeout: float, wrote: bool = False) -> Ended:
    """What became of it, from its unit as it is once it is over. ``wrote`` is whether it has written anything, so that it had begun."""
    code, number = status.exec_main_code, status.exec_main_status
    rc = number if code == "exited" else None
    signal = number if code in ("killed", "dumped") else None
    if status.result == "timeout":
        return Ended("timed out", rc, signal, detail="it did not end within its limit of %g s, and was ended as a whole" % timeout)
    if status.result == "oom-kill":
        return Ended("killed", rc, signal, detail="the host ran out of main memory, and the kernel killed it")
    if code is None:
        return Ended("stopped", detail="its unit was stopped by somebody else, so it isn't known how it would have ended")
    if code == "exited" and number in _NOT_BEGUN and status.failed and not wrote:
        return Ended("not begun", rc, detail="%s (systemd's status %d)" % (_NOT_BEGUN[number], number))
    if signal is not None:
        return Ended("killed", rc, signal, detail="it was ended by signal %d" % signal)
    if number == 0:
        return Ended("succeeded", 0)
    hint = {126: ", the shell's word for what can't be executed", 127: ", the shell's word for a command that isn't there"}.get(number, "")
    return Ended("failed", rc, detail="it ended with exit status %d%s" % (number, hint))


def has_written(lines: Sequence[JournalLine]) -> bool:
    """Whether the command itself has; what systemd says on its way to begin it is told by the name in brackets."""
    return any(not line.from_manager and not line.identifier.startswith("(") for line in lines)


def output_of(lines: Sequence[JournalLine], limit_kib: int, hide: Callable[[str], str] = str) -> Tuple[str, bool]:
    """What the command wrote, both its streams as they came: the last ``limit_kib`` of it, and whether that is not all.

    ``hide`` takes out what is not to be told, before anything is cut in two.
    """
    text = hide("".join(line.text + "\n" for line in lines if not line.from_manager))
    raw = text.encode("utf-8", "replace")
    limit = limit_kib * 1024
    if len(raw) <= limit:
        return text, False
    cut = raw[-limit:]
    _half, newline, rest = cut.partition(b"\n")
    return (rest if newline and rest else cut).decode("utf-8", "replace"), True
