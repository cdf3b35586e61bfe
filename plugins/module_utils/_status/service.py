# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""One service of a host: what it is, whether it serves and since when, and how far it is from what the inventory declares."""

from __future__ import annotations

import math
import os
import re
import traceback
from dataclasses import dataclass, replace
from typing import Any, Dict, List, Optional, Tuple

from .._core.errors import GpuFleetError
from .._fetch.manifest import read_record
from .._gpu.reader import GpuReader
from .._preflight.installed import find_installation
from .._server.http import Server
from .._server.ready import ReadyState
from .._service.look import server_of
from .._service.ports import Ports
from .._service.ready import Target, probe
from .._service.request import Request
from .._service.run import Run
from .._systemd.show import UnitStatus
from .._unit.found import ManagedService
from .._unit.slug import unit_name
from .drift import Drift, drift_of
from .links import Link
from .state import state_of
from .why import FAILED, why_failed

_PROBE_S = 5.0
_ASK_S = 1.0
_EXEC = re.compile(r'^ExecStart=(?:"((?:[^"\\]|\\.)*)"|(\S+))', re.MULTILINE)

_PARTED = re.compile(r"[-_]")


@dataclass(frozen=True)
class Declared:
    """A service as the inventory declares it. ``revision`` is the model's commit, None where it is not pinned."""

    request: Request
    revision: Optional[str] = None

    @property
    def unit(self) -> str:
        """Its unit."""
        return unit_name(self.request.name)


@dataclass(frozen=True)
class Subject:
    """The service that is looked at. ``service`` is what the host's files say and ``declared`` what the inventory says, None for nothing.

    ``broken`` says why its entry in the catalogue can't be used; ``link`` is what its unit file is in place of a file.
    """

    unit: str
    entry: str = ""
    service: Optional[ManagedService] = None
    declared: Optional[Declared] = None
    broken: Optional[str] = None
    link: Optional[Link] = None

    def to_json(self) -> Dict[str, Any]:
        """What it is, whatever it does."""
        service, request = self.service, self.declared.request if self.declared is not None else None
        said: Tuple[Any, ...] = (self.entry or self.unit[len("vllm-") : -len(".service")], "", "", "", None, [])
        if service is not None:
            said = (service.name, service.model, service.served_name, service.host, service.port, list(service.gpus))
        elif request is not None:
            said = (request.name, str(request.model or ""), request.served_name, "", request.port, [])
        return {
            "unit": self.unit, **dict(zip(("name", "model", "served_name", "host", "port", "gpus"), said)),
            "in_catalogue": self.declared is not None or self.broken is not None,
        }  # fmt: skip


def examine(subject: Subject, status: UnitStatus, ports: Ports, reader: GpuReader) -> Dict[str, Any]:
    """What there is to tell."""
    service, declared = subject.service, subject.declared
    if subject.link is not None and subject.link.masks:
        status = replace(status, load_state="masked")  # even before systemd has read it
    there = service is not None or subject.link is not None
    drift: Optional[List[Drift]] = None if declared is None else []
    notes: List[str] = []
    seen: Optional[ReadyState] = None
    actions: List[Dict[str, str]] = []
    unknown: Optional[str] = None
    if subject.broken is not None:
        drift = [Drift("refused", "its entry in the catalogue can't be used: %s" % subject.broken)]
    elif declared is not None and drift is not None:
        one = Run(declared.request, ports, reader, ports.clock.monotonic())
        try:
            one.examine(remember=False)
            seen = one.seen.serves
            actions = one.plan.to_result()
            drift += drift_of(one.plan, [*one.seen.view.runner, *one.seen.view.changes], declared.unit, there)
            notes += one.outcome.warnings
        except GpuFleetError as exc:
            if _driver_is_silent(reader):
                drift, unknown = None, exc.msg  # nothing can be said of what a driver would have to be asked for
            else:
                drift.append(Drift("refused", exc.msg))
    if subject.link is not None and drift is not None:
        drift.insert(0, Drift("unit", subject.link.text))
    elif subject.link is not None:
        notes.append(subject.link.text)
    server = server_of(service, ports) if service is not None and service.served_name else None
    if service is not None and server is not None and status.running and seen is None:
        seen = probe(Target(service.unit, service.served_name, server), ports.clock, _PROBE_S)
    ready_timeout = declared.request.ready_timeout if declared is not None else Request.ready_timeout
    found = {
        **subject.to_json(),
        **state_of(status, seen, there, ports.clock.time(), ready_timeout),
        **_asked(server, status),
        "drift_unknown": unknown,
        "actions": actions,
    }
    found["diagnosis"] = None
    if found["state"] in FAILED:
        why = why_failed(status, found["port"], ports)
        found.update(diagnosis=why.to_result(), detail="%s: %s" % (found["detail"], why.summary))
    found["installed_version"] = _installed(service)
    found["model_revision"] = _revision(found["model"], notes)
    if drift is not None and declared is not None:
        drift += _of_versions(found, declared)
        if found["state"] == "exited" and not any(each.kind == "running" for each in drift):
            drift.append(Drift("running", "its process has ended"))
    if service is not None and service.problem:
        notes.append(service.problem)
    others = [path for path in status.drop_in_paths if not path.endswith("/50-options.conf")]
    if others:
        notes.append("also in force, and not of this collection: %s" % ", ".join(others))
    found["drift"] = None if drift is None else [each.to_json() for each in drift]
    found["notes"] = notes
    return found


def unseen(subject: Subject, status: UnitStatus, exc: Exception) -> Dict[str, Any]:
    """What is told of a service that could not be looked at, for a reason that nobody has foreseen."""
    last = traceback.extract_tb(exc.__traceback__)[-1]
    text = exc.msg if isinstance(exc, GpuFleetError) else "%s: %s (%s, line %s)" % (
        type(exc).__name__, exc, os.path.basename(last.filename), last.lineno,
    )  # fmt: skip
    problem = "it could not be looked at: %s" % text
    return {
        **subject.to_json(),
        **state_of(status, None, True, 0.0, 0.0),
        "state": "unknown", "ready": False, "detail": problem, "version": None, "requests_running": None, "requests_waiting": None,
        "installed_version": None, "model_revision": None, "drift": None, "drift_unknown": problem, "actions": [], "notes": [],
        "diagnosis": None,
    }  # fmt: skip


def _driver_is_silent(reader: GpuReader) -> bool:
    return not reader.snapshot(processes=False).available


def _asked(server: Optional[Server], status: UnitStatus) -> Dict[str, Any]:
    """What the server says of itself; null where it does not."""
    found: Dict[str, Any] = {"version": None, "requests_running": None, "requests_waiting": None}
    if server is None or not status.running:
        return found
    try:
        found["version"] = server.version(_ASK_S)
    except (GpuFleetError, OSError):
        pass  # not every server says so
    try:
        metrics = server.metrics(_ASK_S)
    except (GpuFleetError, OSError):
        return found
    for key, name in (("requests_running", "num_requests_running"), ("requests_waiting", "num_requests_waiting")):
        found[key] = int(metrics[name]) if math.isfinite(metrics.get(name, math.nan)) else None
    return found


def _installed(service: Optional[ManagedService]) -> Optional[str]:
    """The version of the vLLM that the unit's next start would run."""
    if service is None:
        return None
    try:
        with open(service.path, encoding="utf-8", errors="replace") as handle:
            match = _EXEC.search(handle.read())
    except OSError:
        return None
    if match is None:
        return None
    installation = find_installation((match.group(1) or match.group(2)).replace("%%", "%"))
    return installation.version if installation is not None else None


def _revision(model: str, notes: List[str]) -> Optional[str]:
    """The commit that this collection has fetched into the model's directory."""
    if not os.path.isabs(model):
        return None
    try:
        record = read_record(model)
    except GpuFleetError as exc:
        notes.append(exc.msg)
        return None
    return (record.commit or record.revision) if record is not None else None


def _of_versions(found: Dict[str, Any], declared: Declared) -> List[Drift]:
    drift = []
    if found["version"] and found["installed_version"] and not same_version(found["version"], found["installed_version"]):
        drift.append(Drift("version", "vLLM %s runs, %s is installed" % (found["version"], found["installed_version"])))
    revision, wanted = found["model_revision"], declared.revision
    if revision and wanted and revision != wanted and not _named(found["model"], wanted):
        drift.append(Drift("revision", "%s holds %s, %s is declared" % (found["model"], revision, wanted)))
    return drift


def same_version(one: str, other: str) -> bool:
    """Whether two versions are one build, as PEP 440 spells them.

    The label after a ``+`` (``0.19.1+cu129``) counts only where both have one: a wheel is named with it, while the program in it
    may say its version without.
    """
    first, second = (_PARTED.sub(".", each.strip().lower().lstrip("v")).partition("+") for each in (one, other))
    return first[0] == second[0] and (first[2] == second[2] or not (first[2] and second[2]))


def _named(model: str, wanted: str) -> bool:
    """Whether what is declared is a branch's or a tag's name, and the directory was fetched by it."""
    try:
        record = read_record(model)
    except GpuFleetError:
        return False
    return record is not None and wanted in (record.revision, record.commit)
