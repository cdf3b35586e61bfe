# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Looking at one host for the sake of one service: everything the plan needs, and nothing changed."""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass
from typing import Dict, List, Optional, Sequence, Tuple

from .._core.errors import GpuFleetError
from .._core.files import FileChange, WantedFile, changes
from .._gpu.reader import GpuReader
from .._gpu.select import resolve
from .._gpu.types import Gpu, Snapshot
from .._guard.zipapp import build_guard
from .._server.http import Server
from .._server.ready import ReadyState
from .._systemd.show import UnitStatus
from .._unit.change_unit import CHANGE_UNIT
from .._unit.env_file import read_env_file
from .._unit.found import ManagedService, find_managed
from .._unit.render import wanted_files
from .._unit.slug import slug, unit_name
from .._unit.spec import GuardSpec, ServiceSpec
from .account import Account, look_up
from .drain import shutdown_timeout
from .identity import gpu_ids, mig_uuids
from .memory import Need
from .ownership import OURS, is_mask, refuse_foreign_unit, refuse_masked, refuse_newer, refuse_other_name
from .plan import Orphan, View, runner_unit_changed
from .ports import Ports
from .ready import Target
from .request import Request
from .rivals import rivals_of
from .runner import runner_files
from .wellness import Wellness, examine_server, idle_gpus

API_KEY = "VLLM_API_KEY"
# Makes the device nodes when nobody has yet (at boot); distributions put it in either place.
_MODPROBE = ("/usr/bin/nvidia-modprobe", "/usr/sbin/nvidia-modprobe")


@dataclass(frozen=True)
class Look:
    """One host, as far as one service is concerned. ``own`` is the service as its files on the host declare it.

    ``doubt`` is what is to be said of a running server that is left as it is, though it was not seen to serve.
    """

    view: View
    spec: Optional[ServiceSpec]
    own: Optional[ManagedService]
    target: Optional[Target]
    account: Account
    snapshot: Optional[Snapshot]
    gpus: Tuple[Gpu, ...]
    need: Optional[Need]
    others: Tuple[ManagedService, ...]
    serves: Optional[ReadyState]
    doubt: Optional[str] = None


def look(request: Request, ports: Ports, reader: Optional[GpuReader], compare: bool = True) -> Look:
    """Read units, files, GPUs and, where a server runs that may be left alone, its answer.

    Without ``compare`` no file is made to be held against the one on the host: then all of them count as new.
    """
    unit = unit_name(request.name)
    managed = find_managed(ports.paths.units)
    own = next((service for service in managed if service.unit == unit), None)
    others = [service for service in managed if service.unit != unit]
    account = look_up(request.user, request.group)
    snapshot = reader.snapshot() if reader is not None else None
    gpus = _selected(request, snapshot)
    spec = checked_spec(request, gpus) if request.declares_files else None
    statuses = ports.systemd.statuses([unit, CHANGE_UNIT] + [service.unit for service in others])
    status = statuses[unit]
    if request.declares_files:
        refuse_masked(unit, status)
    refuse_newer(own)
    refuse_other_name(request.name, own)
    refuse_foreign_unit(unit, status, own, definition_paths(request.name, ports)[2], ports)
    planned = _file_changes(request, spec, own, account, ports) if compare else []
    runner = tuple(changes(runner_files(ports.paths))) if request.declares_files and compare else ()
    definition = definition_paths(request.name, ports)
    target = None
    if spec is not None:
        server = ports.server(spec.host, spec.port, spec.secrets.get(API_KEY), spec.tls)
        target = Target(unit, spec.served_name, server, request.smoke)
    definition_changed = any(c.wanted.path in definition and c.what != "mode" for c in planned)
    stale = None if definition_changed else stale_reason(status, definition, ports.clock.time())
    found: Optional[Wellness] = None
    if request.state == "started" and status.running and target is not None and not definition_changed and stale is None:
        found = examine_server(target, ports.clock, request.ready_timeout, idle_gpus(snapshot, gpus))
    rivals = rivals_of(request, spec, others, statuses, gpus, ports) if request.wants_running and spec is not None else ()
    view = View(
        unit=unit,
        status=status,
        file_missing=not os.path.lexists(definition[0]) or is_mask(definition[0]),
        account_missing=request.declares_files and not account.complete,
        directories=_directories(ports) if request.declares_files else (),
        runner=runner,
        runner_at_boot=not request.declares_files or statuses[CHANGE_UNIT].enabled,
        changes=tuple(planned),
        definition_changed=definition_changed,
        unit_text_changed=not compare
        or runner_unit_changed(runner)
        or any(c.wanted.path.startswith(ports.paths.units + "/") and c.what != "mode" for c in planned),
        stale=stale,
        unwell=found.unwell if found is not None else None,
        rivals=rivals,
        orphans=_orphans(gpus),
        gpus=spec.gpus if spec is not None else (),
        model=spec.model if spec is not None else "",
        # With unified memory the cache would be taken out of what the server needs.
        model_on_disk=spec is not None and os.path.isdir(spec.model) and all(gpu.memory_type != "unified" for gpu in gpus),
    )
    need = None
    if spec is not None:
        need = Need(spec.utilization, spec.guard.margin_mib)
    left_running = tuple(
        service for service in others
        if not statuses[service.unit].inactive and service.unit not in {rival.service.unit for rival in rivals}
    )
    serves, doubt = (found.seen, found.doubt) if found is not None else (None, None)
    return Look(view, spec, own, target, account, snapshot, gpus, need, left_running, serves, doubt)


def server_of(service: ManagedService, ports: Ports) -> Server:
    """The HTTP side of a service as its files on the host declare it, with its own API key."""
    secrets = read_env_file(os.path.join(ports.paths.config, service.slug + ".env"))
    return ports.server(service.host, service.port, secrets.get(API_KEY), service.tls)


def _selected(request: Request, snapshot: Optional[Snapshot]) -> Tuple[Gpu, ...]:
    if snapshot is None:
        return ()
    if not snapshot.available:
        raise GpuFleetError(
            "The GPUs of this host cannot be read (%s): %s. Without the driver's word nothing is started or stopped here."
            % (snapshot.reason, snapshot.reason_detail or "no further detail")
        )
    if not snapshot.gpus:
        raise GpuFleetError("The driver shows no GPU on this host, and the service needs at least one.")
    return tuple(resolve(request.gpus, snapshot.gpus))


def _directories(ports: Ports) -> Tuple[str, ...]:
    """Those that are missing, or that the service's user cannot look into."""
    wanted = (ports.paths.config, os.path.dirname(ports.paths.guard), ports.paths.home, ports.paths.records)
    found = []
    for path in wanted:
        try:
            status = os.stat(path)
        except FileNotFoundError:
            found.append(path)
            continue
        except OSError as exc:
            raise GpuFleetError("Cannot look at %s: %s." % (path, exc.strerror)) from exc
        if not stat.S_ISDIR(status.st_mode):
            raise GpuFleetError("%s is in the way: a directory is needed there. Move it away and run again." % path)
        if status.st_mode & 0o005 != 0o005:
            found.append(path)
    return tuple(found)


def checked_spec(request: Request, gpus: Sequence[Gpu]) -> ServiceSpec:
    try:
        spec = _spec(request, gpus)
        utilization, _stop, _start = spec.utilization, spec.timeout_stop_s, spec.start_limit_interval_s
    except (TypeError, ValueError, OverflowError) as exc:
        raise GpuFleetError("The declaration of %s cannot be used: %s." % (request.name, exc)) from exc
    if isinstance(spec.args.get("gpu_memory_utilization"), bool) or not 0 < utilization <= 1:
        raise GpuFleetError(
            "args.gpu_memory_utilization is %r. It is a share of each GPU's memory, above 0 and at most 1, such as 0.92."
            % (spec.args.get("gpu_memory_utilization"),)
        )
    return spec


def _spec(request: Request, gpus: Sequence[Gpu]) -> ServiceSpec:
    if request.model is None:
        raise AssertionError("request.model is not None")
    instances = mig_uuids(gpus)
    return ServiceSpec(
        name=request.name,
        model=request.model,
        served_name=request.served_name or request.name,
        gpus=tuple(sorted({gpu.index for gpu in gpus})),
        gpu_uuids=instances,
        gpu_ids=() if instances else gpu_ids(request.gpus, gpus),
        host=request.host,
        port=request.port,
        args=dict(request.args),
        env=dict(request.env),
        secrets=dict(request.secrets),
        executable=request.executable,
        user=request.user,
        group=request.group,
        unit_options=request.unit_options,
        guard=GuardSpec(request.guard.enabled, request.guard.timeout, request.guard.margin_mib),
        stop_timeout=request.stop_timeout,
        shutdown_timeout=shutdown_timeout(request.args, request.drain_timeout),
        nvidia_modprobe=next(filter(os.path.exists, _MODPROBE), ""),
    )


def definition_paths(service: str, ports: Ports) -> Tuple[str, ...]:
    """The files that a running server has read; a change of one of them needs a restart."""
    name = slug(service)
    unit = os.path.join(ports.paths.units, unit_name(service))
    return (
        unit,
        unit + ".d/50-options.conf",
        os.path.join(ports.paths.config, name + ".yaml"),
        os.path.join(ports.paths.config, name + ".env"),
    )


def _file_changes(
    request: Request, spec: Optional[ServiceSpec], own: Optional[ManagedService], account: Account, ports: Ports
) -> List[FileChange]:
    paths = [path for path in definition_paths(request.name, ports) if not is_mask(path)]  # a mask is the administrator's
    if request.state == "stopped":
        return []
    wanted: List[WantedFile] = []
    if spec is not None:
        wanted.extend(wanted_files(spec))
        wanted.append(WantedFile(ports.paths.guard, build_guard(), mode=0o755, opaque=True))
    declared = {entry.path for entry in wanted}
    wanted.extend(WantedFile(path, None, secret=path.endswith(".env")) for path in paths if path not in declared)
    planned = changes(wanted)
    if own is None:
        theirs = [c for c in planned if c.wanted.path in paths and c.before is not None and not c.before.startswith(OURS)]
        if theirs and request.state == "absent":
            return [change for change in planned if change not in theirs]  # nothing of ours: nothing to remove
        for change in theirs:
            raise GpuFleetError(
                "%s exists, but this collection did not write it. It is left alone. Choose another name for the service, or "
                "move the file away and run again." % change.wanted.path
            )
    return planned


def stale_reason(status: UnitStatus, definition: Sequence[str], now: float) -> Optional[str]:
    """Why a unit's process is not what its files declare: one of them was written after its start. None when it is."""
    if status.main_start is None or not (status.running or status.starting):
        return None
    for path in definition:
        try:
            written = os.stat(path).st_mtime
        except FileNotFoundError:
            continue
        # A time that is yet to come says nothing: a clock was set back, or a backup brought it along.
        if status.main_start < written <= now:
            return "its process is older than %s" % path
    return None


def _orphans(gpus: Sequence[Gpu]) -> Tuple[Orphan, ...]:
    seen: Dict[int, Orphan] = {}
    for gpu in gpus:
        for process in gpu.processes:
            if process.orphan and not process.protected and process.pid not in seen:
                name = process.name or process.cmdline or "?"
                seen[process.pid] = Orphan(process.pid, name, gpu.index, process.used_mib)
    return tuple(seen[pid] for pid in sorted(seen))
