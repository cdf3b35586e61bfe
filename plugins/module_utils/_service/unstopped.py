# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Why a unit could not be stopped, in words: what exactly of it is left, and what ends that."""

from __future__ import annotations

from .._process.procfs import read_process
from .._reclaim.done import StoppedUnit
from .._reclaim.left import of_survivor

_NAMED = 4


def why_unstopped(stopped: StoppedUnit, proc: str = "/proc") -> str:
    """Sentences without the last full stop, to stand after ``UNIT could not be stopped:``. ``stopped`` is one that is not ok.

    Each process that is left with its pid, name, state and where in the kernel it waits; then what ends the first of them.
    """
    said = stopped.detail or "systemd does not say why"
    if stopped.restarted:
        return (
            "%s. Find what starts it (`systemctl show --property=TriggeredBy,RequiredBy,WantedBy,UpheldBy %s`), stop that, and run again"
            % (said, stopped.unit)
        )
    infos = [info for info in (read_process(pid, proc) for pid in stopped.survivors) if info is not None and not info.zombie]
    if not infos:
        return "%s. Look at `systemctl status %s`" % (said, stopped.unit)
    left = [
        "pid %d (%s) in state %s%s" % (info.pid, info.comm, info.state, "" if info.wchan is None else ", waiting in %s" % info.wchan)
        for info in infos[:_NAMED]
    ]
    if len(infos) > _NAMED:
        left.append("%d more" % (len(infos) - _NAMED))
    first = of_survivor(infos[0].pid, infos[0].comm or stopped.unit, infos[0].state, infos[0].wchan)
    return "%s. SIGKILL did not end %s. %s" % (said, "; ".join(left), first.advice.rstrip("."))
