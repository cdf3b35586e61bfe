# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The checks alone, for ``vllm_preflight``: nothing is stopped, started or written."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Dict, List, Mapping, Optional, Sequence, Tuple

from .._core.errors import GpuFleetError
from .._gpu.reader import GpuReader
from .._gpu.select import resolve
from .._gpu.types import Gpu, Snapshot
from .._model.parallel import Check
from .._preflight.asked import Places, Seen, fail, skip
from .._preflight.gpu_facts import snapshot_of, version_of
from .._preflight.report import Report
from .._preflight.run import examine
from .checks import asked_of, given_memory, run_checks
from .look import Look, checked_spec, look
from .memory import Need
from .parameters import to_request
from .plan import make_plan
from .ports import Ports
from .request import Request

# A name that no service has: where none is given, every service of the host is another one.
_NOBODYS_NAME = "preflight.of.a.service.without.a.name"


class _Read(GpuReader):
    """A driver that was asked already."""

    def __init__(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot

    def snapshot(self, gpus: Optional[Sequence[str]] = None, processes: bool = True) -> Snapshot:
        return self._snapshot


def preflight(params: Mapping[str, Any], ports: Ports, remember: bool) -> Report:
    """Hold one service against its model, its host and its GPUs.

    ``params`` are the module's. What cannot work is a failed check; GpuFleetError is for parameters that say nothing.
    """
    request = _request(params)
    given = params.get("gpu_facts")
    if given is not None:
        snapshot = snapshot_of(given)
        gpus = tuple(resolve(request.gpus, snapshot.gpus))
        spec = checked_spec(request, gpus)
        seen = Seen(snapshot, gpus, elsewhere=True, vllm_version=version_of(given))
        report = examine(asked_of(request, spec), seen, request.gpus, ports.places or Places(), ports.runner, ports.systemd, remember)
        memory = given_memory(gpus, Need(spec.utilization, spec.guard.margin_mib), request.replace)
        if memory:
            report = replace(report, checks=(*(check for check in report.checks if check.id != "memory"), *memory))
        return report
    return _here(request, ports, remember)


def _request(params: Mapping[str, Any]) -> Request:
    model = params.get("model")
    if not isinstance(model, str) or not model.strip():
        raise GpuFleetError("`model` is empty. Give a directory of this host, or a repository's name.")
    for name in ("args", "env", "unit_options"):
        if params.get(name) is not None and not isinstance(params[name], Mapping):
            raise GpuFleetError("`%s` is a %s. It has to be a dictionary." % (name, type(params[name]).__name__))
    known: Dict[str, Any] = {key: value for key, value in params.items() if key != "gpu_facts"}
    # As if it were started anew: what it holds itself comes free, and no server is asked anything.
    return to_request({**known, "name": params.get("name") or _NOBODYS_NAME, "state": "restarted", "smoke": False})


def _here(request: Request, ports: Ports, remember: bool) -> Report:
    before: List[Check] = []
    snapshot, gpus = _gpus(request, ports, before)
    seen = _look(request, ports, snapshot if gpus else None, before)
    if seen is not None and gpus:
        report = run_checks(request, seen, make_plan(request, seen.view), ports, remember)
    else:
        asked = asked_of(request, checked_spec(request, gpus))
        report = examine(asked, Seen(snapshot, gpus), request.gpus, ports.places or Places(), ports.runner, ports.systemd, remember)
        why = "the GPUs can't be read" if not gpus else "the services of this host can't be looked at"
        before += [skip(check, why) for check in ("port", "memory")]
    return replace(report, checks=tuple(before) + tuple(report.checks))


def _gpus(request: Request, ports: Ports, checks: List[Check]) -> Tuple[Optional[Snapshot], Tuple[Gpu, ...]]:
    try:
        with ports.open_reader() as reader:
            snapshot = reader.snapshot()
    except GpuFleetError as exc:
        checks.append(fail("gpus", exc.msg, "Make the driver work, or give gpu_facts to plan for another machine."))
        return None, ()
    if not snapshot.available:
        detail = "the GPUs of this host cannot be read (%s): %s" % (snapshot.reason, snapshot.reason_detail or "no further detail")
        checks.append(fail("gpus", detail, "Make the driver work, or give gpu_facts to plan for another machine."))
        return snapshot, ()
    try:
        gpus = tuple(resolve(request.gpus, snapshot.gpus))
    except GpuFleetError as exc:
        checks.append(fail("gpus", exc.msg, "Correct gpus."))
        return snapshot, ()
    if not gpus:
        checks.append(fail("gpus", "the driver shows no GPU on this host", "Look at nvidia-smi and dmesg."))
    return snapshot, gpus


def _look(request: Request, ports: Ports, snapshot: Optional[Snapshot], checks: List[Check]) -> Optional[Look]:
    problem = ports.systemd.available()
    if problem is not None:
        checks.append(skip("service", problem))
        return None
    if snapshot is None:
        return None
    try:
        return look(request, ports, _Read(snapshot), compare=False)
    except GpuFleetError as exc:
        # A declaration that can't be is an error of its own; this is about what else is on the host.
        checked_spec(request, ())
        checks.append(fail("service", exc.msg))
        return None
