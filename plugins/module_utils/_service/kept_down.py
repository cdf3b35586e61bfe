# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Why a service that is put back does not come: who is on its GPUs, whether systemd goes on trying, and what to do."""

from __future__ import annotations

from typing import List, Tuple

from .._core.errors import GpuFleetError
from .._guard.exit_codes import MEMORY
from .._systemd.show import UnitStatus
from .._unit.found import ManagedService
from .memory import holder_text
from .ports import Ports
from .ready import NotReady
from .request import FREE_MAX_USED_MIB

# A message with more holders than this is a list nobody reads; gpu_memory_facts has them all.
_NAMED = 4


def why_down(failure: NotReady, service: ManagedService, ports: Ports) -> str:
    """``failure``'s message, with everybody else who holds memory of the service's GPUs, and what to do next."""
    status = failure.status
    # The guard waits for all of it; weights that do not fit did not fail for an idle process's few MiB.
    least = 0 if status.start_pre_status == MEMORY else FREE_MAX_USED_MIB
    try:
        strangers = _strangers(service, ports, least)
    except (GpuFleetError, OSError) as exc:
        return "%s; who holds its GPUs could not be read (%s); %s" % (_msg(failure), str(exc).rstrip("."), _next(status, False))
    if not strangers:
        return "%s; %s" % (_msg(failure), _next(status, False))
    more = "; and %d more" % (len(strangers) - _NAMED) if len(strangers) > _NAMED else ""
    return "%s. On its GPUs: %s%s. %s" % (_msg(failure), "; ".join(strangers[:_NAMED]), more, _next(status, True))


def _msg(failure: NotReady) -> str:
    return failure.msg.rstrip(".")


def _strangers(service: ManagedService, ports: Ports, least: int) -> List[str]:
    with ports.open_reader() as reader:
        snapshot = reader.snapshot()
    if not snapshot.available:
        raise GpuFleetError("The driver cannot be read: %s. Look at `nvidia-smi`." % (snapshot.reason_detail or snapshot.reason))
    mine = [gpu for gpu in snapshot.gpus if gpu.index in service.gpus]
    found: List[Tuple[int, str]] = []
    for gpu in mine:
        parts = [gpu.of_mig(each) for each in gpu.mig_devices if each.uuid in service.gpu_uuids] if gpu.memory_type == "mig" else [gpu]
        for part in parts:
            name = part.uuid if gpu.memory_type == "mig" else "GPU %d" % gpu.index
            found += [(process.used_mib or 0, "%s on %s" % (holder_text(process), name)) for process in part.processes
                      if process.unit != service.unit and (process.used_mib is None or process.used_mib >= least)]
    return [text for _used_mib, text in sorted(found, key=lambda each: -each[0])]


def _next(status: UnitStatus, held: bool) -> str:
    """What to do: systemd starts a crashed server again and again, but not one that has failed for good or was stopped."""
    goes_on = not (status.failed or status.inactive or status.stopping)
    if held and goes_on:
        return "systemd goes on trying to start %s: end them, and it comes back by itself" % status.unit
    if held:
        return "End them, then start it: `systemctl start %s`" % status.unit
    if goes_on:
        return "systemd goes on trying to start it. Read why it does not come: `journalctl -u %s`" % status.unit
    return "systemd does not start it again. Read why it ended: `journalctl -u %s`; then `systemctl start %s`" % (status.unit, status.unit)
