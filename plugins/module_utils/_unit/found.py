# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The services that this collection manages on a host, found again from their unit files."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, replace
from typing import Any, Dict, List, Optional, Sequence, Tuple

from .._core.errors import GpuFleetError
from .address import addresses_meet
from .spec import ServiceSpec

SECTION = "X-GpuFleet"
DIRECTORY = "/etc/systemd/system"


@dataclass(frozen=True)
class ManagedService:
    """One service as its unit file describes it. ``problem`` says why the rest is incomplete, else ""."""

    unit: str
    name: str
    model: str
    served_name: str
    gpus: Tuple[int, ...]
    port: int
    slug: str
    path: str
    host: str = ""
    gpu_uuids: Tuple[str, ...] = ()
    home: str = ""
    tls: bool = False
    problem: str = ""
    format: int = 1


def find_managed(directory: str = DIRECTORY) -> List[ManagedService]:
    """Every ``vllm-*.service`` with our section, sorted by unit name. A malformed one is reported, not fatal."""
    try:
        names = sorted(os.listdir(directory))
    except FileNotFoundError:
        return []
    except OSError as exc:
        raise GpuFleetError("Cannot look for services in %s: %s." % (directory, exc.strerror)) from exc
    found = []
    for name in names:
        path = os.path.join(directory, name)
        if not (name.startswith("vllm-") and name.endswith(".service")) or os.path.islink(path):
            continue  # a link is an alias or a mask, never a file of ours
        try:
            with open(path, encoding="utf-8", errors="replace") as handle:
                text = handle.read()
        except OSError as exc:
            found.append(_broken(name, path, "it can't be read: %s" % exc.strerror))
            continue
        service = parse_managed(text, path)
        if service is not None:
            found.append(service)
    return found


def parse_managed(text: str, path: str) -> Optional[ManagedService]:
    """Read one unit file; None when it isn't ours."""
    unit = os.path.basename(path)
    values, problem = _section(text)
    if values is None:
        return None
    slug = unit[len("vllm-") : -len(".service")]
    given = values.get("Format", 1)
    format_ = given if isinstance(given, int) and not isinstance(given, bool) else 1
    try:
        service = ManagedService(
            unit=unit,
            name=_typed(values, "Name", str),
            model=_typed(values, "Model", str),
            served_name=_typed(values, "ServedName", str),
            gpus=tuple(_typed(values, "Gpus", list)),
            port=_typed(values, "Port", int),
            slug=slug,
            path=path,
            host=str(values.get("Host", "")),
            gpu_uuids=tuple(str(uuid) for uuid in values.get("GpuUuids", [])),
            home=str(values.get("Home", "")),
            tls=values.get("Tls") is True,
            problem=problem,
            format=format_,
        )
        if not all(isinstance(gpu, int) and not isinstance(gpu, bool) for gpu in service.gpus):
            raise ValueError("Gpus holds something else than numbers")
        return service
    except (ValueError, TypeError) as exc:
        return replace(_broken(unit, path, problem or str(exc)), format=format_)


def conflicts(spec: ServiceSpec, managed: Sequence[ManagedService]) -> List[ManagedService]:
    """The other services that can't run beside ``spec``: the same GPU, or the same port on an address that both would take."""
    gpus, uuids = set(spec.gpus), set(spec.gpu_uuids)
    return [
        other
        for other in managed
        if other.unit != spec.unit and (shares_port(other, spec) or _on_same_gpus(gpus, uuids, other))
    ]


def shares_port(other: ManagedService, spec: ServiceSpec) -> bool:
    """Whether both would listen on the same port of one address."""
    return other.port == spec.port and addresses_meet(other.host, spec.host)


def _on_same_gpus(gpus: "set[int]", uuids: "set[str]", other: ManagedService) -> bool:
    mig = any(uuid.startswith("MIG-") for uuid in uuids) and any(uuid.startswith("MIG-") for uuid in other.gpu_uuids)
    if mig:  # two instances of one GPU don't disturb each other
        return bool(uuids & set(other.gpu_uuids))
    return bool(gpus & set(other.gpus))


def _section(text: str) -> Tuple[Optional[Dict[str, Any]], str]:
    values: Optional[Dict[str, Any]] = None
    problem = ""
    inside = False
    for line in text.split("\n"):
        line = line.strip()
        if line.startswith("["):
            inside = line == "[%s]" % SECTION
            values = {} if inside and values is None else values
        elif inside and values is not None and "=" in line and line[0] not in "#;":
            name, _equals, value = line.partition("=")
            try:
                values[name.strip()] = json.loads(value)
            except ValueError:
                problem = "%s in [%s] can't be read: %r" % (name.strip(), SECTION, value)
    return values, problem


def _typed(values: Dict[str, Any], name: str, kind: type) -> Any:
    value = values.get(name)
    if not isinstance(value, kind) or isinstance(value, bool):
        raise ValueError("%s is missing in [%s], or no %s" % (name, SECTION, kind.__name__))
    return value


def _broken(unit: str, path: str, problem: str) -> ManagedService:
    slug = unit[len("vllm-") : -len(".service")]
    return ManagedService(unit, slug, "", "", (), 0, slug, path, problem="%s: %s" % (path, problem))
