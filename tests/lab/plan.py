# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Which hosts a lab has: their names, bases, cgroup forms and GPUs."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

from lab.errors import LabError

BASES = ("bookworm", "trixie")
CGROUP_FORMS = ("unified", "hybrid")
MIXED = "mixed"
MAX_HOSTS = 200
_NAME = re.compile(r"[a-z][a-z0-9-]{0,30}")


@dataclass(frozen=True)
class HostSpec:
    """What one host is.

    ``base``: the distribution, one of :data:`BASES`. ``cgroup``: ``unified`` (cgroup v2 alone, as on today's
    servers) or ``hybrid`` (v1 controllers beside v2). ``gpus``: how many GPUs the simulated driver shows at boot.
    ``pynvml``: whether the host's system Python can import ``pynvml``.
    """

    name: str
    base: str = "bookworm"
    cgroup: str = "unified"
    gpus: int = 8
    pynvml: bool = True

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name):
            raise LabError(
                f"host name {self.name!r}: use lower-case letters, digits and hyphens, at most 31, a letter first"
            )
        if self.base not in BASES:
            raise LabError(f"{self.name}: base {self.base!r} is not one of {', '.join(BASES)}")
        if self.cgroup not in CGROUP_FORMS:
            raise LabError(f"{self.name}: cgroup form {self.cgroup!r} is not one of {', '.join(CGROUP_FORMS)}")
        if not 0 <= self.gpus <= 16:
            raise LabError(f"{self.name}: {self.gpus} GPUs; the simulated driver shows 0 to 16")

    def as_dict(self) -> dict[str, Any]:
        """The spec as plain data, for the record."""
        return asdict(self)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> HostSpec:
        """The reverse of :meth:`as_dict`; keys that are no fields are ignored."""
        known = {field.name for field in fields(cls)}
        return cls(**{key: value for key, value in data.items() if key in known})


def host_name(number: int) -> str:
    """The name of the lab's n-th host, counted from 1."""
    return f"gpu{number:02d}"


def default_plan(hosts: int, base: str | None = None) -> list[HostSpec]:
    """The hosts of ``lab up --hosts N``.

    ``base`` None: Debian 12, with every third host Debian 13; ``mixed``: the two bases in turn; otherwise all alike.
    """
    if not 1 <= hosts <= MAX_HOSTS:
        raise LabError(f"{hosts} hosts: choose 1 to {MAX_HOSTS}")
    if base is not None and base not in (*BASES, MIXED):
        raise LabError(f"base {base!r} is not one of {', '.join((*BASES, MIXED))}")
    specs = []
    for number in range(1, hosts + 1):
        if base is None:
            chosen = BASES[1] if number % 3 == 0 else BASES[0]
        elif base == MIXED:
            chosen = BASES[(number - 1) % len(BASES)]
        else:
            chosen = base
        specs.append(HostSpec(host_name(number), chosen))
    return specs


@dataclass(frozen=True)
class Merge:
    """What an ``up`` does to a lab that may be up already."""

    keep: tuple[str, ...]
    add: tuple[HostSpec, ...]
    notes: tuple[str, ...]


def merge(running: Mapping[str, HostSpec], wanted: Iterable[HostSpec], *, strict: bool) -> Merge:
    """Decide what to add; hosts that are there stay as they are.

    With ``strict`` (the caller named each host's options) a host that is there in another form is an error, since it
    can't be given what it asks for; without it (``--hosts N``) it is kept and a note says so.
    """
    add: list[HostSpec] = []
    notes: list[str] = []
    for spec in wanted:
        present = running.get(spec.name)
        if present is None:
            add.append(spec)
        elif present != spec:
            differs = ", ".join(
                f"{field.name} {getattr(present, field.name)}, not {getattr(spec, field.name)}"
                for field in fields(HostSpec)
                if getattr(present, field.name) != getattr(spec, field.name)
            )
            if strict:
                raise LabError(
                    f"{spec.name} is up already with {differs}: take the lab down first, or use another name"
                )
            notes.append(f"{spec.name} stays as it is: {differs}")
    return Merge(tuple(running), tuple(add), tuple(notes))
