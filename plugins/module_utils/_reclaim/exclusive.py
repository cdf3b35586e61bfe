# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The host's services to ourselves: what a swap stops, starts or waits for is not ours to end."""

from __future__ import annotations

from contextlib import ExitStack

from .._core.errors import GpuFleetError
from .._core.host_lock import HostLock, busy_message, holder_of, quiet_since
from .ports import Ports
from .seen import View
from .unit_views import CHANGE_UNIT

_BUSY = "GPU memory can't be reclaimed now, nothing was touched. "


class Exclusive:
    """The host's lock, taken when it is needed first and kept to the end. Made before the first look."""

    def __init__(self, ports: Ports, scope: str) -> None:
        self._ports = ports
        self._purpose = "gpu_reclaim scope %s" % scope
        self._quiet_since = quiet_since(ports.run_root, ports.proc_root)
        self._lock = ExitStack()
        self._locked = False

    def close(self) -> None:
        """Let go of it."""
        self._lock.close()

    @property
    def locked(self) -> bool:
        """Whether it is ours."""
        return self._locked

    def take(self, changed: bool) -> bool:
        """Take the lock; True when somebody has had it since before the first look, so that one has to look again.

        ``changed``: whether this run has done something already. Raises GpuFleetError when somebody else is changing services.
        """
        try:
            lock = self._lock.enter_context(HostLock(self._ports.run_root, self._purpose))
        except GpuFleetError as exc:
            raise GpuFleetError((exc.msg if changed else _BUSY + exc.msg), **exc.result) from exc
        self._locked = True
        return self._quiet_since is None or lock.quiet_since != self._quiet_since

    def refuse_beside_a_holder(self) -> None:
        """For check mode, which takes no lock: raise GpuFleetError while somebody has it."""
        busy = holder_of(self._ports.run_root, self._ports.proc_root)
        if busy is not None:
            raise GpuFleetError(_BUSY + busy_message(busy), lock_holder=busy)


def refuse_beside_a_change(view: View, changed: bool) -> None:
    """Raise GpuFleetError while a change of services goes on whose job does not hold the lock at this moment.

    Its job has just been started, or was killed and starts again: what it has stopped and started so far is not ours to judge.
    """
    unit = view.units.get((CHANGE_UNIT, None))
    if unit is not None and not unit.inactive:
        busy = {"pid": unit.main_pid, "purpose": CHANGE_UNIT}
        raise GpuFleetError(
            "%sAnother run is changing the services of this host right now: %s is under way, and `journalctl -u %s` tells how "
            "far. Wait until it has ended, then run again." % ("" if changed else _BUSY, CHANGE_UNIT, CHANGE_UNIT),
            lock_holder=busy,
        )
