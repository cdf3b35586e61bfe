# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Where a reclaim stands: the last look, the plan that it led to, and what was done so far."""

from __future__ import annotations

from typing import Dict, List, Tuple

from .._core.clock import Deadline
from .._core.errors import GpuFleetError
from .._gpu.reader import GpuReader
from .done import Done
from .left import Held, what_is_held
from .look import look
from .patience import PatientReader, call_limit
from .plan import make_plan
from .planned import Plan
from .ports import Ports
from .request import ReclaimRequest
from .seen import UnitKey, UnitView

# What a reading still gets when the time is over, seconds.
_LITTLE_S = 5.0
# How often somebody may start anew what was ended before this gives up and names it.
ROUNDS = 3
# What a person does about a driver that can't be read.
_NEXT = {
    "no_driver": " Next: load the driver (modprobe nvidia), or install it.",
    "library_missing": " Next: install the driver's user-space part (libnvidia-ml.so.1, nvidia-smi) in the version of the loaded module.",
    "driver_library_mismatch": " Next: reboot the host, so that the module is loaded that the installed library belongs to.",
    "driver_hung": " Next: look for Xid lines in the kernel log, then reboot the host.",
}
LATE = "left alone: the time was over before it could be ended; give a longer timeout"


class Situation:
    """The state of one reclaim. Opens a reader; close() lets go of it."""

    def __init__(self, request: ReclaimRequest, ports: Ports) -> None:
        self.request = request
        self.ports = ports
        self.deadline = Deadline(ports.clock, request.timeout)
        self.done = Done()
        self.late = False
        self.reader: GpuReader = self._open()
        self._closed = False
        try:
            self.view = look(self.reader, request, ports)
            self._refuse_unreadable()
        except BaseException:
            self.reader.close()
            raise
        self.before = self.view.gpus
        self.selected = self.view.selected
        self.limits: Dict[int, int] = dict.fromkeys(self.selected, request.max_used_mib)
        self.plan = make_plan(request, self.view)

    def close(self) -> None:
        """Let go of the driver; the view stays."""
        if not self._closed:
            self.reader.close()
        self._closed = True

    def reopen(self) -> None:
        """Read anew what is known of the driver; after a reset."""
        self.reader, self._closed = self._open(), False

    def _open(self) -> GpuReader:
        reader = self.ports.open_reader()
        reader.within = self._within
        return PatientReader(reader)

    def _within(self) -> float:
        """Seconds that a reading may take. One that hangs at the very end may make the whole a call's share longer, and a little."""
        overtime = call_limit(self.request.timeout) + _LITTLE_S
        return max(_LITTLE_S, self.request.timeout + overtime - self.deadline.elapsed)

    def _refuse_unreadable(self) -> None:
        snapshot = self.view.snapshot
        if not snapshot.available:
            raise GpuFleetError(
                "No GPU can be read on this host (%s: %s), so nothing is touched and nothing counts as free.%s"
                % (snapshot.reason, snapshot.reason_detail or "no detail", _NEXT.get(str(snapshot.reason), "")),
                changed=False, freed=False,
            )
        if not self.view.selected:
            raise GpuFleetError("The driver shows no GPU on this host.", changed=False, freed=False)

    def look(self) -> None:
        """Look again, and plan again where the driver answers."""
        self.view = look(self.reader, self.request, self.ports)
        if self.view.snapshot.available:
            self.plan = make_plan(self.request, self.view, self.done.stopped.keys())

    def fresh(self) -> Plan:
        """What the plan still holds of things not tried yet. A unit that came back is stopped again, up to a limit."""
        done = self.done
        if not self.view.snapshot.available:
            return Plan()  # nobody is touched on the word of a look from before
        return Plan(
            tuple(
                stop for stop in self.plan.stops
                if done.attempts.get(stop.unit.key, 0) < ROUNDS
                and (stop.unit.key not in done.stopped or done.stopped[stop.unit.key].ok)
            ),
            tuple(
                each for each in self.plan.signals
                if each.holder.identity not in done.signalled and each.holder.identity not in done.refused
            ),
            self.plan.skips,
        )

    def revived(self) -> List[UnitView]:
        """Units that were stopped as often as it makes sense and run again."""
        return [stop.unit for stop in self.plan.stops if self._comes_back(stop.unit.key)]

    def _comes_back(self, key: UnitKey) -> bool:
        stopped = self.done.stopped.get(key)
        return self.done.attempts.get(key, 0) >= ROUNDS or (stopped is not None and stopped.restarted)

    def held(self) -> List[Held]:
        """The selected GPUs that are not free now, with what was tried on their holders."""
        fates = {key: "survived SIGKILL" for key, each in self.done.signalled.items() if each.outcome == "survived"}
        fates.update({key: skip.reason for key, skip in self.done.refused.items()})
        if self.late:
            fates.update({key: LATE for key in self.planned_fates() if key not in fates})
        for holder in self.view.holders:
            stopped = None if holder.unit is None else self.done.stopped.get(holder.unit)
            if stopped is None:
                continue
            if self._comes_back((stopped.unit, stopped.uid)):
                fates[holder.identity] = "its unit is started again each time it is stopped"
            elif not stopped.ok:
                fates[holder.identity] = "its unit was stopped, and it survived SIGKILL"
        return what_is_held(self.view, self.plan, self.limits, fates)

    def planned_held(self) -> List[Held]:
        """The selected GPUs that are not free now, with what the plan would do about their holders."""
        return what_is_held(self.view, self.plan, self.limits, self.planned_fates())

    def planned_fates(self) -> Dict[Tuple[int, int], str]:
        """What the plan does to whom, by identity."""
        fates = {each.holder.identity: "it would be ended" for each in self.plan.signals}
        stopped = {pid for stop in self.plan.stops for pid in stop.pids}
        fates.update({holder.identity: "its unit would be stopped" for holder in self.view.holders if holder.pid in stopped})
        return fates
