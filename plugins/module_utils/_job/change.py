# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the module does: everything that is over in a moment in its own process, everything else as a job of the host."""

from __future__ import annotations

from contextlib import ExitStack
from functools import partial
from typing import Any, Callable, Dict, List, Mapping, Optional

from .._core.errors import GpuFleetError
from .._core.files import diff_of
from .._core.host_lock import HostLock
from .._service.interrupts import shielded
from .._service.ports import Ports
from .._service.prepare import prepare, prepared_steps
from .._service.request import Request
from .._service.run import Run, ServiceResult, purpose, refuse_without_systemd, serving, timings_of
from .._service.run import run as run_here
from .._unit.change_unit import CHANGE_UNIT
from .._unit.slug import unit_name
from . import main as _main
from . import underway
from .abandoned import clear, hand_over
from .job import current_boot
from .origin import began_by
from .record import Record, digest_of, new_id
from .store import Store
from .underway import job_entry

# What Ansible sends to a host is what is imported, and the program that runs the job is packed there.
_SENT_ALONG = (_main,)
# Another module that begins a change, or finds that it may not, holds the lock for no longer than this.
_LOCK_S = 3.0
_PAUSE_S = 0.05


def change(params: Mapping[str, Any], request: Request, ports: Ports, check_mode: bool, wait: bool = True) -> Dict[str, Any]:
    """The module's result, with ``warnings``; with ``failed`` and ``msg`` when a job has failed.

    ``params`` are what ``request`` was made from. Raises GpuFleetError, with everything that was done attached, for what
    fails in this process.
    """
    refuse_without_systemd(ports)
    store = Store(ports.paths.change, ports.paths.run)
    first: List[Dict[str, str]] = []  # what was abandoned, and is brought to its end before
    while True:
        found = store.load()
        if found is None:
            done = _without_one_under_way(params, request, ports, check_mode, wait, store, first)
            if done is not None:
                return done
        elif found["digest"] == digest_of(request):
            return the_same(found, partial(_followed, found, request, ports), ports, check_mode, wait, store)
        elif not underway.abandoned(found, ports):
            raise underway.refusal(found, ports)
        else:
            first.append(underway.first_step(found, ports))
            if check_mode:
                plan = partial(_without_one_under_way, params, request, ports, True, True, store, first)
                return underway.planned_after(plan, _behind(first, _not_begun(request, ports)))
            if not wait:
                hand_over(found, ports, store, first)
            clear(found, ports, store)


# -- nothing is under way ----------------------------------------------------------------------------------------------


def _without_one_under_way(
    params: Mapping[str, Any], request: Request, ports: Ports, check_mode: bool, wait: bool, store: Store, first: List[Dict[str, str]]
) -> Optional[Dict[str, Any]]:
    """None when one has begun meanwhile. ``first`` is what this run has done before."""
    begun = ports.clock.monotonic()
    if not request.wants_running:
        return _behind(first, _here(request, ports, check_mode, store))
    with ExitStack() as stack:
        reader = stack.enter_context(ports.open_reader())
        one = Run(request, ports, reader, begun)
        one.examine(remember=not check_mode)
        if check_mode:
            return _behind(first, _plain(one.planned()))
        if one.idle:
            return _behind(first, _plain(one.result(False)))
        if one.moves_servers:
            record = _begin(params, request, one, begun, ports, store, first)
            if record is None:
                return None
            if not wait:
                return _behind(first, dict(_plain(one.planned()), changed=True, ready=False, job=job_entry(record.id, False)))
    if one.moves_servers and record is not None:
        return dict(underway.wait_for_end(record.id, store, ports), job=job_entry(record.id, False))
    return _behind(first, _here(request, ports, check_mode, store))


def _behind(first: List[Dict[str, str]], done: Dict[str, Any]) -> Dict[str, Any]:
    """A result with what was done before it."""
    return dict(done, actions=first + done["actions"], changed=True) if first else done


def _here(request: Request, ports: Ports, check_mode: bool, store: Store) -> Dict[str, Any]:
    def gate() -> None:
        found = store.load()
        if found is not None:
            raise underway.refusal(found, ports)

    with shielded():
        return _plain(run_here(request, ports, check_mode, gate))


def _begin(
    params: Mapping[str, Any], request: Request, one: Run, begun: float, ports: Ports, store: Store, first: List[Dict[str, str]]
) -> Optional[Record]:
    """Write down what is to be done, and have systemd do it. None when another change has begun meanwhile.

    Dying in between leaves a record without a job: whoever runs the same again starts it.
    """
    clock = ports.clock
    runner = list(one.seen.view.runner)
    record = Record(
        id=new_id(), digest=digest_of(request), params=dict(params), purpose=purpose(request), unit=one.seen.view.unit, by=began_by(),
        at=clock.time() - (clock.monotonic() - begun), monotonic=begun, boot_id=current_boot(),
        prepared={
            "actions": first + [step.to_result() for step in prepared_steps(one.seen, one.plan)],
            "files": [each.to_result() for each in runner],
            "diff": diff_of(runner),
            "warnings": list(one.outcome.warnings),
            "preflight": one.preflight,
        },
    )
    with shielded():
        try:
            if not create(record, lambda: prepare(one.seen, one.plan, ports, reload=True), ports, store):
                return None
        except GpuFleetError as exc:
            if "lock_holder" in exc.result:
                raise  # whoever holds it may be about to stop what served
            # Nothing was stopped: what was seen to run goes on, and a host that was taken out for this can be taken back.
            raise GpuFleetError(exc.msg, **{**exc.result, "serving_before": serving(one.seen)}) from exc
        underway.start(ports)
    return record


def create(record: Record, prepare_host: Callable[[], None], ports: Ports, store: Store) -> bool:
    """Write the record, once ``prepare_host`` has put in place what carries it out. False when another change has begun meanwhile."""
    end = ports.clock.monotonic() + _LOCK_S
    while True:
        try:
            with HostLock(ports.paths.run, record.purpose):
                if store.exists():
                    return False
                prepare_host()
                return store.create(record.to_json())
        except GpuFleetError as exc:
            if store.exists():
                return False
            if "lock_holder" not in exc.result:
                raise GpuFleetError("%s Nothing was touched." % exc.msg, **exc.result) from exc
            if ports.clock.monotonic() >= end:
                raise
        ports.clock.sleep(_PAUSE_S)


# -- one is under way --------------------------------------------------------------------------------------------------


def the_same(
    found: Mapping[str, Any], followed: Callable[[], Dict[str, Any]], ports: Ports, check_mode: bool, wait: bool, store: Store
) -> Dict[str, Any]:
    """What a change that was begun before comes to; ``followed`` is what there is to return while it is under way."""
    if check_mode:
        return followed()
    if underway.abandoned(found, ports) or ports.systemd.status(CHANGE_UNIT).inactive:
        underway.start(ports)
    if not wait:
        return followed()
    return dict(underway.wait_for_end(found["id"], store, ports), job=job_entry(found["id"], True))


def _followed(found: Mapping[str, Any], request: Request, ports: Ports) -> Dict[str, Any]:
    """What there is to return while it is under way."""
    told = found.get("told") or {}
    return dict(
        _not_begun(request, ports),
        changed=True,
        actions=[{"action": "follow", "target": CHANGE_UNIT, "reason": underway.of_this_very("change", found, ports)}],
        serving_before=told.get("serving_before", []),
        gpus_before=told.get("gpus_before", []),
        job=job_entry(found["id"], True),
    )


def _not_begun(request: Request, ports: Ports) -> Dict[str, Any]:
    """A result of which nothing is known but the unit."""
    unit = unit_name(request.name)
    nothing: Dict[str, Any] = {
        key: [] for key in ("actions", "files", "serving_before", "served_models", "replaced", "gpus_before", "gpus_after", "warnings")
    }
    return dict(
        nothing, changed=False, unit=unit, status=ports.systemd.status(unit).to_result(), ready=False, rolled_back=False,
        timings=timings_of({}),
    )  # fmt: skip


def _plain(done: ServiceResult) -> Dict[str, Any]:
    return dict(done.to_result(diff=True), warnings=list(done.warnings))
