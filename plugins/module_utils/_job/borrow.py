# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the module ``gpu_borrow`` does: look, plan, write down what is to be done, and have the host's job do it."""

from __future__ import annotations

import os
import time
from functools import partial
from typing import Any, Dict, List, Mapping, Optional

from .._borrow.command import unit_of
from .._borrow.hidden import forget_secrets, forget_strays, keep_secrets
from .._borrow.look import BorrowLook, diff_of_plan, lenders_to_json, look, plan, refuse_without_directory
from .._borrow.request import BorrowRequest, secrets_in, without_secrets
from .._core.errors import GpuFleetError
from .._core.files import FileChange, changes, diff_of, make_directory
from .._core.host_lock import busy_message, holder_of
from .._service.interrupts import shielded
from .._service.plan import Step
from .._service.ports import Ports
from .._service.prepare import prepare_runner
from .._service.run import refuse_without_systemd
from .._service.runner import runner_files
from .._unit.change_unit import CHANGE_UNIT
from . import main as _main
from . import underway
from .abandoned import clear, hand_over
from .change import create, the_same
from .job import current_boot
from .origin import began_by
from .record import BORROW, Record, digest_of, new_id
from .store import Store
from .underway import job_entry

# What Ansible sends to a host is what is imported, and the program that runs the job is packed there.
_SENT_ALONG = (_main,)


def borrow(
    params: Mapping[str, Any], request: BorrowRequest, ports: Ports, check_mode: bool, wait: bool = True, force: bool = False
) -> Dict[str, Any]:
    """The module's result, with ``warnings``; with ``failed`` and ``msg`` when it has failed.

    ``params`` are what ``request`` was made from; their secrets are kept out of the record. ``force`` runs the command although its
    last run stands. Raises GpuFleetError for what is refused before anything was touched.
    """
    refuse_without_systemd(ports)
    store = Store(ports.paths.change, ports.paths.run)
    first: List[Dict[str, str]] = []  # what was abandoned, and is brought to its end before
    while True:
        found = store.load()
        if found is None:
            done = None if force else _unheard(request, store, wait, check_mode) or _standing(request, store, ports)
            if done is None:
                done = _begin(params, request, ports, check_mode, wait, store, first)
            if done is not None:
                return done
        elif found["digest"] == digest_of(request):
            done = the_same(found, partial(_followed, found, ports), ports, check_mode, wait, store)
            return _heard(done, store) if wait and not check_mode else done
        elif not underway.abandoned(found, ports):
            raise underway.refusal(found, ports)
        else:
            first.append(underway.first_step(found, ports))
            if check_mode:
                plan = partial(_begin, params, request, ports, True, True, store, first)
                return underway.planned_after(plan, {"changed": True, "actions": first, "command": request.shown, "put_back": None})
            if not wait:
                hand_over(found, ports, store, first)
            clear(found, ports, store)


def _unheard(request: BorrowRequest, store: Store, wait: bool, check_mode: bool) -> Optional[Dict[str, Any]]:
    """What came of the same request when it ended with nobody there to hear it: told now, in place of running the command again.

    Whoever does not wait notes himself that he has heard it (``change.pyz received``): he may be one who only begins to follow.
    """
    last = store.last()
    if last is None or last.get("digest") != digest_of(request) or last.get("received"):
        return None
    ended = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(float(last["ended"])))
    text = "This is what came of the run that ended at %s, which nobody had heard of. The command was not run again." % ended
    result = dict(last["result"], job=dict(job_entry(str(last["id"]), True), ended=ended))
    result["warnings"] = [text, *(result.get("warnings") or [])]
    return _heard(result, store) if wait and not check_mode else result


def _standing(request: BorrowRequest, store: Store, ports: Ports) -> Optional[Dict[str, Any]]:
    """The result of the same request where the host's last change was just that, and went well: nothing is stopped for it twice.

    The host has not been booted since, and what gave its GPUs away runs as it was put back. Whether it serves is not looked at, so
    nothing is said of it.
    """
    last = store.last()
    if last is None or last.get("digest") != digest_of(request) or not _as_it_was_left(last.get("stands"), ports):
        return None
    result = dict(last["result"])
    if result.get("failed") or result.get("outcome") != "succeeded" or not result.get("put_back"):
        return None
    ended = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(float(last["ended"])))
    of_now = ("actions", "files", "services", "ended_processes", "gpus_before", "gpus_after", "warnings")
    nothing: Dict[str, Any] = {key: [] for key in of_now}
    result.pop("diff", None)
    return dict(
        result, **nothing, changed=False, put_back=None, timings={},
        detail="it ended at %s, and its result stands; with `force` it is run again" % ended,
    )  # fmt: skip


def _as_it_was_left(stands: Optional[Mapping[str, Any]], ports: Ports) -> bool:
    if not stands or stands["boot_id"] != current_boot():
        return False
    now = ports.systemd.statuses(list(stands["runs"]))
    return all((now[unit].running or now[unit].starting) and now[unit].invocation_id == run for unit, run in stands["runs"].items())


def _heard(result: Dict[str, Any], store: Store) -> Dict[str, Any]:
    if "job" in result:
        store.received(str(result["job"]["id"]))
    return result


def _begin(
    params: Mapping[str, Any], request: BorrowRequest, ports: Ports, check_mode: bool, wait: bool, store: Store,
    first: List[Dict[str, str]],
) -> Optional[Dict[str, Any]]:
    """None when another change has begun meanwhile. ``first`` is what this run has done before."""
    clock = ports.clock
    begun = clock.monotonic()
    try:
        refuse_without_directory(request)
        busy = holder_of(ports.paths.run, ports.paths.proc)
        if busy is not None and check_mode:
            raise GpuFleetError(busy_message(busy), lock_holder=busy)
        with ports.open_reader() as reader:
            found = look(request, ports, reader)
    except GpuFleetError as exc:
        raise GpuFleetError("%s Nothing was touched." % exc.msg, **exc.result) from exc
    runner = changes(runner_files(ports.paths))
    at_boot = ports.systemd.status(CHANGE_UNIT).enabled
    steps = plan(request, found)
    told = _told(request, found, _prepared_steps(runner, at_boot) + steps, runner, clock.monotonic() - begun)
    told["actions"] = first + told["actions"]
    entries = [each for each in (*diff_of(runner), diff_of_plan(steps)) if each is not None]
    if check_mode:
        return dict(told, changed=True, diff=entries)
    record = Record(
        id=new_id(), digest=digest_of(request), params=without_secrets(params), purpose=_purpose(request, found), unit="", by=began_by(),
        at=clock.time() - (clock.monotonic() - begun), monotonic=begun, boot_id=current_boot(), kind=BORROW,
        prepared={"told": dict(told, diff=entries), "touched": bool(runner or first)},
    )  # fmt: skip
    record.unit = record.prepared["told"]["unit"] = unit_of(record.id)
    secrets = secrets_in(params)

    def prepare_host() -> None:
        make_directory(os.path.dirname(ports.paths.program))
        prepare_runner(runner, not at_boot, ports, reload=True)
        forget_strays(ports.paths.run)
        if secrets:
            keep_secrets(record.unit, ports.paths.run, secrets)

    with shielded():
        created = False
        try:
            created = create(record, prepare_host, ports, store)
        finally:
            if not created:
                forget_secrets(record.unit, ports.paths.run)
        if not created:
            return None
        underway.start(ports)
    job = job_entry(record.id, False)
    if not wait:
        return dict(record.prepared["told"], changed=True, job=job)
    return _heard(dict(underway.wait_for_end(record.id, store, ports), job=job), store)


def _purpose(request: BorrowRequest, found: BorrowLook) -> str:
    """What a run says of itself to those who have to wait for it. The command's words may say what is nobody's business."""
    return "gpu_borrow of GPU %s for a command" % ", ".join(map(str, found.indices))


def _prepared_steps(runner: List[FileChange], at_boot: bool) -> List[Step]:
    steps = [Step("write", change.wanted.path, "it carries the borrowing out, and puts back what served") for change in runner]
    if not at_boot:
        steps.append(Step("enable", CHANGE_UNIT, "what a power cut interrupts has to be finished at boot"))
    return steps


def _told(request: BorrowRequest, found: BorrowLook, steps: List[Step], runner: List[FileChange], seconds: float) -> Dict[str, Any]:
    """The result before anything was done."""
    return {
        "changed": False,
        "unit": None,
        "command": request.shown,
        "gpus": found.indices,
        "environment": found.environment(),
        "actions": [step.to_result() for step in steps],
        "files": [change.to_result() for change in runner],
        "services": lenders_to_json(found.lenders),
        "outcome": None,
        "rc": None,
        "signal": None,
        "seconds": None,
        "detail": "",
        "output": "",
        "output_truncated": False,
        "left_behind": [],
        "ended_processes": [],
        "put_back": None,
        "gpus_before": [gpu.to_dict() for gpu in found.gpus],
        "gpus_after": [],
        "timings": {"preflight": round(seconds, 3)},
        "warnings": [],
    }


def _followed(found: Mapping[str, Any], ports: Ports) -> Dict[str, Any]:
    """What there is to return while it is under way."""
    told = (found.get("more") or {}).get("told") or (found.get("prepared") or {}).get("told") or {}
    reason = underway.of_this_very("borrowing", found, ports)
    return dict(
        told, changed=True, actions=[{"action": "follow", "target": CHANGE_UNIT, "reason": reason}], job=job_entry(str(found["id"]), True)
    )
